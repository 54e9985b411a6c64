"""One name for one quantity: what `attnscope.columns` declares is what terminal, page, findings and docs say."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from models import build, byte_tokenizer
from terminal_tables import recorded_tables

from attnscope import columns
from attnscope.columns import COLUMNS, head_name, label
from attnscope.diagnosis.running import diagnose
from attnscope.diagnosis.states import Thresholds, limit_words
from attnscope.scanning import ScanResult, scan, view
from attnscope.scanning.page_data import page_data
from attnscope.show import terminal

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = limit_words(Thresholds().as_json()) | {"n": "20", "to": "8,192", "base": "256"}

# Other names that quantities had.
BANNED = (
    r"tokens?[ _-]in[ _-]use",
    r"share[ _]in[ _]use",
    r"\bevenness\b",
    r"(?<!gradient )\bsensitivity\b",  # the paper's section on gradients has it in its title
    r"weight of the first (token|key)\b",
    r"\bfirst_weight\b",
    r"tokens with weight\b",
    r"(?<!\"\")[\"'`>]\s*largest[ _]weight\b",  # as a label; docstrings speak of the largest weight of a row
    r"median largest weight",
    r"range of the logits",
    r"distance to the rest",
    r"weight of the top \{n\}",
    r"growth of the need",
    r"\bworry",
    r"\bL\d+\.h\d+\b",
    r"L\{layer\}\.",
    r"layer (\{|\$\{)[^}]*\},? head ",
)


@pytest.fixture(scope="module")
def result() -> ScanResult:
    text = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "length": 64}
    scanned = scan(build("gpt2"), text, top_n=[5, 20], normalizers=["sparsemax"], **options)
    found = diagnose(build("gpt2"), text, windows=2, rows=16, **options)
    return ScanResult(scanned.rows, scanned.topn, scanned.run, scanned.token_weights, found)


def test_a_label_is_the_name_with_spaces() -> None:
    assert label("sink_weight") == "Sink weight"
    assert label("separability", n=20) == "Separability (N = 20)"
    assert label("sink_weight", n=20) == "Sink weight"
    assert label("kl") == "KL"
    assert all(label(name).lower() == name.replace("_", " ") for name in COLUMNS)


def test_a_head_is_written_l3h5() -> None:
    assert head_name(3, 5) == "L3H5"
    script = (resources.files("attnscope.show.page") / "js" / "format.js").read_text("utf-8")
    assert "return `L${layer}H${head}`;" in script


@pytest.mark.parametrize("column", COLUMNS.values(), ids=list(COLUMNS))
def test_every_meaning_is_one_plain_line(column: columns.Column) -> None:
    assert "\n" not in column.meaning
    assert not column.meaning.endswith(".")
    sentence = column.sentence(NUMBERS)
    assert sentence.endswith(".")
    assert "{" not in sentence


def test_no_quantity_is_declared_twice() -> None:
    groups = ("ROWS", "TOPN", "DERIVED", "DIAGNOSIS", "COMPARISON", "TRAINING", "RECALL", "HORIZON")
    assert len(COLUMNS) == sum(len(getattr(columns, name)) for name in groups)


def test_the_page_has_the_declared_labels_and_meanings(result: ScanResult) -> None:
    data = page_data(result.overview, result.findings)
    shown = data["measures"] | data["evidence"]
    assert {"participation", "separability", "tokens_needed", "error_top_share"} <= set(shown)
    for name, measure in shown.items():
        assert measure["label"] == label(name, n=20)
        assert measure["sentence"] == COLUMNS[name].sentence(NUMBERS)


def test_the_summary_has_the_declared_labels(result: ScanResult) -> None:
    with recorded_tables() as tables:
        terminal.text(view.blocks(result.overview, result.findings, verbose=True), verbose=True)
    shown = {text.removesuffix(" *") for table in tables for text in (*table.headings, *table.cells)}
    plain = ("entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm", "top_mass", "support")
    assert {label(name) for name in (*plain, "tokens_needed", "growth_exponent", "residual_change")} <= shown
    assert label("separability", n=20) in shown


def test_the_evidence_of_a_head_has_declared_names(result: ScanResult) -> None:
    assert result.findings is not None
    intervals = {f"{name}_{end}" for name, column in COLUMNS.items() if column.interval for end in ("low", "high")}
    other = {"separability_deviation", "paper_saturated"}
    for head in result.findings["heads"]:
        assert set(head["evidence"]) <= set(COLUMNS) | intervals | other


def test_no_other_name_is_left_in_the_sources_and_docs() -> None:
    pattern = re.compile("|".join(BANNED), re.IGNORECASE)
    files = [file for file in (ROOT / "src").rglob("*") if file.suffix in (".py", ".js", ".html")]
    files += [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    # What older runs were saved with is named where they are read.
    texts = {file: file.read_text("utf-8") for file in files}
    tables = ROOT / "src" / "attnscope" / "store" / "tables.py"
    texts[tables] = re.sub(r"_OLDER_\w+ = \{.*?\n\}", "", texts[tables], flags=re.DOTALL)
    left = [
        f"{file.relative_to(ROOT)}: {found.group()}" for file, text in texts.items() for found in pattern.finditer(text)
    ]
    assert left == []
