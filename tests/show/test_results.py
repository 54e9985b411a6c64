"""What a comparison, a reproduction and an audit show of themselves, and runs that are read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from models import build, byte_tokenizer

import attnscope
from attnscope.diagnosis.running import diagnose
from attnscope.errors import InputError, OutputError
from attnscope.scanning import scan
from attnscope.serve.library import foreign_files
from attnscope.show.result import Result, Summary, bounded
from attnscope.studies.audit import AuditReport, audit
from attnscope.studies.compare.comparing import Comparison, compare
from attnscope.studies.paper.reproduction import Reproduction, reproduce

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(build("gpt2"), TEXT, ["softmax", "sparsemax"], tokenizer=byte_tokenizer(), lengths=[17, 61], top_n=5)


@pytest.fixture(scope="module")
def reproduction(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    out = tmp_path_factory.mktemp("reproduced")
    return reproduce(model_folder, TEXT, out=out, length=64, windows=2, notice=lambda _: None)


@pytest.fixture(scope="module")
def audited() -> AuditReport:
    return audit(["lemma-1", "theorem-2-upper", "corollary-3"])


RESULTS = ["comparison", "reproduction", "audited"]


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_has_the_same_methods(name: str, request: pytest.FixtureRequest) -> None:
    result: Any = request.getfixturevalue(name)
    assert isinstance(result, Result)
    lines = repr(result).splitlines()
    assert lines[0].startswith(f"{type(result).__name__}: ")
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 80
    assert isinstance(result.summary(), Summary)
    assert str(result.summary())


@pytest.mark.parametrize("name", RESULTS)
def test_the_notebook_output_loads_and_runs_nothing(name: str, request: pytest.FixtureRequest) -> None:
    output = request.getfixturevalue(name)._repr_html_()
    assert not re.search(r"https?:|<script|<iframe|<link|\bon\w+=|src=|url\(", output)
    assert len(output.encode()) < 200_000


@pytest.mark.parametrize("name", RESULTS)
def test_show_writes_a_page_with_the_charts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    page = request.getfixturevalue(name).show().read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "data:image/svg+xml;base64," in page
    assert "default-src 'none'" in page
    assert "<script" not in page


def test_a_repr_keeps_to_ten_lines_and_its_last_line() -> None:
    shown = bounded(["Result: " + "word " * 50, *(f"line {i} " + "x " * 80 for i in range(9)), "Next: .summary()"])
    assert len(shown.splitlines()) == 10
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.splitlines()[-1] == "  Next: .summary()"


# Charts


def test_curves_of_a_comparison_have_the_numbers_of_its_table(comparison: Comparison) -> None:
    for mode in ("swapped", "what-if"):
        content = comparison.plot.curve("entropy_ratio", mode).to_dict()
        (values,) = content["datasets"].values()
        expected = {
            (line["normalizer"], line["length"]): line["entropy_ratio"]
            for line in comparison.table.to_dicts()
            if line["mode"] == mode
        }
        assert {(one["name"], one["length"]): one["value"] for one in values} == expected


def test_a_comparison_draws_its_capacity_where_the_model_was_changed(comparison: Comparison) -> None:
    assert vl_convert.vegalite_to_svg(comparison.plot.capacity().to_dict()).startswith("<svg")
    assert comparison.plot.capacity()._repr_mimebundle_()["image/svg+xml"].startswith("<svg")
    what_if = Comparison(comparison.table.filter(mode="what-if"), comparison.run)
    with pytest.raises(InputError, match="capacity needs the mode swapped"):
        what_if.plot.capacity()
    with pytest.raises(InputError, match="no curve of 'state' in mode 'what-if'; there are perplexity"):
        what_if.plot.curve("state")


def test_a_reproduction_draws_its_figures_from_its_tables(reproduction: Reproduction) -> None:
    assert "figure-2a-value" in reproduction.plot.names
    figure = reproduction.plot.figure("figure-3")
    assert vl_convert.vegalite_to_svg(figure.to_dict()).startswith("<svg")
    with pytest.raises(InputError, match="no figure 'figure-9'; there are figure-"):
        reproduction.plot.figure("figure-9")
    with pytest.raises(InputError, match="vectors 'hidden' were not measured; there are value"):
        reproduction.plot.figure("figure-3", vectors="hidden")


def test_the_table_of_an_audit_has_every_form_of_every_claim(audited: AuditReport) -> None:
    for claim in audited.claims:
        lines = audited.table.filter(id=claim.id).to_dicts()
        trials = [claim.printed, claim.conditioned, *claim.corrected]
        assert [line["rate"] for line in lines] == [trial.violations / trial.drawn for trial in trials if trial]
    (values,) = audited.plot.violations().to_dict()["datasets"].values()
    worst = {claim.id: max(trial.rate for trial in claim.corrected) for claim in audited.claims if claim.corrected}
    assert {one["id"]: one["rate"] for one in values if one["form"] == "corrected"} == worst


def test_a_claim_of_an_audit_is_found_by_its_id(audited: AuditReport) -> None:
    assert audited.claim("lemma-1") is audited.claims[0]
    with pytest.raises(InputError, match="no claim 'lemma-9'; there are lemma-1, theorem-2-upper"):
        audited.claim("lemma-9")


def test_an_audit_takes_claims_by_id_and_all_of_them_by_default() -> None:
    from attnscope.studies.audit.referee import CLAIMS, _chosen

    assert _chosen(None) == list(CLAIMS)
    assert _chosen("lemma-1") == [CLAIMS[0]]
    with pytest.raises(InputError, match="no claim is called 'lemma-9'"):
        audit("lemma-9")


# Reading back


def test_a_scan_is_read_back(tmp_path: Path) -> None:
    result = scan(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), length=31, top_n=[3], diagnose=True)
    again = attnscope.load_run(result.save(tmp_path))
    assert isinstance(again, attnscope.ScanResult)
    assert again.heads.equals(result.heads)
    assert again.findings == result.findings
    assert repr(again) == repr(result)


def test_a_comparison_is_read_back(comparison: Comparison, tmp_path: Path) -> None:
    again = attnscope.load_run(comparison.save(tmp_path))
    assert isinstance(again, Comparison)
    assert (tmp_path / "capacity.svg").is_file()
    assert again.table.equals(comparison.table)
    assert again.run == json.loads(json.dumps(comparison.run))


def test_a_reproduction_is_read_back(reproduction: Reproduction) -> None:
    again = attnscope.load_run(str(reproduction.folder))
    assert isinstance(again, Reproduction)
    assert again.claims == json.loads(json.dumps(reproduction.claims))
    assert all(again.tables[name].equals(table) for name, table in reproduction.tables.items())
    assert again.figures == reproduction.figures
    assert repr(again) == repr(reproduction)


def test_a_reproduction_is_saved_elsewhere(reproduction: Reproduction, tmp_path: Path) -> None:
    again = attnscope.load_run(reproduction.save(tmp_path / "copy"))
    assert isinstance(again, Reproduction)
    assert again.folder == tmp_path / "copy"
    assert all(again.tables[name].equals(table) for name, table in reproduction.tables.items())
    assert reproduction.save(reproduction.folder) == reproduction.folder
    assert foreign_files(again.folder) == []


def test_a_comparison_without_a_chart_leaves_none_of_an_older_one(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    settings = comparison.run["settings"] | {"modes": ["what-if"]}
    what_if = Comparison(comparison.table.filter(mode="what-if"), comparison.run | {"settings": settings})
    what_if.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"compare.json", "compare.parquet", "run.json"}


def test_a_diagnosis_is_read_back(tmp_path: Path) -> None:
    found = diagnose(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), length=31, windows=2, rows=8)
    again = attnscope.load_run(found.save(tmp_path))
    assert isinstance(again, attnscope.Diagnosis)
    assert again == found
    assert repr(again) == repr(found)


def test_an_audit_is_read_back(audited: AuditReport, tmp_path: Path) -> None:
    again = attnscope.load_run(audited.save(tmp_path))
    assert again == audited
    assert repr(again) == repr(audited)


@pytest.mark.parametrize(
    ("file", "content"), [("audit.json", "{"), ("audit.json", "[]"), ("findings.json", "{"), ("findings.json", "[]")]
)
def test_a_damaged_file_is_refused(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(OutputError, match=r"cannot be read|holds no JSON object"):
        attnscope.load_run(tmp_path)


def test_a_damaged_reproduction_is_refused(reproduction: Reproduction, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text((reproduction.folder / "run.json").read_text())
    with pytest.raises(OutputError, match=r"cannot be read|is missing|damaged"):
        attnscope.load_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no finished run: there is none of run.json, findings.json"),
        ("{", "run.json in .* cannot be read"),
        ("[]", "run.json in .* cannot be read"),
        ('{"kind": "scan", "schema": 99}', "was written by a newer attnscope"),
    ],
)
def test_a_folder_without_a_run_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(OutputError, match=message):
        attnscope.load_run(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["recall.parquet", "run.json"], r"summary\.parquet is missing"),
        (["scorecard.html", "scorecard.json"], r"scorecard\.json .* is damaged"),
        (["budget.json"], r"comparison\.parquet is missing"),
    ],
)
def test_a_damaged_folder_of_a_study_is_named(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(OutputError, match=message):
        attnscope.load_run(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is not a folder; give one that a run was saved to"):
        attnscope.load_run(tmp_path / "nothing")
