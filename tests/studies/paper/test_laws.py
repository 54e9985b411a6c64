"""What is read from the protocol's tables: claims, comparisons, the page, the terminal and the figures.

The tables follow laws that are written in `protocol_tables`, so that every number below is known beforehand.
"""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from protocol_tables import LENGTHS, protocol_tables
from terminal_tables import recorded_tables

from attnscope.show import html, markdown, terminal
from attnscope.show.blocks import Details, Table, plain
from attnscope.studies.paper.claims import answer
from attnscope.studies.paper.figures import draw
from attnscope.studies.paper.view import best_readings, blocks, contradicted_by_all, label, shown_reading, values

RUN = {
    "model": {"name": "tiny", "layers": 2, "heads": 6},
    "text": {"source": "a book"},
    "settings": {"windows": 6, "lengths": LENGTHS, "first_key": "kept"},
    "attnscope": "0",
}


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    return protocol_tables()


@pytest.fixture(scope="module")
def claims(tables: dict[str, pl.DataFrame]) -> list[dict[str, Any]]:
    return answer(tables)


def reading(claims: list[dict[str, Any]], name: str, **labels: str) -> dict[str, Any]:
    """The reading of a claim with these labels; the printed form unless said otherwise."""
    claim = next(claim for claim in claims if claim["id"] == name)
    wanted = {"form": "printed", "rows": "visible"} | labels
    (found,) = [one for one in claim["readings"] if all(one.get(key) == value for key, value in wanted.items())]
    return found


LAWS = [
    ("distance-linear", {"vectors": "value"}, [0.97], "agrees"),
    ("expectation-linear", {"vectors": "value"}, [1.02], "agrees"),
    ("expectation-linear", {"vectors": "value", "form": "corrected"}, [0, 0], "disagrees"),
    ("bound-safe", {"vectors": "hidden", "rows": "literal"}, [1], "agrees"),
    ("plateau-beyond-20", {"vectors": "value"}, [1], "agrees"),
    ("bound-tightens", {"vectors": "value"}, [1], "disagrees"),
    ("converge-at-100", {"vectors": "value"}, [1024**0.97 / (1024**1.02 * 10)], "disagrees"),
    ("converge-at-100", {"vectors": "value", "form": "corrected"}, [1024**0.97 / 80, 1024**0.97 / 125], "disagrees"),
    ("critical-below-6-percent", {"vectors": "value", "significance": "0.01"}, [1 / 16], "disagrees"),
    ("critical-share", {"vectors": "value", "significance": "0.01"}, [1 / 16] * 6, "agrees"),
    ("critical-share", {"vectors": "value", "significance": "0.05"}, [1 / 8] * 6, "disagrees"),
    (
        "critical-share",
        {"vectors": "value", "significance": "0.01", "form": "corrected"},
        [0.75] * 6 + [1.0] * 6,  # no N accepted counts as L
        "disagrees",
    ),
    ("critical-sublinear", {"vectors": "value", "significance": "0.01"}, [1], "disagrees"),
    ("separability-falls", {"vectors": "value", "ball": "open"}, [-0.15], "agrees"),
    ("separability-flat", {"vectors": "value", "ball": "open"}, [0] * 5, "agrees"),
    ("separability-plateau", {"vectors": "value", "rows": "literal", "ball": "open"}, [0.8] * 6, "agrees"),
    ("separability-plateau", {"vectors": "value", "rows": "literal", "ball": "closed"}, [0.82] * 6, "agrees"),
    ("one-over-t", {"logit_scale": "raw", "form": "corrected"}, [-1, None, 0], "disagrees"),
    ("below-dashed-curve", {"logit_scale": "scaled", "form": "corrected"}, [0.9 * 50 / 2**0.5, 9, 1.8], "disagrees"),
    ("vanishing-attention", {}, [-0.5], "disagrees"),
    ("vanishing-attention", {"form": "corrected"}, [-0.5], "agrees"),
    ("corollary-2i", {"vectors": "value"}, [1], "agrees"),
    ("expectation-formula", {"vectors": "value"}, [0], "disagrees"),
    ("uniform-selection", {"vectors": "value"}, [1], "agrees"),
    ("uniform-selection", {"vectors": "value", "form": "corrected"}, [1.5], "agrees"),
    ("collapse-proportional", {"vectors": "value"}, [0.5], "disagrees"),
    ("collapse-proportional", {"vectors": "value", "form": "corrected"}, [-0.5], "agrees"),
    ("three-heads-99-percent", {"vectors": "value", "rows": "last"}, [0.992], "agrees"),
    ("three-heads-99-percent", {"vectors": "value", "rows": "last", "form": "corrected"}, [0.9], "disagrees"),
    ("entropy-early-sign", {"vectors": "value", "ball": "open"}, [-1], "agrees"),
    ("sharper-separates", {"vectors": "value", "rows": "last"}, [0.1], "agrees"),
    ("too-sharp", {"vectors": "value", "rows": "last"}, [0, 5], "agrees"),
    ("dashed-bound-holds", {"logit_scale": "scaled"}, [None], "disagrees"),
    ("jacobian-law", {"logit_scale": "scaled"}, [1.8] * 8, "disagrees"),
    ("jacobian-law", {"logit_scale": "scaled", "form": "corrected"}, [0.9] * 8, None),
]


