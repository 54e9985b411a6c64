"""The files of a training run: readable at any moment, whole after a crash, kept apart from other kinds of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import attnscope
from attnscope.errors import OutputError
from attnscope.monitor import run_files
from attnscope.monitor.run_files import HEADS, TrainingFiles
from attnscope.serve.library import Library

RUN: dict[str, Any] = {"status": "running", "steps": 0, "model": {"name": "tiny"}, "settings": {}}


def lines(step: int, layers: int = 2, heads: int = 3) -> pl.DataFrame:
    keys = [(step, layer, head) for layer in range(layers) for head in range(heads)]
    return pl.DataFrame(
        [
            dict.fromkeys(HEADS) | {"step": step, "layer": layer, "head": head, "rows": 4, "entropy_ratio": head / 9}
            for step, layer, head in keys
        ],
        schema=HEADS,
    )


def alarm(step: int) -> dict[str, Any]:
    return {"step": step, "layer": 1, "head": 2, "kind": "dilution", "value": 1.0, "limit": 0.9, "advice": "look"}


def started(folder: Path) -> TrainingFiles:
    files = TrainingFiles(folder)
    files.write_record(RUN)
    return files


def test_every_finished_step_can_be_read_while_training_runs(tmp_path: Path) -> None:
    files = started(tmp_path / "run")
    for step in (1, 2, 3):
        files.add_table("heads", lines(step))
        files.add_lines("scalars", [{"step": step, "name": "loss", "value": 1 / step}])
        read = attnscope.monitor.load(tmp_path / "run")
        assert read.heads.equals(pl.concat([lines(each) for each in range(1, step + 1)]))
        assert read.scalars["value"].to_list() == [1 / each for each in range(1, step + 1)]
    files.add_lines("alarms", [alarm(3)])
    files.close()
    assert attnscope.monitor.load(tmp_path / "run").alarms.to_dicts() == [alarm(3)]


def test_full_parts_are_followed_by_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_PART_LINES", 12)
    files = started(tmp_path)
    for step in range(1, 6):
        files.add_table("heads", lines(step))
    assert len(list((tmp_path / "heads").iterdir())) == 3
    assert attnscope.monitor.load(tmp_path).heads.equals(pl.concat([lines(step) for step in range(1, 6)]))


def test_a_resumed_run_drops_the_steps_after_the_one_it_goes_on_from(tmp_path: Path) -> None:
    files = started(tmp_path)
    for step in (10, 20, 30):
        files.add_table("heads", lines(step))
        files.add_lines("alarms", [alarm(step)])
    files.close()
    resumed = TrainingFiles(tmp_path)
    resumed.keep_until(20)
    resumed.add_table("heads", lines(25))
    read = attnscope.monitor.load(tmp_path)
    assert read.heads["step"].unique().to_list() == [10, 20, 25]
    assert read.alarms["step"].to_list() == [10, 20]


def test_a_run_that_goes_back_while_it_is_open_drops_them_too(tmp_path: Path) -> None:
    files = started(tmp_path)
    for step in (10, 20, 30):
        files.add_table("heads", lines(step))
    files.keep_until(20)
    files.add_table("heads", lines(25))
    assert attnscope.monitor.load(tmp_path).heads["step"].unique().to_list() == [10, 20, 25]


def test_lines_and_parts_that_were_cut_off_hide_no_others(tmp_path: Path) -> None:
    files = started(tmp_path)
    files.add_table("heads", lines(1))
    files.add_lines("alarms", [alarm(1)])
    with (tmp_path / "alarms.jsonl").open("a") as file:
        file.write(json.dumps(alarm(2))[:20])
    (tmp_path / "heads" / "part-000000002.parquet").write_bytes(b"PAR1")
    files.add_lines("alarms", [alarm(3)])
    read = attnscope.monitor.load(tmp_path)
    assert read.heads.equals(lines(1))
    assert read.alarms["step"].to_list() == [1, 3]


def test_a_step_that_could_not_be_written_is_written_with_the_next(tmp_path: Path) -> None:
    files = started(tmp_path)
    (tmp_path / "heads").write_text("in the way")
    with pytest.raises(OutputError):
        files.add_table("heads", lines(1))
    (tmp_path / "heads").unlink()
    files.add_table("heads", lines(2))
    assert attnscope.monitor.load(tmp_path).heads.equals(pl.concat([lines(1), lines(2)]))


def test_numbers_that_json_lacks_are_missing(tmp_path: Path) -> None:
    files = started(tmp_path)
    files.add_lines("scalars", [{"step": 1, "name": "loss", "value": float("nan")}])
    assert attnscope.monitor.load(tmp_path).scalars["value"].to_list() == [None]


@pytest.mark.parametrize("name", ["run.json", "compare.json"])
def test_the_folder_of_another_kind_of_run_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"schema": 2}')
    with pytest.raises(OutputError, match="another kind of run; choose another folder"):
        TrainingFiles(tmp_path)
    with pytest.raises(OutputError, match="holds no training run"):
        attnscope.monitor.load(tmp_path)


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    files = started(tmp_path)
    with pytest.raises(OutputError, match="another attnscope process is writing"):
        TrainingFiles(tmp_path)
    files.close()
    TrainingFiles(tmp_path).close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"kind": "training", "schema": 99}')
    with pytest.raises(OutputError, match="newer attnscope"):
        attnscope.monitor.load(tmp_path)


def test_the_embedded_model_is_called_sample_and_a_closed_run_is_listed_as_finished(tmp_path: Path) -> None:
    module = attnscope.load_model().module
    monitor = attnscope.Monitor(module, out=tmp_path / "run")
    library = Library(tmp_path)
    assert [(entry.model, entry.state) for entry in library.entries()] == [("sample", "training")]
    monitor.close()
    assert [(entry.model, entry.state) for entry in library.entries()] == [("sample", "finished")]
    assert "sample" in library.page("run")
