"""Corpora: every format gives its documents, wherever it lies; what cannot be read is named."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import fsspec
import polars as pl
import pytest

from attnscope.capture.documents import Corpus, given_source, read_source
from attnscope.capture.text import Text
from attnscope.errors import InputError

POEMS = ["First poem.\nTwo lines.", "Ein zweites: schön.", "", "third 😀"]


def contents(*paths: object, field: str = "text") -> list[str]:
    return [document.content for document in Corpus(tuple(map(str, paths)), field).documents()]


def as_lines(field: str = "text") -> bytes:
    return "".join(json.dumps({"id": i, field: poem}) + "\n" for i, poem in enumerate(POEMS)).encode()


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_lines_of_json_are_documents_compressed_or_not(tmp_path: Path, suffix: str, compress: type[bytes]) -> None:
    file = tmp_path / f"poems.jsonl{suffix}"
    file.write_bytes(compress(as_lines()))
    assert contents(file) == POEMS


def test_zstandard_is_read_if_its_package_is_installed_and_named_if_not(tmp_path: Path) -> None:
    file = tmp_path / "poems.jsonl.zst"
    try:
        import zstandard
    except ImportError:
        file.write_bytes(b"")
        with pytest.raises(InputError, match=r"needs the package zstandard; pip install 'attnscope\[corpora\]'"):
            contents(file)
        return
    file.write_bytes(zstandard.compress(as_lines()))
    assert contents(file) == POEMS


def test_a_column_of_a_parquet_file_is_read_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscope.capture.documents._ROWS", 3)
    pl.DataFrame({"id": range(4), "body": [*POEMS[:2], None, POEMS[3]]}).write_parquet(tmp_path / "poems.parquet")
    assert contents(tmp_path / "poems.parquet", field="body") == POEMS  # a missing one is empty


def test_a_folder_saved_by_datasets_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    for name, half in zip(names, (POEMS[:2], POEMS[2:]), strict=True):
        pl.DataFrame({"text": half}).write_ipc_stream(tmp_path / name)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    assert contents(tmp_path) == POEMS
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [], "_indices_files": [{"filename": "i"}]}))
    with pytest.raises(InputError, match="flatten_indices"):
        contents(tmp_path)


def test_a_folder_that_datasets_itself_has_saved_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": POEMS})
    table.save_to_disk(str(tmp_path / "one"), num_shards=2)
    assert contents(tmp_path / "one") == POEMS
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(InputError, match=r"several splits; give one of .*splits/train, .*splits/test"):
        contents(tmp_path / "splits")


def test_patterns_and_lists_give_whole_files_in_order(tmp_path: Path) -> None:
    for name, poem in zip(("b.txt", "a.txt", "c.md"), POEMS, strict=False):
        (tmp_path / name).write_text(poem, "utf-8")
    (tmp_path / "odd[1].txt").write_text("odd")
    assert contents(tmp_path / "*.txt") == [POEMS[1], POEMS[0], "odd"]
    assert contents(tmp_path / "c.md", tmp_path / "[ab].txt") == ["", POEMS[1], POEMS[0]]
    assert read_source([str(tmp_path / "odd[1].txt")]) == Text("odd", str(tmp_path / "odd[1].txt"))


def test_other_file_systems_are_read_through_fsspec() -> None:
    store = fsspec.filesystem("memory")
    with store.open("/bucket/one.jsonl.gz", "wb") as file:
        file.write(gzip.compress(as_lines()))
    with store.open("/bucket/two.parquet", "wb") as file:
        pl.DataFrame({"text": ["in an object store"]}).write_parquet(file)
    assert contents("memory://bucket/one.jsonl.gz", "memory://bucket/*.parquet") == [*POEMS, "in an object store"]


def test_the_digest_is_that_of_the_documents(tmp_path: Path) -> None:
    lines, table = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    lines.write_bytes(as_lines())
    pl.DataFrame({"text": POEMS}).write_parquet(table)
    assert Corpus((str(lines),)).digest == Corpus((str(table),)).digest
    pl.DataFrame({"text": [POEMS[0] + POEMS[1], *POEMS[2:]]}).write_parquet(table)
    assert Corpus((str(lines),)).digest != Corpus((str(table),)).digest


def test_what_is_one_text_stays_one(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("A book.")
    assert read_source([str(book)]) == given_source(book) == Text("A book.", str(book))
    assert read_source(None).source == "sample"
    (tmp_path / "x.jsonl").write_bytes(as_lines())
    assert isinstance(given_source(tmp_path / "x.jsonl"), Corpus)
    with pytest.raises(InputError, match="no file matches"):
        read_source([str(book), str(tmp_path / "*.jsonl.gz")])
    assert isinstance(read_source([str(book), str(book)]), Corpus)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\nnot json\n', r"bad.jsonl, line 2 is not JSON"),
        (b'["text"]\n', r"line 1 is not a JSON object"),
        (b'{"body": "a", "id": 1}\n', r"line 1 has no field 'text'; name one with field: body, id"),
        (b'{"text": 3}\n', r"line 1: the field 'text' is not text, but 3"),
        (b'{"text": "\\ud800"}\n', r"line 1 is no Unicode text"),
        (b'{"text": "\xff"}\n', r"line 1 is not JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=message):
        contents(tmp_path / "bad.jsonl")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    pl.DataFrame({"body": ["a"]}).write_parquet(tmp_path / "t.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(as_lines())[:30])
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for path, message in (
        (tmp_path / "t.parquet", "t.parquet has no field 'text'; name one with field: body"),
        (tmp_path / "broken.parquet", "cannot read .*broken.parquet"),
        (tmp_path / "cut.jsonl.gz", "cannot read .*cut.jsonl.gz"),
        (tmp_path / "latin.txt", "latin.txt is not UTF-8"),
        (tmp_path / "none*.txt", "no file matches"),
        (tmp_path / "none.jsonl", "no file at"),
        (tmp_path, "is a folder, not saved by datasets"),
        ("nowhere://bucket/x.jsonl", "cannot read 'nowhere://bucket/x.jsonl'"),
    ):
        with pytest.raises(InputError, match=message):
            contents(path)
    with pytest.raises(InputError, match="standard input"):
        read_source(["-", "book.txt"])
    with pytest.raises(InputError, match="a tuple of names"):
        Corpus("book.txt")  # type: ignore[arg-type]