@pytest.mark.parametrize(("name", "labels", "expected", "verdict"), LAWS)
def test_the_laws_of_the_tables_are_found(
    claims: list[dict[str, Any]], name: str, labels: dict[str, str], expected: list[float | None], verdict: str | None
) -> None:
    found = reading(claims, name, **labels)
    assert verdict in (None, found["verdict"])
    measured = [one["value"] for one in found["measured"]]
    assert len(measured) == len(expected)
    for value, law in zip(measured, expected, strict=True):
        if law is not None:
            # medians over heads and windows of factors around 1, and the largest g of eps = 0.1 between two T
            assert value == pytest.approx(law, rel=0.02, abs=0.02), name


def test_every_reading_of_the_tables_is_answered(claims: list[dict[str, Any]]) -> None:
    by_id = {claim["id"]: claim for claim in claims}
    count = {name: len(by_id[name]["readings"]) for name in by_id}
    assert count["distance-linear"] == 2 * 2  # rows, vectors
    assert count["critical-share"] == 2 * 2 * 2 * 2  # and significance, and form
    assert count["separability-plateau"] == 2 * 2 + 2  # the closed ball in literal rows only
    assert count["one-over-t"] == 2 * 2 * 2  # rows, logits; random and worst direction
    assert json.loads(json.dumps(claims, allow_nan=False)) == claims
    assert by_id["critical-share"]["depends_on"] == ["form", "significance"]


