"""A complete reproduction of a tiny model: files, cache, claims and command."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import polars as pl
import pytest

from attnscope.cli import run
from attnscope.errors import OutputError
from attnscope.intervals import Estimate
from attnscope.show import figure_files
from attnscope.show.figure_files import FigureStyle
from attnscope.studies.paper import Reproduction, reproduce
from attnscope.studies.paper.evidence import Measurement
from attnscope.studies.paper.figures import draw

SETTINGS = {"length": 64, "windows": 3}
OF_VECTORS = [f"figure-{number}-value" for number in ("2a", "2b", "2c", "3")]
FIGURES = ["figure-1", *OF_VECTORS, "figure-4-raw", "figure-4-scaled"]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("The quick brown fox jumps over the lazy dog; 0123456789 (again). " * 9, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(model_folder: Path, book: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return reproduce(str(model_folder), book, out=tmp_path_factory.mktemp("out"), **SETTINGS)


def test_every_figure_is_saved_with_its_data_and_caption(done: Reproduction) -> None:
    folder = done.folder / "figures" / "protocol"
    assert list(json.loads((folder / "captions.json").read_text("utf-8"))) == FIGURES
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (folder / f"{name}.svg").read_text("utf-8").startswith("<svg")
        assert len(pl.read_parquet(folder / f"{name}.parquet")) > 1


def test_claims_are_written_as_returned(done: Reproduction) -> None:
    claims = json.loads((done.folder / "claims.json").read_text("utf-8"))["claims"]
    assert claims == done.claims
    table = (done.folder / "claims.md").read_text("utf-8").splitlines()
    assert len(table) == 2 + len(claims)
    for line, claim in zip(table[2:], claims, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 7, line
        assert cells[1] == claim["place"]
        assert cells[-1].startswith(claim["verdict"])


@pytest.mark.parametrize(
    ("interval", "verdict"), [((0.9, 1.1), "agrees"), ((1.2, 1.4), "disagrees"), ((1.0, 1.4), "depends")]
)
def test_the_rule(interval: tuple[float, float], verdict: str) -> None:
    assert Measurement("x", Estimate(1.0, *interval), (0.9, 1.1)).verdict == verdict


def test_a_chart_is_drawn_again_if_it_changed_or_its_picture_did(
    done: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"figure-2c": draw(done.tables)["figure-2c-value"]}
    drawn: list[str] = []

    def render(specification: str) -> tuple[bytes, bytes, bytes]:
        drawn.append(specification)
        return b"<svg/>", b"%PDF", b"PNG"

    monkeypatch.setattr(figure_files, "render", render)
    folder = tmp_path / "figures"
    folder.mkdir()
    for style, times in ((FigureStyle(), 1), (FigureStyle(), 1), (FigureStyle("one-column"), 2)):
        figure_files.draw_into(folder, one, style)
        assert len(drawn) == times
    (folder / "figure-2c.pdf").write_bytes(b"half")
    figure_files.draw_into(folder, one, FigureStyle("one-column"))
    assert len(drawn) == 3
    assert (folder / "figure-2c.pdf").read_bytes() == b"%PDF"


def test_a_second_run_draws_from_the_tables(
    done: Reproduction,
    model_folder: Path,
    book: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from attnscope.capture import models

    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(models, "load_model", loaded)
    again = reproduce(str(model_folder), book, out=done.folder, **SETTINGS)
    assert again.reused
    assert again.claims == done.claims
    with pytest.raises(AssertionError, match="the model was loaded"):
        reproduce(str(model_folder), book, out=done.folder, **(SETTINGS | {"seed": 1}))
    assert "different settings; measuring again" in capsys.readouterr().err
    table = done.folder / "tables" / "protocol_rows.parquet"
    whole = table.read_bytes()
    table.write_bytes(whole[:-9])
    with pytest.raises(AssertionError, match="the model was loaded"):
        reproduce(str(model_folder), book, out=done.folder, **SETTINGS)
    assert "protocol_rows.parquet is damaged; measuring again" in capsys.readouterr().err
    record = done.folder / "run.json"
    newest = record.read_text("utf-8")
    older = json.loads(newest)
    older["identity"]["schema"] = 3
    record.write_text(json.dumps(older), "utf-8")
    with pytest.raises(AssertionError, match="the model was loaded"):
        reproduce(str(model_folder), book, out=done.folder, **SETTINGS)
    assert "different schema; measuring again" in capsys.readouterr().err
    with pytest.raises(OutputError, match="an older version of attnscope wrote it"):
        Reproduction.load(done.folder)
    record.write_text(newest, "utf-8")
    table.write_bytes(whole)


def test_the_command_prints_one_json_object(
    done: Reproduction, model_folder: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", str(model_folder), "--text", str(book), "--length", "64", "--windows", "3"]
    assert run([*command, "--out", str(done.folder), "--json"]) == 0
    answered = json.loads(capsys.readouterr().out)
    assert answered["figures"] == done.figures
    assert all(Path(path).is_file() for path in answered["figures"].values())
    assert answered["run"]["settings"]["vectors"] == ["value"]
    assert answered["reused"]
    assert answered["claims"] == done.claims


def test_the_next_step_prints_every_reading_and_measures_nothing(
    done: Reproduction, model_folder: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", str(model_folder), "--text", str(book), "--length", "64", "--windows", "3"]
    assert run([*command, "--out", str(done.folder)]) == 0
    assert f"attnscope report {done.folder} --verbose" in " ".join(capsys.readouterr().out.split())
    record = (done.folder / "run.json").read_bytes()
    assert run(["report", str(done.folder), "--verbose"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    headings = [line.split() for line in lines if line.startswith("Reading")]
    assert headings == [["Reading", "Measured", "Verdict"]] * sum(bool(claim["readings"]) for claim in done.claims)
    assert (done.folder / "run.json").read_bytes() == record


def test_the_page_has_the_figures_and_every_claim(done: Reproduction) -> None:
    page = (done.folder / "report.html").read_text("utf-8")
    assert done.page() == page
    assert page.count("<img ") == len(FIGURES)
    assert all(escape(claim["claim"]) in page for claim in done.claims)
    assert f"<title>reproduction on {Path(done.run['model']['name']).name}</title>" in page
    folds = page.split("<summary>")[2:]  # the first is not of a claim
    assert all(
        fold.split("</summary>")[0].endswith(escape(claim["claim"])) and f"{claim['id']}: " in fold
        for fold, claim in zip(folds, done.claims, strict=True)
    )
    assert str(done.summary()).count("\n") < 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vectors", "values"], "received 'values'"),
        (["--windows", "0"], "--windows takes a whole number from 1 up"),
        (["--length", "3"], "--length takes a whole number from 8 up"),
        (["--figure-width", "wide"], "--figure-width"),
        (["--first-key", "lost"], "--first-key"),
        (["--text", "corpus:nothing"], "unknown corpus"),
        (["--windows", "99"], "too few for"),
        (["--rows", "last"], "attnscope: --rows is gone: all rows are measured\n"),
        (["--draws", "4"], "attnscope: --draws is gone: all rows are measured\n"),
    ],
)
def test_bad_usage_ends_with_two(
    model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    given = {"--text": str(book), "--length": "32", "--out": str(tmp_path / "out")} | {options[0]: options[1]}
    assert run(["reproduce", str(model_folder), *(part for pair in given.items() for part in pair)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
