"""Reading a training run: all at once or as it grows, and whether it goes on."""

from __future__ import annotations

import os
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from training_runs import Training, made_alarm

import attnscope
from attnscope.errors import OutputError
from attnscope.monitor import run_files, run_files as run_reading
from attnscope.monitor.run_files import Position, WentBackError, read_after
from attnscope.monitor.training_run import status_of

TABLES = ("heads", "parameters", "alarms", "scalars")


@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_piece_by_piece_is_all_of_it_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "_PART_LINES", 40)  # parts of three steps
    chance = random.Random(seed)
    training = Training(tmp_path / "run")
    position, pieces = Position(), []
    for step in range(1, 30):
        training.measure(step, tuple(made_alarm(step, head=head) for head in range(chance.choice([0, 0, 1, 3]))))
        if chance.random() < 0.4:
            piece, position = read_after(tmp_path / "run", Position.parse(str(position)))
            pieces.append(piece)
    piece, position = read_after(tmp_path / "run", position)
    pieces.append(piece)
    whole = attnscope.monitor.load(tmp_path / "run")
    assert whole.heads["step"].unique().to_list() == list(range(1, 30))
    for name in TABLES:
        assert pl.concat([getattr(piece, name) for piece in pieces]).equals(getattr(whole, name))
    assert read_after(tmp_path / "run", position)[1] == position


def test_parts_that_were_read_are_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_PART_LINES", 30)  # two steps
    training = Training(tmp_path)
    for step in range(1, 21):
        training.measure(step)
    opened: list[str] = []
    read = run_reading.read_part

    def note(file: Path, schema: Any) -> pl.DataFrame:
        opened.append(file.name)
        return read(file, schema)

    monkeypatch.setattr(run_reading, "read_part", note)
    found, _ = read_after(tmp_path, Position(step=17))
    assert found.heads["step"].unique().to_list() == [18, 19, 20]
    assert opened == ["part-000000017.parquet", "part-000000019.parquet"]


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.measure(1, (made_alarm(1),))
    _, position = read_after(tmp_path, Position())
    line = (tmp_path / "alarms.jsonl").read_bytes()
    with (tmp_path / "alarms.jsonl").open("ab") as file:
        file.write(line[:30])
        file.flush()
        piece, position = read_after(tmp_path, position)
        assert piece.alarms.is_empty()
        file.write(line[30:])
    assert read_after(tmp_path, position)[0].alarms.height == 1


@pytest.mark.parametrize("resumed_at", [20, 25])
def test_a_run_that_went_back_is_noticed(resumed_at: int, tmp_path: Path) -> None:
    training = Training(tmp_path)
    for step in (10, 20, 30):
        training.measure(step)
    _, position = read_after(tmp_path, Position())
    training.files.keep_until(20)
    if resumed_at > 20:  # it has passed the place already
        for step in (25, 30, 35):
            training.measure(step)
    with pytest.raises(WentBackError):
        read_after(tmp_path, position)


@pytest.mark.parametrize("text", ["", "1", "1-2-3-4", "1-2-3-4-x", "1-2-3-4-5-6"])
def test_other_texts_are_no_position(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Position.parse(text)


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "interval", "silence", "expected"),
    [
        ("finished", 1, 10_000, "finished"),
        ("failed", 1, 1, "failed"),
        ("running", 1, 119, "training"),
        ("running", 1, 121, "stopped"),
        ("running", None, 121, "stopped"),
        ("running", 500, 2499, "training"),
        ("running", 500, 2501, "stopped"),
    ],
)
def test_a_run_that_is_silent_for_long_has_stopped(
    status: str, interval: float | None, silence: int, expected: str
) -> None:
    record = {"status": status, "interval": interval}
    assert status_of(record, START, START + timedelta(seconds=silence)) == expected


def test_a_run_that_was_killed_is_read_as_stopped(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.measure(50)
    training.files.close()
    assert attnscope.load_run(tmp_path).status == "training"  # type: ignore[union-attr]
    for file in tmp_path.rglob("*.*"):
        os.utime(file, (START.timestamp(), START.timestamp()))
    stopped: Any = attnscope.load_run(tmp_path)
    assert stopped.status == "stopped"
    assert stopped.updated == START
    assert "stopped without being closed" in " ".join(repr(stopped).split())


@pytest.mark.parametrize("changed", [{"model": None}, {"model": {"name": 3}}, {"settings": []}, {"schema": None}])
def test_a_damaged_record_is_refused_in_one_line(changed: dict[str, Any], tmp_path: Path) -> None:
    Training(tmp_path, **changed)
    with pytest.raises(OutputError, match=re.escape(str(tmp_path))):
        attnscope.load_run(tmp_path)
