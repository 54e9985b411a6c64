"""Runs whose tables stay in parts: the same numbers as one table, resumed, and complete or named."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from models import build
from polars.testing import assert_frame_equal

import attnscope
from attnscope.engine import blocks
from attnscope.errors import OutputError
from attnscope.scanning import ScanResult, Step, scan
from attnscope.scanning.measuring import ScanMeasurer
from attnscope.scanning.overview import Moments, Ranges
from attnscope.scanning.page_data import page_data
from attnscope.store import tables
from attnscope.store.manifest import Manifest

OPTIONS: dict[str, Any] = {"length": 16, "windows": 11, "top_n": [1, 3], "normalizers": ["sparsemax"]}
KEYS = ["window", "layer", "head", "position", "normalizer"]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two windows, and runs that stay in parts from 100 lines on."""
    monkeypatch.setattr(blocks, "FEW", 6)
    monkeypatch.setattr(tables, "MOST_LINES", 100)


@pytest.fixture
def whole(tokenizer: Any, text: str) -> ScanResult:
    return scan(build("gpt2"), text, tokenizer=tokenizer, **OPTIONS)


def large(out: Path, tokenizer: Any, text: str, **more: Any) -> ScanResult:
    return scan(build("gpt2"), text, tokenizer=tokenizer, out=out, **OPTIONS | more)


def digests(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*-[0-9]*.parquet"))
    }


@pytest.mark.usefixtures("_small")
def test_tables_in_parts_are_lazy_frames_with_the_lines_of_one_table(
    tmp_path: Path, tokenizer: Any, text: str, whole: ScanResult
) -> None:
    result = large(tmp_path, tokenizer, text)
    for name, keys in (("rows", KEYS), ("topn", [*KEYS, "n"])):
        frame: Any = getattr(result, name)
        assert isinstance(frame, pl.LazyFrame)
        assert_frame_equal(frame.collect().sort(keys), getattr(whole, name).sort(keys), check_exact=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["parts", "weights.parquet", "patterns.parquet", "tokens.json", "run.json", "report.html"]
    )
    assert result.run["blocks"] == {"count": 6, "windows": 2, "failed": []}
    manifest = Manifest.read(tmp_path / "parts")
    assert manifest is not None
    assert [entry["windows"] for entry in manifest.entries.values()] == [[2 * i, min(2 * i + 2, 11)] for i in range(6)]
    for entry in manifest.entries.values():
        for one in entry["tables"].values():
            content = (tmp_path / "parts" / one["file"]).read_bytes()
            assert one["sha256"] == hashlib.sha256(content).hexdigest()
            table = pl.read_parquet(content)
            assert one["lines"] == table.height
            assert table.select("layer", "head").equals(table.select("layer", "head").sort("layer", "head"))


