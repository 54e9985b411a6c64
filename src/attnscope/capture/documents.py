"""Corpora: the documents in several files, in their formats, wherever fsspec can read them.

| source | documents |
|---|---|
| `.jsonl`, `.ndjson` | one in each line, in a field |
| `.parquet`, `.arrow` | one in each row, in a column |
| a folder saved by `datasets` | the same, in its files in their order |
| any other file | the whole file, in UTF-8 |

Files may be compressed (`.gz`, `.bz2`, `.xz`; `.zst` with the package zstandard) and named by a pattern (`books/*.txt`)
or an address (`s3://bucket/corpus/*.parquet`, with the package that fsspec needs for it).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from attnscope.capture import text as corpora
from attnscope.capture.text import Text, decoded, given_text, read_text
from attnscope.errors import InputError, parameter, shown

_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+(::|://)")
_PATTERN = re.compile(r"[*?\[]")
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_LINES, _TABLES = (".jsonl", ".ndjson"), (".parquet", ".arrow")
_ROWS = 4096  # of a Parquet file that are read at once
_SHOWN = 8  # names in a message


@dataclass(frozen=True)
class Corpus:
    """Documents in one or several files, read one after another.

    >>> _ = Path("poems.jsonl").write_text('{"text": "First poem."}\\n{"text": "Second poem."}\\n')
    >>> [document.content for document in attnscope.capture.Corpus(("poems.jsonl",)).documents()]
    ['First poem.', 'Second poem.']

    Attributes
    ----------
    paths
        Files, patterns, addresses, folders saved by `datasets`, or `corpus:NAME`.
    field
        The field of lines of JSON, or the column of a table, that holds the text.
    """

    paths: tuple[str, ...]
    field: str = "text"

    def __post_init__(self) -> None:
        if not isinstance(self.paths, tuple) or not self.paths or not all(isinstance(path, str) for path in self.paths):
            raise InputError(f"a corpus is given as a tuple of names of files; received {shown(self.paths)}")

    @property
    def source(self) -> str:
        """What it is called in messages and in `run.json`."""
        more = len(self.paths) - 1
        return f"{self.paths[0]} and {more} more" if more else self.paths[0]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the SHA-256 of all documents; reads them."""
        digest = hashlib.sha256()
        for document in self.documents():
            digest.update(bytes.fromhex(document.digest))
        return digest.hexdigest()

    def documents(self) -> Iterator[Text]:
        """The documents in order; empty ones too."""
        for path in self.paths:
            if path.startswith(corpora.PREFIX):
                yield read_text(path)
                continue
            for file in _files(path):
                yield from _documents(file, self.field)


def read_source(paths: Sequence[str] | None, field: str = "text") -> Text | Corpus:
    """What the command line names: a text if it is a plain file, standard input or nothing, otherwise a corpus."""
    if not paths:
        return read_text(None)
    if len(paths) == 1 and _is_one_text(paths[0]):
        return read_text(paths[0])
    if "-" in paths or "" in paths:
        raise InputError("each of several texts takes a name of files; standard input or nothing cannot be one of them")
    corpus = Corpus(tuple(paths), field)
    for path in paths:  # what is not there is refused before a model is loaded
        if not path.startswith(corpora.PREFIX):
            _files(path)
    return corpus


def given_source(text: str | Path | Text | Corpus | None) -> Text | Corpus:
    """A text or corpus from an argument: a path as the command line takes it, anything else as `given_text` does."""
    if isinstance(text, Corpus):
        return text
    return read_source([str(text)]) if isinstance(text, Path) else given_text(text)


def _is_one_text(path: str) -> bool:
    if path in ("-", "") or path.startswith(corpora.PREFIX):
        return True
    suffix, compression = _format(path)
    some = _ADDRESS.match(path) or compression or suffix in (*_LINES, *_TABLES) or Path(path).is_dir()
    return not some and not _is_pattern(path)


def _is_pattern(path: str) -> bool:
    """Whether a name is a pattern, and not that of a file."""
    return bool(_PATTERN.search(path)) and (bool(_ADDRESS.match(path)) or not Path(path).exists())


def _format(path: str) -> tuple[str, str | None]:
    """The suffix of a file without that of its compression, and the name of its compression."""
    name = PurePosixPath(path.lower())
    compression = _COMPRESSED.get(name.suffix)
    return (PurePosixPath(name.stem).suffix if compression else name.suffix), compression


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Whatever goes wrong while a file is found or read, in one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of any file system
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read {shown(name)}: {reason}") from error


