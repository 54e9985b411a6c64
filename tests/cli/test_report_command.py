"""`attnscope report`: the page of a saved run, written where it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from every_kind import EVERY_KIND
from models import build
from training_runs import Training

from attnscope.cli import run
from attnscope.scanning import ScanResult, scan
from attnscope.show.page import unpacked
from attnscope.store.kinds import kinds, load_run


@pytest.fixture(scope="module")
def saved(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> ScanResult:
    folder = tmp_path_factory.mktemp("saved") / "run"
    scan(build("gpt2"), "Some text that goes on, and on. " * 9, tokenizer=tokenizer, length=32, out=folder)
    return ScanResult.load(folder)


def test_the_page_is_that_of_the_run_and_nothing_else_changes(
    saved: ScanResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert saved.folder
    before = {path: path.stat().st_mtime_ns for path in saved.folder.rglob("*")}
    assert run(["report", str(saved.folder), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text("utf-8") == saved.page()
    assert list(tmp_path.iterdir()) == [tmp_path / "page.html"]
    assert {path: path.stat().st_mtime_ns for path in saved.folder.rglob("*")} == before
    assert str(saved.summary()).splitlines()[0] in capsys.readouterr().out


def test_without_out_the_page_is_in_the_folder(saved: ScanResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert saved.folder
    page = saved.folder / "report.html"
    page.unlink(missing_ok=True)
    assert run(["report", str(saved.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kind": "scan", "page": str(page)}
    assert page.read_text("utf-8") == saved.page()


@pytest.mark.parametrize("out", [".", "missing/page.html"])
def test_a_place_that_cannot_be_written_is_one_line(
    saved: ScanResult, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(saved.folder), "--out", str(tmp_path / out)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(tmp_path) in told


def test_a_run_that_is_still_training_is_reported_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path / "run")  # which holds the lock of its folder
    training.measure(50)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.*")}
    assert run(["report", str(tmp_path / "run")]) == 0
    assert "1 measured step up to step 50, still training" in capsys.readouterr().out
    data = unpacked((tmp_path / "run" / "report.html").read_text("utf-8").split('id="data">')[1].split("<")[0])
    assert data["status"] == "training"
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.*")}
    assert set(after) - set(before) == {tmp_path / "run" / "report.html"}
    assert before.items() <= after.items()
    training.measure(100)  # the writer goes on


def test_a_folder_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path)]) == 2
    assert "holds no finished run" in capsys.readouterr().err


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_run_of_every_kind_has_a_page_and_a_summary(
    runs_of_every_kind: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert run(["report", str(runs_of_every_kind / name), "--out", str(page)]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3
    written = page.read_text("utf-8")
    assert written.lower().startswith("<!doctype html>")
    title = written.split("<title>")[1].split("</title>")[0]
    assert title not in ("", type(load_run(runs_of_every_kind / name)).__name__)
    assert run(["report", str(runs_of_every_kind / name), "--out", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] in {kind.name for kind in kinds()}
