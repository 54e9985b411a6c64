"""The files of a checkpoint, found and checked before anything is built from them, without trusting them.

The reader of the package `gguf` trusts every count in the file and loops over it; this one compares counts and sizes
with the bytes present, so that rejecting a damaged header takes no longer than reading an intact one.

Requirements of the design:

- a corrupt file costs no more than reading its header: counts and sizes are compared with the bytes present;
- weights are read only from safetensors and GGUF files, whatever an index names, unless pickles are allowed;
- the hub is asked once, without retries, and never for a path;
- a path that does not exist is refused without importing torch or transformers.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError, HTTPError, StrictDataclassError  # type: ignore[attr-defined]
from huggingface_hub.utils._validators import validate_repo_id
from safetensors import SafetensorError

from attnscope.errors import AttnscopeError, ModelError, parameter

# What other packages raise on an invalid configuration or file; tokenizers also raises Exception itself.
_DAMAGED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    HTTPError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
CHECK_FILES = "check that its files are complete and belong together"
CHECK_TOKENIZER = "check the tokenizer of the model"


@contextmanager
def foreign_errors(doing: str, advice: str = CHECK_FILES, foreign: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Turn what transformers and tokenizers raise on damaged or unknown models into a one-line `ModelError`.

    `doing` completes "cannot ...". If the other package calls back into attnscope, `foreign` says which of the two was
    running: errors of attnscope itself are bugs and are not converted.
    """
    try:
        yield
    except AttnscopeError:
        raise
    except BaseException as error:
        # tokenizers raises Exception itself; its panics are not Exceptions, and their class is private.
        damaged = isinstance(error, _DAMAGED) or type(error) is Exception or type(error).__name__ == "PanicException"
        if damaged and foreign():
            raise ModelError(_message(doing, error, advice)) from error
        raise


def _message(doing: str, error: BaseException, advice: str) -> str:
    """A message of one line: what failed, and what to do."""
    first = " ".join(str(error).split()) or type(error).__name__
    short = first if len(first) <= 200 else first[:200] + "..."
    if "trust_remote_code" in first:
        return (
            f"cannot {doing}: it comes with code of its own, which attnscope does not run by default; read that "
            f"code, then use {parameter('trust_remote_code', True)}"
        )
    kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
    return f"cannot {doing}: {kind}{short}; {advice}"


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


HUB_SECONDS = 5.0  # to wait for the first response of the hub
LARGEST_JSON = 64 * 2**20  # bytes of a configuration or an index
FEW_LAYERS = 100  # a layer count up to this is trusted whatever the files hold, since layers may share weights
_LAYER_COUNT = re.compile(r"layers?$|depth|block_count|num_blocks|n_blocks|first_k_dense_replace")
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")  # in the name of a GGUF tensor
_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Checkpoint:
    """What transformers should load, and the size of its files."""

    name: str
    source: str  # a folder or a hub id, for from_pretrained
    options: dict[str, Any]  # of from_pretrained: where to look
    tensors: int | None  # in its files; None for pickles, which are not opened here
    size: int  # bytes of its weights


def locate(name: str, revision: str | None = None) -> dict[str, Any]:
    """Options for from_pretrained that locate a model; raises immediately if it does not exist."""
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"no GGUF file at {name!r}; check the path")
        # Not the name alone: transformers would prefer a file of that name in the current folder.
        return {"gguf_file": str(path.resolve()), "local_files_only": True}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"the folder {name!r} has no config.json; give a folder saved by save_pretrained")
        return {"local_files_only": True}
    if path.exists():
        raise ModelError(f"{name!r} is neither a model folder nor a .gguf file")
    if name.startswith((".", "/", "~")) or not _may_be_hub_id(name):
        raise ModelError(f"no model at {name!r}; give a folder, a .gguf file or a hub id such as openai-community/gpt2")
    return _ask_hub(name, revision)


def require_model(name: str | None, revision: str | None) -> None:
    """Refuse a model that is nowhere, in a moment: loading torch takes seconds."""
    if name is not None:
        locate(name, revision)


def _may_be_hub_id(name: str) -> bool:
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.isascii() and not name.endswith("\n")


def open_checkpoint(name: str, revision: str | None = None, allow_pickle: bool = False) -> Checkpoint:
    """The checked files of a model folder, a GGUF file or a hub id."""
    options = locate(name, revision)
    if "gguf_file" in options:
        return _open_gguf(name, Path(name), options)
    find = _finder(name, options)
    if find("adapter_config.json") is not None:
        raise ModelError(
            f"{name!r} holds an adapter, which would be left out; load it with PEFT and scan that model, or save what "
            "its merge_and_unload() gives"
        )
    config = read_json(_required(find, "config.json", name))
    files = _weight_files(name, find, config, allow_pickle)
    safe = all(file.suffix == ".safetensors" for file in files)
    tensors = sum(_tensor_count(name, file) for file in files) if safe else None
    if tensors is not None:
        _refuse_layers(name, config, tensors)
    return Checkpoint(name, name, options, tensors, sum(file.stat().st_size for file in files))