@dataclass(frozen=True)
class _File:
    """A file of any file system that fsspec knows."""

    system: Any
    path: str
    name: str  # as messages call it

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Its content, uncompressed."""
        from fsspec.compression import compr
        from fsspec.core import OpenFile

        compression = _format(self.path)[1]
        if compression is not None and compression not in compr:
            raise InputError(f"{self.name}: .zst needs the package zstandard; pip install 'attnscope[corpora]'")
        with OpenFile(self.system, self.path, "rb", compression) as content:
            yield io.BufferedReader(content) if compression == "zstd" else content  # which has no lines

    @contextmanager
    def local(self) -> Iterator[str]:
        """The path of an uncompressed file on this machine with its content: itself, or a temporary copy."""
        if "file" in self.system.protocol and _format(self.path)[1] is None:
            yield self.path
            return
        with tempfile.NamedTemporaryFile(prefix="attnscope-") as copy:
            with self.open() as content:
                shutil.copyfileobj(content, copy)
            copy.flush()
            yield copy.name


def _files(path: str) -> list[_File]:
    """The files that a name, a pattern or a folder of `datasets` stands for, in order."""
    from fsspec.core import url_to_fs

    with _reading(path):
        system, root = url_to_fs(path)
        if _is_pattern(path):
            found = sorted(name for name in system.glob(root) if system.isfile(name))
            if not found:
                raise InputError(f"no file matches {shown(path)}; check {parameter('text')}")
            return [_File(system, name, name if len(found) > 1 else path) for name in found]
        if system.isdir(root):
            return [_File(system, f"{root}/{name}", f"{path}/{name}") for name in _dataset_files(system, root, path)]
        if not system.exists(root):
            raise InputError(f"no file at {shown(path)}; check {parameter('text')}")
        return [_File(system, root, path)]


def _dataset_files(system: Any, root: str, path: str) -> list[str]:
    """The files of a folder that `datasets` has saved, in the order of its rows."""

    def content(name: str) -> Any:
        return json.loads(system.cat_file(f"{root}/{name}"))

    if system.exists(f"{root}/dataset_dict.json"):
        splits = ", ".join(f"{path.rstrip('/')}/{split}" for split in content("dataset_dict.json")["splits"])
        raise InputError(f"{shown(path)} has several splits; give one of {splits}")
    if not system.exists(f"{root}/state.json"):
        raise InputError(f"{shown(path)} is a folder, not saved by datasets; give its files, e.g. {path}/*.txt")
    state = content("state.json")
    if state.get("_indices_files"):
        raise InputError(f"{shown(path)} keeps its rows in another order; save it again after flatten_indices()")
    names = [PurePosixPath(entry["filename"]).name for entry in state["_data_files"]]
    if not names:
        raise InputError(f"{shown(path)} has no data files")
    return names


def _documents(file: _File, field: str) -> Iterator[Text]:
    suffix = _format(file.path)[0]
    with _reading(file.name):
        if suffix in _LINES:
            yield from _of_lines(file, field)
        elif suffix in _TABLES:
            with file.local() as path:
                for number, value in enumerate(_column(path, suffix, field, file.name)):
                    yield _text(value, f"{file.name}, row {number}", field)
        else:
            with file.open() as content:
                data = content.read(corpora.LARGEST + 1)
            yield decoded(data, file.name) if data.strip() else Text("", file.name)


def _of_lines(file: _File, field: str) -> Iterator[Text]:
    with file.open() as content:
        for number in count(1):
            line = content.readline(corpora.LARGEST + 1)
            name = f"{file.name}, line {number}"
            if not line:
                return
            if len(line) > corpora.LARGEST:
                raise InputError(f"{name} has more than {corpora.LARGEST >> 20} MiB")
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{name} is not JSON: {getattr(error, 'msg', error)}") from None
            if not isinstance(record, dict):
                raise InputError(f"{name} is not a JSON object, but {shown(record)}")
            if field not in record:
                raise InputError(_no_field(name, field, list(record)))
            yield _text(record[field], name, field)


def _column(path: str, suffix: str, field: str, name: str) -> Iterator[object]:
    """The values of a column, some rows at a time; an Arrow file is read at once."""
    if suffix == ".parquet":
        table = pl.scan_parquet(path, glob=False)
    else:
        with Path(path).open("rb") as content:
            in_file = content.read(6) == b"ARROW1"  # `datasets` writes streams
        table = (pl.read_ipc(path) if in_file else pl.read_ipc_stream(path)).lazy()
    schema = table.collect_schema()
    if field not in schema:
        raise InputError(_no_field(name, field, schema.names()))
    if not isinstance(schema[field], pl.String | pl.Categorical | pl.Enum | pl.Null):
        raise InputError(_no_text(name, field, schema[field]))
    for start in range(0, table.select(pl.len()).collect().item(), _ROWS):
        yield from table.select(field).slice(start, _ROWS).collect()[field]


def _no_field(name: str, field: str, names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{name} has no field {shown(field)}; name one with {parameter('field')}: {', '.join(names[:_SHOWN])}{more}"


def _no_text(name: str, field: str, value: object) -> str:
    return f"{name}: the field {shown(field)} is not text, but {value}; name another with {parameter('field')}"


def _text(value: object, name: str, field: str) -> Text:
    """A document from a field; missing ones are empty."""
    if value is None:
        return Text("", name)
    if not isinstance(value, str):
        raise InputError(_no_text(name, field, shown(value)))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{name} is no Unicode text: a lone surrogate at offset {error.start}") from None
    return Text(value, name)