def nearest(claims: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {claim["id"]: one for claim in claims for one in claim["readings"] if one["nearest"]}


def test_one_reading_is_nearest_and_statements_that_none_gives_are_listed(claims: list[dict[str, Any]]) -> None:
    chosen = nearest(claims)
    assert list(chosen) == [claim["id"] for claim in claims]
    assert chosen["critical-share"]["significance"] == "0.01"
    assert chosen["critical-share"]["form"] == "printed"
    assert chosen["separability-plateau"]["rows"] == "literal"  # 0.8 is nearer to the middle than 0.7
    assert label(chosen["smaller-step-larger"]) == "literal rows, raw logits"
    assert chosen["smaller-step-larger"]["form"] == "corrected"
    missing = {claim["id"] for claim in contradicted_by_all(claims)}
    assert {"bound-tightens", "converge-at-100", "critical-sublinear", "one-over-t"} <= missing
    assert not missing & {"distance-linear", "expectation-linear", "critical-share", "separability-plateau"}
    assert best_readings(claims)[0][1:] == (10, 16)


def test_a_nearer_value_moves_the_mark(tables: dict[str, pl.DataFrame]) -> None:
    hidden = pl.col("vectors") == "hidden"
    nearer = tables["protocol_distance"].with_columns(
        distance=pl.when(hidden).then(pl.col("length").cast(pl.Float64)).otherwise(pl.col("distance"))
    )
    marked = nearest(answer(tables | {"protocol_distance": nearer}))["distance-linear"]
    assert label(marked) == "literal rows, hidden vectors"
    assert values(marked) == "1 [1, 1]"


def test_a_single_window_has_values_and_no_verdict() -> None:
    claims = answer(protocol_tables(windows=1, vectors=("value",)))
    found = reading(claims, "distance-linear", vectors="value")
    assert found["verdict"] == "depends"
    assert found["measured"][0]["interval"] is None
    assert "[" not in values(nearest(claims)["distance-linear"])


def test_missing_lengths_and_sizes_are_not_measured() -> None:
    """Windows of 64 tokens: no N = 100, and two lengths give no exponent."""
    short = protocol_tables(windows=2, vectors=("value",))
    short = {
        name: table.filter(pl.col("length") <= 64) if "length" in table.columns else table
        for name, table in short.items()
    }
    claims = answer(short)
    assert reading(claims, "plateau-beyond-20", vectors="value")["verdict"] is None
    assert next(claim for claim in claims if claim["id"] == "distance-linear")["verdict"] == "not measured"
    assert nearest(claims).keys().isdisjoint({"distance-linear", "plateau-beyond-20"})


def test_every_claim_has_a_line_and_the_headline_counts_them(claims: list[dict[str, Any]]) -> None:
    with recorded_tables(width=200) as tables:
        text = terminal.text(blocks(claims, RUN), width=200)
    (table,) = tables
    columns = {name: table.columns[name] for name in ("Claim of the paper", "Measured", "Accepted", "Verdict")}
    for index, claim in enumerate(claims):
        assert columns["Claim of the paper"][index].endswith(claim["claim"])
        assert columns["Verdict"][index] == claim["verdict"]
    counts = Counter(columns["Verdict"])
    words = f"{counts['agrees']} agree, {counts['disagrees']} disagree, {counts['depends']} depend on the reading."
    assert f"Of the paper's {len(claims)} claims, {words}" in " ".join(text.split())
    assert columns["Measured"][0] == values(shown_reading(claims[0]), interval=False) == "0.97"
    assert columns["Accepted"][0] == "0.9 to 1.1"


def test_every_reading_is_behind_a_fold_of_its_claim(claims: list[dict[str, Any]]) -> None:
    folds = {block.title.split("  ")[-1]: block for block in blocks(claims, RUN) if isinstance(block, Details)}
    short, long = (terminal.text(blocks(claims, RUN), 120, verbose) for verbose in (False, True))
    for claim in claims:
        (table,) = [block for block in folds[claim["claim"]].blocks if isinstance(block, Table)]
        assert len(table.rows) == len(claim["readings"])
        for row, one in zip(table.rows, claim["readings"], strict=True):
            assert label(one) in plain(row[0])
            assert row[1] == values(one)
            assert plain(row[2]).startswith(one["verdict"] or "-")
        assert f"{claim['id']}: {claim['place']}. Accepted: {claim['rule']}" in plain(
            folds[claim["claim"]].blocks[0].words
        )
    assert "No reading gives: for T < 0.1 the curves follow 1/T" in " ".join(long.split())
    assert "No reading gives" not in short


def test_the_page_and_markdown_have_the_same_numbers(claims: list[dict[str, Any]], tmp_path: Path) -> None:
    picture = tmp_path / "figures" / "protocol" / "figure-2a-value.svg"
    picture.parent.mkdir(parents=True)
    picture.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    shown = blocks(claims, RUN, [("Figure 2a.", picture)])
    page, text = html.page("Reproduction", shown), markdown.text(shown)
    for claim in claims:
        for one in claim["readings"]:
            assert escape(values(one)) in page
    assert page.count("<img ") == 1
    assert "![Figure 2a.](figures/protocol/figure-2a-value.svg)" in text
    assert "<script" not in page


def test_the_view_says_when_windows_are_too_few_for_its_intervals(claims: list[dict[str, Any]]) -> None:
    """The range of six windows contains the true median in 97% of cases, that of two in 50%."""
    few = RUN | {"settings": {"windows": 2, "lengths": LENGTHS, "first_key": "dropped"}}
    said = " ".join(terminal.text(blocks(claims, few)).split())
    assert "in at most 50% of cases" in said
    assert "without the first token" in said
    assert "of cases" not in " ".join(terminal.text(blocks(claims, RUN)).split())


def test_figures_show_the_numbers_of_the_tables(tables: dict[str, pl.DataFrame]) -> None:
    figures = draw(tables)
    kinds = [f"figure-{number}-{vectors}" for number in ("2a", "2b", "2c", "3") for vectors in ("hidden", "value")]
    assert list(figures) == [*kinds, "figure-4-raw", "figure-4-scaled"]
    for figure in figures.values():
        figure.chart().to_dict()  # altair checks the chart against its schema
    data = {name: figure.data for name, figure in figures.items()}
    lengths = data["figure-2a-value"].filter(rows="visible", series="distance", length=256)
    assert lengths["value"].item() == pytest.approx(256**0.97, rel=1e-2)
    critical = data["figure-2c-value"].filter(rows="literal", series="at 0.05", length=512, kind="first")
    assert critical["value"].item() == 64
    by_heads = data["figure-2c-value"].filter(pl.col("heads") == 3, rows="literal", series="at 0.01")
    assert by_heads["value"].item() == 32
    boxes = data["figure-3-value"].filter(rows="literal", ball="closed", n=16)
    assert boxes["q50"].item() == pytest.approx(0.82, abs=0.01)
    curves = data["figure-4-raw"].filter(pl.col("temperature") == 1.0, rows="visible", direction="worst", step=1e-3)
    assert curves["value"].item() == pytest.approx(0.45)
    assert curves["printed"].item() == 0.25