def _open_gguf(name: str, path: Path, options: dict[str, Any]) -> Checkpoint:
    header = read_gguf_header(path)
    _refuse_layers(name, header.metadata, len(header.tensors))
    counts = [value for key, value in header.metadata.items() if key.endswith("block_count") and isinstance(value, int)]
    blocks = 1 + max((int(match[1]) for tensor in header.tensors if (match := _BLOCK.search(tensor))), default=-1)
    if counts and blocks > max(counts):  # transformers would silently drop the others
        raise ModelError(
            f"{name!r} says block_count = {max(counts)}, but has tensors for {blocks} blocks; it is damaged"
        )
    return Checkpoint(name, str(path.parent), options, len(header.tensors), path.stat().st_size)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ModelError(f"{str(path)!r} has {path.stat().st_size} bytes, too many for a {path.name}")
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{str(path)!r} is not readable JSON: {type(error).__name__}, {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{str(path)!r} holds a JSON {type(content).__name__}, not an object")
    return content


def indexed_files(index: Path) -> dict[str, str]:
    """The file of each tensor according to an index; files outside the folder of the index are refused."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelError(f"{str(index)!r} has no weight_map of tensors and files")
    for tensor, file in files.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelError(f"{str(index)!r} names {file!r} for {tensor}, which is not a file in its folder")
    return files


def _ask_hub(name: str, revision: str | None) -> dict[str, Any]:
    """Options for from_pretrained for a hub id: one commit for all files, from the hub or else the local cache."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is the HTTP client's
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if not is_offline_mode():
        try:
            get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=HUB_SECONDS)
            return {"revision": Path(hf_hub_download(name, "config.json", revision=revision)).parent.name}
        except GatedRepoError:
            advice = "accept its terms on the hub and log in with hf auth login"
            raise ModelError(f"{name!r} is a gated model; {advice}") from None
        except RepositoryNotFoundError:
            raise ModelError(f"no folder and no model of the hub is called {name!r}; check the name") from None
        except RevisionNotFoundError:
            raise ModelError(f"{name!r} has no revision {revision!r} on the hub") from None
        except EntryNotFoundError:
            raise ModelError(f"{name!r} has no config.json on the hub; give a model that transformers loads") from None
        except HfHubHTTPError as error:
            if error.response.status_code < 500:
                raise ModelError(f"the hub refuses {name!r}: {_line(error)}") from None
        except (HTTPError, OSError):  # no network
            pass
    cached = try_to_load_from_cache(name, "config.json", revision=revision)
    if isinstance(cached, str):
        return {"revision": Path(cached).parent.name, "local_files_only": True}
    raise ModelError(
        f"cannot reach the model hub for {name!r} and it is neither a folder here nor in the local cache; check the "
        "name and the network, or give a local folder or .gguf file"
    )


def _finder(name: str, options: dict[str, Any]) -> Callable[[str], Path | None]:
    """A function that maps a file name to its local path, downloading it if needed; None if there is no such file."""

    def find(file: str) -> Path | None:
        if Path(name).is_dir():
            path = Path(name) / file
            return path if path.is_file() else None
        from transformers.utils.hub import cached_file

        with foreign_errors(f"read {file} of {name!r}"):
            local = cached_file(name, file, _raise_exceptions_for_missing_entries=False, **options)
        return None if local is None else Path(local)

    return find


def _required(find: Callable[[str], Path | None], file: str, name: str) -> Path:
    path = find(file)
    if path is None:
        raise ModelError(f"{name!r} has no {file}; the model is incomplete")
    return path


def _weight_files(
    name: str, find: Callable[[str], Path | None], config: dict[str, Any], allow_pickle: bool
) -> list[Path]:
    """The files that transformers reads the weights from; pickles only if allowed."""
    named = config.get("transformers_weights")
    wanted = [*_SAFE, *(_PICKLED if allow_pickle else ())] if named is None else [named]
    if not all(isinstance(file, str) and Path(file).name == file for file in wanted):
        raise ModelError(f"the config.json of {name!r} names {named!r} as weights, which is not a file in its folder")
    first = next((path for file in wanted if (path := find(file)) is not None), None)
    if first is None:
        raise ModelError(
            f"{name!r} has no {wanted[0]}; attnscope reads safetensors and GGUF weights, and pickles, which can run "
            "code, only with allow_pickle=True"
        )
    sharded = first.name.endswith(".index.json")
    names = sorted(set(indexed_files(first).values())) if sharded else [first.name]
    pickles = [file for file in names if not file.endswith(".safetensors")]
    if pickles and not allow_pickle:
        raise ModelError(
            f"{name!r} names {pickles[0]!r} in its {first.name}, which is not a safetensors file; pickles, which can "
            "run code, are read only with allow_pickle=True"
        )
    return [_required(find, file, name) for file in names] if sharded else [first]


def _tensor_count(name: str, file: Path) -> int:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            return len(opened.keys())
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file.name} of {name!r} is damaged: {_line(error)}; download or save it again") from None


def _refuse_layers(name: str, config: dict[str, Any], tensors: int) -> None:
    """Raise if a configuration asks for more layers than there are tensors: building them might never end."""
    nested: list[Any] = [config]
    while nested:
        for key, value in nested.pop().items():
            if isinstance(value, dict):
                nested.append(value)
            elif isinstance(value, int | float) and value > max(FEW_LAYERS, tensors) and _LAYER_COUNT.search(key):
                raise ModelError(f"{name!r} says {key} = {value}, but its files hold {tensors} tensors; it is damaged")


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."