@pytest.mark.usefixtures("_small")
def test_what_is_shown_of_parts_is_what_is_shown_of_one_table(
    tmp_path: Path, tokenizer: Any, text: str, whole: ScanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscope.store.manifest.CHUNK", 300)  # several passes
    large(tmp_path, tokenizer, text)
    result = attnscope.load_run(tmp_path)
    assert isinstance(result, ScanResult)
    assert_frame_equal(result.heads, whole.heads, rel_tol=1e-12)
    assert_frame_equal(result.over_windows, whole.over_windows, rel_tol=1e-12)
    one, other = (page_data(each.overview, token_weights=each.token_weights) for each in (whole, result))
    assert one.keys() == other.keys()
    for name in one.keys() - {"run"}:
        assert one[name] == other[name], name
    for place in ((0, 1), (2, 4)):
        lines: Any = result.head(*place).rows
        assert_frame_equal(lines.collect().sort(KEYS), whole.head(*place).rows.sort(KEYS))
    for measure in ("separability", "participation"):
        assert result.plot.curve(measure).to_dict()["layer"]
    assert str(result) == str(whole)


def test_statistics_merged_from_parts_are_those_of_all_values() -> None:
    """Against NumPy on all values, in parts of any size, with missing values."""
    generator = np.random.default_rng(3)
    values = generator.lognormal(size=(97, 2)) * 10.0 ** generator.integers(-3, 4, (97, 1))
    missing = generator.random((97, 2)) < 0.2
    table = pl.DataFrame({"head": [0, 1] * 97, "value": np.where(missing, np.nan, values).ravel()}).fill_nan(None)
    moments, ranges = Moments(["head"], ["value"]), Ranges(["head"])
    start = 0
    for size in (2, 60, 40, 1, 91):
        moments.add(table[start : start + size])
        ranges.add(table[start : start + size])
        start += size
    assert start == table.height
    for head, mean, spread in moments.table().iter_rows():
        kept = values[:, head][~missing[:, head]]
        assert mean == pytest.approx(kept.mean(), rel=1e-12)
        assert spread == pytest.approx(kept.std(ddof=1), rel=1e-12)
    for head, count, *quantiles in ranges.table().iter_rows():
        kept = values[:, head][~missing[:, head]]
        assert count == len(kept)
        exact = np.quantile(kept, (0.05, 0.5, 0.95), method="inverted_cdf")
        assert quantiles == [float(f"{value:.1e}") for value in exact]


class StoppedError(Exception):
    pass


def stop_in(window: int) -> Any:
    def stop(step: Step) -> None:
        if (step.window, step.layer) == (window, 1):
            raise StoppedError

    return stop


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("window", [3, 10])
def test_a_stopped_run_runs_only_its_unfinished_blocks_again(
    window: int, tmp_path: Path, tokenizer: Any, text: str
) -> None:
    """Fault 34."""
    with pytest.raises(StoppedError):
        large(tmp_path / "run", tokenizer, text, progress=stop_in(window))
    seen: set[int] = set()
    large(tmp_path / "run", tokenizer, text, progress=lambda step: seen.add(step.window))
    assert seen == set(range(window // 2 * 2, 11))
    large(tmp_path / "whole", tokenizer, text)
    assert digests(tmp_path / "run" / "parts") == digests(tmp_path / "whole" / "parts")
    assert len(digests(tmp_path / "run" / "parts")) == 14  # weights and patterns of the first window too


@pytest.mark.usefixtures("_small")
def test_a_line_of_the_manifest_that_is_cut_is_a_block_that_is_run_again(
    tmp_path: Path, tokenizer: Any, text: str
) -> None:
    """Fault 18: killed while the line was written."""
    with pytest.raises(StoppedError):
        large(tmp_path, tokenizer, text, progress=stop_in(7))
    manifest = tmp_path / ".parts" / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    seen: set[int] = set()
    result = large(tmp_path, tokenizer, text, progress=lambda step: seen.add(step.window))
    assert seen == set(range(4, 11))
    assert result.run["blocks"]["failed"] == []


@pytest.mark.usefixtures("_small")
def test_a_run_killed_as_it_ends_is_finished_by_the_same_call(tmp_path: Path, tokenizer: Any, text: str) -> None:
    """Fault 18: its parts are in place, its record is not."""
    large(tmp_path, tokenizer, text)
    before = digests(tmp_path / "parts")
    (tmp_path / "run.json").unlink()
    with pytest.raises(OutputError, match="holds no finished run"):
        ScanResult.load(tmp_path)
    seen: list[Step] = []
    large(tmp_path, tokenizer, text, progress=seen.append)
    assert seen == []
    assert digests(tmp_path / "parts") == before
    assert ScanResult.load(tmp_path).heads.height == 15


@pytest.mark.usefixtures("_small")
def test_blocks_that_fail_are_named_and_tried_again_by_the_same_call(
    tmp_path: Path, tokenizer: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 34."""
    start = ScanMeasurer.start

    def fail(self: Any, number: int) -> Any:
        if number in (5, 10):
            raise ValueError(f"nothing to be done about window {number}")
        return start(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(ScanMeasurer, "start", fail)
        result = large(tmp_path / "run", tokenizer, text)
    reason = "ValueError: nothing to be done about window"
    assert result.run["blocks"]["failed"] == [
        {"block": 2, "first_window": 4, "last_window": 5, "reason": f"{reason} 5", "attempts": 1},
        {"block": 5, "first_window": 10, "last_window": 10, "reason": f"{reason} 10", "attempts": 1},
    ]
    rows: Any = result.rows
    assert rows.select("window").unique().collect()["window"].sort().to_list() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert result.overview.windows == 8
    seen: set[int] = set()
    again = large(tmp_path / "run", tokenizer, text, progress=lambda step: seen.add(step.window))
    assert seen == {4, 5, 10}
    assert again.run["blocks"]["failed"] == []
    assert again.overview.windows == 11
    large(tmp_path / "whole", tokenizer, text)
    assert digests(tmp_path / "run" / "parts") == digests(tmp_path / "whole" / "parts")


def test_the_same_of_a_run_that_is_joined(
    tmp_path: Path, model_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 34: exit code 3, the block named; then 0, and the tables of an undisturbed run."""
    from attnscope.cli import run

    (tmp_path / "book.txt").write_text(text)
    command = ["scan", str(model_folder), "--text", str(tmp_path / "book.txt"), "--length", "32", "--windows", "4"]
    start = ScanMeasurer.start

    def fail(self: Any, number: int) -> Any:
        if number == 2:
            raise ValueError("not this one")
        return start(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(ScanMeasurer, "start", fail)
        assert run([*command, "--out", str(tmp_path / "run")]) == 3
    assert "block 2 (windows 2 to 2) failed: ValueError: not this one" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["blocks"]["failed"][0]["block"] == 2
    assert ScanResult.load(tmp_path / "run").rows["window"].unique().to_list() == [0, 1, 3]
    for folder in ("run", "whole"):
        assert run([*command, "--out", str(tmp_path / folder)]) == 0
    for name in ("rows.parquet", "topn.parquet"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "run" / ".parts").exists()


def test_a_run_takes_the_place_of_an_older_one_of_another_size(
    tmp_path: Path, tokenizer: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(build("gpt2"), text, tokenizer=tokenizer, length=16, top_n=[3], out=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tables, "MOST_LINES", 100)
        large(tmp_path, tokenizer, text)
        assert not (tmp_path / "rows.parquet").exists()
        assert ScanResult.load(tmp_path).overview.windows == 11
    small = scan(build("gpt2"), text, tokenizer=tokenizer, length=16, top_n=[3], out=tmp_path)
    assert not (tmp_path / "parts").exists()
    assert ScanResult.load(tmp_path).rows.equals(small.rows)


@pytest.mark.usefixtures("_small")
def test_a_large_run_is_saved_elsewhere_and_a_damaged_part_is_named(tmp_path: Path, tokenizer: Any, text: str) -> None:
    result = large(tmp_path / "run", tokenizer, text)
    result.save(tmp_path / "copy")
    assert digests(tmp_path / "copy" / "parts") == digests(tmp_path / "run" / "parts")
    assert_frame_equal(ScanResult.load(tmp_path / "copy").heads, result.heads)
    part = tmp_path / "run" / "parts" / "rows-00003.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(OutputError, match=r"rows-00003.parquet' is missing or damaged; scan again"):
        ScanResult.load(tmp_path / "run")


def test_a_diagnosis_of_a_large_run_looks_at_some_of_its_windows(
    tmp_path: Path, tokenizer: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_LINES", 100)
    monkeypatch.setattr("attnscope.scanning.running._MOST_DIAGNOSED", 3)
    result = large(tmp_path, tokenizer, text, diagnose=True)
    assert result.findings is not None
    assert result.findings["windows"] == 3
    assert result.heads["state"].null_count() == 0


@pytest.mark.usefixtures("_small")
def test_the_server_lists_a_run_in_progress_and_deletes_it_when_it_is_done(
    tmp_path: Path, tokenizer: Any, text: str
) -> None:
    from attnscope.serve.library import Library

    library, listed = Library(tmp_path), []

    def look(step: Step) -> None:
        listed.extend(library.entries())
        if (step.window, step.layer) == (5, 1):
            with pytest.raises(OutputError, match="another attnscope process is writing"):
                library.delete("run")
            raise StoppedError

    with pytest.raises(StoppedError):
        large(tmp_path / "run", tokenizer, text, progress=look)
    assert {(entry.state, entry.finished_windows, entry.windows) for entry in listed} == {
        ("running", 2, 11),
        ("running", 4, 11),
    }
    (stopped,) = library.entries()
    assert (stopped.state, stopped.finished_windows, stopped.text) == ("stopped", 4, "the string given")
    large(tmp_path / "run", tokenizer, text)
    assert [entry.state for entry in library.entries()] == ["finished"]
    library.delete("run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("_small")
def test_a_full_disk_ends_a_run_that_the_same_call_finishes(
    tmp_path: Path, tokenizer: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 34: no block is half written."""
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if "00003" in self.name:
            write(self, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OutputError, match=r"cannot write to .*: No space left on device"):
            large(tmp_path / "run", tokenizer, text)
    seen: set[int] = set()
    large(tmp_path / "run", tokenizer, text, progress=lambda step: seen.add(step.window))
    assert seen == set(range(6, 11))
    large(tmp_path / "whole", tokenizer, text)
    assert digests(tmp_path / "run" / "parts") == digests(tmp_path / "whole" / "parts")
