"""What is read from the protocol's tables: claims, comparisons, the page, the terminal and the figures.

The tables follow laws that are written in `protocol_tables`, so that every number below is known beforehand.
"""

from __future__ import annotations

import html
import json
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import polars as pl
import pytest
from protocol_tables import LENGTHS, protocol_tables
from rich.console import Console
from terminal_tables import recorded_tables

from attnscope.report.protocol_table import print_protocol
from attnscope.studies.paper.claims import answer
from attnscope.studies.paper.comparisons import best_readings, comparisons, contradicted_by_all, grids, nearest
from attnscope.studies.paper.figures import draw
from attnscope.studies.paper.page import markdown_tables, protocol_page

RUN = {
    "model": {"name": "tiny", "layers": 2, "heads": 6},
    "text": {"source": "a book"},
    "settings": {"windows": 6, "lengths": LENGTHS},
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


def values(found: dict[str, Any]) -> list[float]:
    return [one["value"] for one in found["measured"]]


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
    measured = values(found)
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


def test_one_reading_is_nearest_and_statements_that_none_gives_are_listed(claims: list[dict[str, Any]]) -> None:
    compared = comparisons(claims)
    assert [one.id for one in nearest(compared)] == [claim["id"] for claim in claims if claim["figure"]]
    chosen = {one.id: one for one in nearest(compared)}
    assert chosen["critical-share"].reading["significance"] == "0.01"
    assert chosen["critical-share"].form == "printed"
    assert chosen["separability-plateau"].reading["rows"] == "literal"  # 0.8 is nearer to the middle than 0.7
    assert chosen["smaller-step-larger"].label == "literal rows, raw logits, in the worst direction"
    missing = {one.id for one in contradicted_by_all(compared)}
    assert {"bound-tightens", "converge-at-100", "critical-sublinear", "one-over-t"} <= missing
    assert not missing & {"distance-linear", "expectation-linear", "critical-share", "separability-plateau"}
    assert best_readings(compared)[0][1:] == (10, 16)


def test_a_nearer_value_moves_the_mark(tables: dict[str, pl.DataFrame]) -> None:
    hidden = pl.col("vectors") == "hidden"
    nearer = tables["protocol_distance"].with_columns(
        distance=pl.when(hidden).then(pl.col("length").cast(pl.Float64)).otherwise(pl.col("distance"))
    )
    marked = nearest(comparisons(answer(tables | {"protocol_distance": nearer})))[0]
    assert (marked.id, marked.reading) == ("distance-linear", {"rows": "literal", "vectors": "hidden"})
    assert marked.values == "1 [1, 1]"


def test_a_single_window_has_values_and_no_verdict() -> None:
    claims = answer(protocol_tables(windows=1, vectors=("value",)))
    found = reading(claims, "distance-linear", vectors="value")
    assert found["verdict"] == "depends"
    assert found["measured"][0]["interval"] is None
    assert "[" not in nearest(comparisons(claims))[0].values


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
    assert {one.id for one in nearest(comparisons(claims))}.isdisjoint({"distance-linear", "plateau-beyond-20"})


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_has_every_cell_of_every_grid(claims: list[dict[str, Any]]) -> None:
    text = protocol_page(claims, RUN, {})
    page = Page(text)
    compared = comparisons(claims)
    cells = sum(len(line.cells) for grid in grids(compared) for line in grid.lines)
    assert sum(tag == "td" for tag, _ in page.tags) == cells
    assert sum(tag == "td" and attributes.get("class") == "nearest" for tag, attributes in page.tags) == 22
    shown = html.unescape(text)
    for one in compared:
        assert one.paper in shown
        assert one.values in shown
    assert "No reading gives: the bound tightens as N grows" in text


def test_the_page_needs_no_network_and_runs_nothing(claims: list[dict[str, Any]]) -> None:
    page = Page(protocol_page(claims, RUN, {"figure-2a-value": "<svg xmlns='http://www.w3.org/2000/svg'/>"}))
    policy = next(one["content"] for tag, one in page.tags if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "img-src data:" in policy
    addresses = [one[key] for _, one in page.tags for key in ("src", "href") if one.get(key)]
    assert addresses
    assert all(address is not None and address.startswith("data:") for address in addresses)
    assert not [
        tag for tag, one in page.tags if tag == "script" or any(key.startswith("on") or key == "style" for key in one)
    ]


def test_names_cannot_script_or_reorder_the_page(claims: list[dict[str, Any]]) -> None:
    """Fault 21."""
    name = "</title><script>alert(1)</script>\u202egpt2\x07"
    text = protocol_page(claims, RUN | {"model": {"name": name, "layers": 1, "heads": 1}}, {})
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\x07" not in text
    assert "\\u202e" in text


def test_the_page_says_when_windows_are_too_few_for_its_intervals(claims: list[dict[str, Any]]) -> None:
    """The range of six windows contains the true median in 97% of cases, that of two in 50%."""
    few = RUN | {"settings": {"windows": 2, "lengths": LENGTHS}}
    assert "in at most 50% of cases" in protocol_page(claims, few, {})
    assert "of cases" not in protocol_page(claims, RUN, {})


def test_the_terminal_shows_every_reading_beside_what_the_paper_prints(claims: list[dict[str, Any]]) -> None:
    out = StringIO()
    with recorded_tables() as tables:
        print_protocol(Console(file=out, highlight=False), claims)
    columns: dict[str, list[str]] = {}
    for table in tables:  # those of the distance come first, and columns that do not fit are continued
        columns = table.columns | columns
    distance = next(i for i, text in enumerate(columns["The paper prints"]) if "the distance scales linearly" in text)
    readings = ("literal value", "literal hidden", "visible value", "visible hidden")
    assert [columns[name][distance] for name in readings] == ["*0.97 \u2713", *["0.97 \u2713"] * 3]
    assert "- No reading gives: for T < 0.1 the curves follow 1/T" in out.getvalue()


def test_markdown_has_the_same_cells(claims: list[dict[str, Any]]) -> None:
    text = markdown_tables(comparisons(claims))
    assert "| 2a: for N << L the distance scales linearly with sequence length | **\u2713 0.97 [0.97, 0.97]** |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {2 + 4}


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
