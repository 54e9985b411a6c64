"""The report: whole, offline, and safe with hostile names."""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl
import pytest
from models import build, byte_tokenizer

from attnscope.report import overview
from attnscope.report.page import render
from attnscope.scanning import ScanResult, scan

HOSTILE = "</script><script>alert(1)</script>\u202e\x07&\"'<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def result() -> ScanResult:
    content = "Some text that goes on, and on. " * 9
    return scan(build("gpt2"), content, tokenizer=byte_tokenizer(), length=64)


def chart_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="spec">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_the_page_needs_nothing_from_outside(result: ScanResult) -> None:
    page = render(result.rows, result.topn, result.run)
    assert "default-src 'none'" in page
    assert not re.search(
        r'<(script|img|iframe)[^>]+src=|<link[^>]+href=|@import|url\("?http', page.split('id="run"')[0]
    )
    assert len(page) < 5_000_000
    assert len(page) > 500_000  # the chart library is inside


def test_hostile_names_stay_text(result: ScanResult) -> None:
    run = json.loads(json.dumps(result.run))
    run["model"]["name"] = run["text"]["source"] = HOSTILE
    run["skipped_heads"] = [{"layer": 0, "head": 0, "window": 0, "reason": HOSTILE}]
    clean = render(result.rows, result.topn, result.run)
    page = render(result.rows, result.topn, run)
    for tag in ("<script", "</script", "<img"):
        assert page.count(tag) == clean.count(tag)
    embedded = re.search(r'id="run">(.*?)</script>', page, re.DOTALL)
    assert embedded
    assert json.loads(embedded[1])["model"]["name"] == HOSTILE


def test_the_map_has_every_head_once(result: ScanResult) -> None:
    heads = overview.heads(result.rows, result.topn, result.run)
    assert heads.select("layer", "head").unique().height == heads.height == 15
    line = heads.row(by_predicate=(pl.col("layer") == 1) & (pl.col("head") == 2), named=True)
    own = result.topn.filter(layer=1, head=2, position=63, n=20)
    assert line["separability"] == own["separability"].item()
    assert line["sink_weight"] == result.rows.filter(layer=1, head=2, position=63)["sink_weight"].item()


def test_the_chart_carries_the_numbers_of_the_table(result: ScanResult) -> None:
    chart = chart_of(render(result.rows, result.topn, result.run))
    tables = [pl.read_csv(values.encode()) for values in chart["datasets"].values()]
    shown = next(table for table in tables if "participation" in table.columns)
    expected = result.rows.filter(layer=1, head=2, position=63)["participation"].item()
    assert shown.filter(layer=1, head=2)["participation"].item() == pytest.approx(expected, rel=1e-4)


def test_a_large_model_stays_under_five_megabytes(result: ScanResult) -> None:
    layers, heads = pl.DataFrame({"layer": range(48)}), pl.DataFrame({"head": range(64)})
    grid = layers.join(heads, how="cross").cast(pl.Int32)
    rows, topn = (
        grid.join(table.filter(layer=0, head=0).drop("layer", "head"), how="cross").select(table.columns)
        for table in (result.rows, result.topn)
    )
    assert len(render(rows, topn, result.run)) < 5_000_000


def test_an_empty_table_still_gives_a_page(result: ScanResult) -> None:
    page = render(result.rows.clear(), result.topn.clear(), result.run)
    assert "How it was run" in page
