"""The header of a GGUF file, read without trusting it.

The reader of the package `gguf` trusts every count in the file and loops over it; this one compares counts and sizes
with the bytes present, so that rejecting a damaged header takes no longer than reading an intact one.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # formats of struct by GGUF's type number
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufHeader:
    """Metadata and tensor names of a GGUF file."""

    metadata: dict[str, Any]  # scalars and strings; for an array, its number of items
    tensors: tuple[str, ...]  # their names


class _Cursor:
    """Reads numbers and strings in order; raises `struct.error` where the file ends too early."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.offset, self.order = data, 0, "<"

    def scalars(self, kinds: str) -> tuple[Any, ...]:
        values = struct.unpack_from(self.order + kinds, self.data, self.offset)
        self.skip(struct.calcsize(self.order + kinds))
        return values

    def skip(self, size: int) -> None:
        if size > len(self.data) - self.offset:
            raise struct.error(f"{size} bytes are announced and {len(self.data) - self.offset} left")
        self.offset += size

    def string(self) -> str:
        (size,) = self.scalars("Q")
        self.skip(size)
        return self.data[self.offset - size : self.offset].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalars(_SCALARS[kind])[0]
        if kind != _ARRAY:
            raise ValueError(f"values of the unknown type {kind}")
        item, count = self.scalars("IQ")
        if item in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[item]))
        elif item == _STRING:
            for _ in range(count):
                self.skip(self.scalars("Q")[0])
        else:
            raise ValueError(f"an array of items of type {item}")
        return count


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the metadata and tensor names of a GGUF file; raises `ModelError` if the file is not consistent."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Cursor(data))
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{str(path)!r} is not an intact GGUF file: {error}; download it again") from None


def _read(cursor: _Cursor) -> GgufHeader:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if cursor.data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor.skip(4)
    if cursor.data[4:6] == b"\0\0":  # a small version number with its high bytes first
        cursor.order = ">"
    _version, tensors, fields = cursor.scalars("IQQ")
    metadata = {}
    for _ in range(fields):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalars("I")[0])
    total, names = 0, []
    for _ in range(tensors):
        name = cursor.string()
        names.append(name)
        (dimensions,) = cursor.scalars("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shape = cursor.scalars("Q" * dimensions)
        kind, _offset = cursor.scalars("IQ")
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        total += math.prod(shape) * size // block
    if total > len(cursor.data) - cursor.offset:
        raise ValueError(f"its tensors take {total} bytes, and {len(cursor.data) - cursor.offset} are left for them")
    return GgufHeader(metadata, tuple(names))
