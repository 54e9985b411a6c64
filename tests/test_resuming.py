"""A run that is interrupted goes on where it stopped, and ends with the tables of an undisturbed one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from models import build

from attnscope.cli import run
from attnscope.errors import OutputError
from attnscope.scanning import ScanResult, Step, scan

OPTIONS: dict[str, Any] = {"length": 23, "windows": 4, "top_n": [1, 3], "bounds": "paper"}


class StoppedError(Exception):
    pass


def stop_in(window: int) -> Any:
    def stop(step: Step) -> None:
        if (step.window, step.layer) == (window, 1):
            raise StoppedError

    return stop


@pytest.fixture
def interrupted(tmp_path: Path, tokenizer: Any, text: str) -> Path:
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        scan(build("gpt2"), text, tokenizer=tokenizer, out=out, progress=stop_in(2), **OPTIONS)
    return out


def test_an_interrupted_run_goes_on_where_it_stopped(
    interrupted: Path, tmp_path: Path, tokenizer: Any, text: str
) -> None:
    """Faults 17 and 18."""
    assert [path.name for path in interrupted.iterdir()] == [".parts"]
    seen: list[int] = []
    again = scan(
        build("gpt2"), text, tokenizer=tokenizer, out=interrupted, progress=lambda s: seen.append(s.window), **OPTIONS
    )
    assert set(seen) == {2, 3}
    whole = scan(build("gpt2"), text, tokenizer=tokenizer, out=tmp_path / "whole", **OPTIONS)
    assert again.rows.equals(whole.rows)
    assert again.topn.equals(whole.topn)
    for name in ("rows.parquet", "topn.parquet"):
        assert (interrupted / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (interrupted / ".parts").exists()
    assert ScanResult.load(interrupted).rows.equals(whole.rows)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ("settings", r"settings.top_n is \[1, 3\] there and \[2\] here"),
        ("text", "text differs"),
        ("weights", "weights differs"),
    ],
)
def test_another_run_is_refused_in_the_folder_of_an_unfinished_one(
    change: str, differs: str, interrupted: Path, tokenizer: Any, text: str
) -> None:
    model, options = build("gpt2"), dict(OPTIONS)
    if change == "settings":
        options["top_n"] = [2]
    elif change == "text":
        text = "Another text. " + text
    else:
        model.transformer.h[2].mlp.c_fc.weight.data.mul_(1.01)
    before = {path.name: path.read_bytes() for path in (interrupted / ".parts").iterdir()}
    with pytest.raises(OutputError, match=f"unfinished run that is not this one: {differs}. Repeat its own command"):
        scan(model, text, tokenizer=tokenizer, out=interrupted, **options)
    assert {path.name: path.read_bytes() for path in (interrupted / ".parts").iterdir()} == before


def test_a_damaged_part_is_measured_anew(interrupted: Path, tokenizer: Any, text: str) -> None:
    """Fault 19."""
    part = interrupted / ".parts" / "topn-00001.parquet"
    part.write_bytes(part.read_bytes()[:50])
    seen: list[int] = []
    scan(build("gpt2"), text, tokenizer=tokenizer, out=interrupted, progress=lambda s: seen.append(s.window), **OPTIONS)
    assert set(seen) == {1, 2, 3}


def test_a_run_stopped_before_its_first_window_leaves_nothing(tmp_path: Path, tokenizer: Any, text: str) -> None:
    with pytest.raises(StoppedError):
        scan(build("gpt2"), text, tokenizer=tokenizer, out=tmp_path / "run", progress=stop_in(0), **OPTIONS)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_says_how_to_go_on(
    model_folder: Path, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 17."""
    from attnscope.scanning.measuring import ScanMeasurer

    book = tmp_path / "book.txt"
    book.write_text(text)
    out = tmp_path / "a run"
    command = ["scan", str(model_folder), "--text", str(book), "--length", "32", "--windows", "3", "--out", str(out)]
    start = ScanMeasurer.start

    def interrupt(self: Any, number: int) -> Any:
        if number == 1:
            raise KeyboardInterrupt
        return start(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(ScanMeasurer, "start", interrupt)
        assert run(command) == 130
    assert f"--out '{out}' to resume" in capsys.readouterr().err
    assert run(command) == 0


def test_killed_at_any_moment_the_same_command_ends_with_the_same_tables(
    model_folder: Path, tmp_path: Path, text: str
) -> None:
    """Fault 18: kill -9 once the first window is kept."""
    book = tmp_path / "book.txt"
    book.write_text(text)
    command = [
        "scan",
        str(model_folder),
        "--text",
        str(book),
        "--length",
        "64",
        "--windows",
        "9",
        "--rows",
        "all",
        "--out",
    ]
    started = [sys.executable, "-m", "attnscope.cli", *command, str(tmp_path / "run")]
    with subprocess.Popen(started, stdout=subprocess.DEVNULL) as process:
        parts = tmp_path / "run" / ".parts"
        while process.poll() is None and not (parts / "manifest.jsonl").exists():
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -9, "the run ended before it could be killed"
    assert run([*command, str(tmp_path / "run")]) == 0
    assert run([*command, str(tmp_path / "whole")]) == 0
    for name in ("rows.parquet", "topn.parquet"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir()
    )


def test_a_run_of_the_first_schema_is_refused_by_its_version(tmp_path: Path, tokenizer: Any, text: str) -> None:
    scan(build("gpt2"), text, tokenizer=tokenizer, length=17, top_n=[2], out=tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"schema": 1}))
    with pytest.raises(OutputError, match=r"an older attnscope .schema 1"):
        ScanResult.load(tmp_path / "run")


def test_a_report_that_cannot_be_made_loses_nothing(
    tokenizer: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnscope.scanning import result as page

    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("no drawing today")

    (tmp_path / "report.html").write_text("of an older run")
    with monkeypatch.context() as patch:
        patch.setattr(page, "render", fail)
        with pytest.raises(
            OutputError, match=r"tables and findings.json are saved in .*RuntimeError: no drawing today"
        ):
            scan(build("gpt2"), text * 8, tokenizer=tokenizer, length=32, diagnose=True, out=tmp_path)
    assert not (tmp_path / "report.html").exists()  # the older one would not match the tables
    assert not (tmp_path / ".parts").exists()
    saved = ScanResult.load(tmp_path)
    assert saved.rows.height > 0
    assert len(saved.findings["heads"]) == 15
    saved.save(tmp_path)
    assert 'id="data"' in (tmp_path / "report.html").read_text()
    again = ScanResult.load(tmp_path)
    assert again.rows.equals(saved.rows)
    assert again.findings == saved.findings
