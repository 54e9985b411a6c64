"""Every table of the terminal at 80 columns: no cell is cut, no word broken, no two headings are the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from protocol_tables import protocol_tables
from rich.console import Console
from terminal_tables import assert_readable, recorded_tables

from attnscope.cli import run
from attnscope.show import terminal
from attnscope.studies.audit import AuditReport, ClaimReport, Trial
from attnscope.studies.audit.referee import CLAIMS
from attnscope.studies.paper.claims import answer
from attnscope.studies.paper.view import blocks

CONSOLE = {"width": 80, "force_terminal": True, "color_system": None}


@pytest.fixture
def book(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a book.txt"
    path.write_text(text * 4, encoding="utf-8")
    return path


WHAT_IFS = "adaptive_temperature:temperature=2.125,entmax:alpha=1.2,entmax:alpha=1.25,topk:k=8:temperature=1.125"


@pytest.mark.parametrize(
    ("arguments", "tables"),
    [
        (["scan", "--windows", "3", "--bounds", "paper", "--verbose"], 4),
        (["scan", "--normalizer", WHAT_IFS, "--verify", "--verbose"], 7),
        (["compare", "--normalizers", f"softmax,sparsemax,{WHAT_IFS}", "--calibrate", "global"], 4),
        pytest.param(
            ["compare", "--normalizers", "softmax,sparsemax", "--calibrate", "head", "--verbose"],
            4,
            marks=pytest.mark.thorough,
        ),
        (["guidelines"], 3),
        (["budget", "--windows", "3"], 2),
        (["doctor", "--verbose"], 1),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_tables_of_commands_on_a_model(
    arguments: list[str], tables: int, model_folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lengths = {
        "scan": ["--length", "64"],
        "budget": ["--length", "64"],
        "compare": ["--lengths", "16,48"],
        "guidelines": ["--lengths", "16,48"],
    }
    options = [] if arguments[0] == "doctor" else ["--text", str(book), "--out", str(tmp_path / "out")]
    sizes = ["--top-n", "5"] if arguments[0] in ("compare", "guidelines") else []
    command = [*arguments[:1], str(model_folder), *arguments[1:], *options, *sizes, *lengths.get(arguments[0], [])]
    with recorded_tables() as found:
        assert run(command) == 0
    assert len(found) >= tables
    for table in found:
        assert_readable(table)


def test_tables_of_a_reproduction() -> None:
    run = {
        "model": {"name": "tiny", "layers": 2, "heads": 6}, "text": {"source": "a book"},
        "settings": {"windows": 2, "lengths": [32], "first_key": "kept"},
    }  # fmt: skip
    with recorded_tables() as found:
        claims = answer(protocol_tables(windows=2, vectors=("value", "hidden_unit", "embedding")))
        terminal.text(blocks(claims, run), verbose=True)
    assert len(found) > len(claims)
    for table in found:
        assert_readable(table)


def test_the_table_of_an_audit() -> None:
    def trial(statement: str, violations: int) -> Trial:
        return Trial(statement, 1000, 12345, violations, True, 1.0, 1.0, 0.0, None)

    verdicts: Any = ("holds", "holds with condition", "fails", "vacuous")
    claims = [
        ClaimReport(
            claim.id,
            claim.place,
            claim.space.name,
            verdicts[index % len(verdicts)],
            trial(claim.printed.statement, 1000 * (index % 2)) if claim.printed else None,
            tuple(trial(form.statement, 1000) for form in claim.corrected),
            None,
            None,
            "",
        )
        for index, claim in enumerate(CLAIMS)
    ]
    with recorded_tables() as found:
        AuditReport("full", 0, tuple(claims)).print_summary(Console(file=io.StringIO(), **CONSOLE))
    (table,) = found
    assert_readable(table)
    assert {"by attack", "100.0%"} <= set(table.cells)
