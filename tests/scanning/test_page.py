"""The report: whole, offline, safe with hostile names, and with the numbers of the tables."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from models import build, byte_tokenizer
from reports import enlarged, large_shown, made_findings

from attnscope.diagnosis.states import STATES
from attnscope.scanning import ScanResult, scan
from attnscope.scanning.overview import HEAD_MEASURES, Overview, explained, explained_evidence
from attnscope.scanning.page_data import page_patterns, render
from attnscope.scanning.view import notable_numbers
from attnscope.show import page as page_shell
from attnscope.show.page import scan_page as document
from attnscope.store import tables

WEB = Path(page_shell.__file__).parent
HOSTILE = "</script><script>alert(1)</script>\u202e\x07&\"'<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def result() -> ScanResult:
    content = "Some text that goes on, and on. " * 9
    return scan(build("gpt2"), content, tokenizer=byte_tokenizer(), length=64, windows=2, temperatures=[0.5])


def data_of(page: str, name: str = "data") -> dict[str, Any]:
    match = re.search(rf'<script type="application/octet-stream" id="{name}">([A-Za-z0-9+/=]*)</script>', page)
    assert match
    return json.loads(gzip.decompress(base64.b64decode(match[1])))


def test_the_page_needs_nothing_from_outside(result: ScanResult) -> None:
    """Faults 20 and 25."""
    page = render(result.overview, token_weights=result.token_weights)
    assert not re.search(r"<(script|img|iframe)[^>]+src=|<link|@import|url\(|fetch\(|XMLHttpRequest|eval\(", page)
    assert len(page) < 5_000_000


def test_the_policy_names_the_only_script_and_style_by_hash(result: ScanResult) -> None:
    page = render(result.overview)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    for kind, tag in (("script", '<script type="module">'), ("style", "<style>")):
        content = page.split(tag)[1].split(f"</{kind}>")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]


def test_hostile_names_and_tokens_stay_text(result: ScanResult) -> None:
    """Fault 21."""
    run = json.loads(json.dumps(result.run))
    run["model"]["name"] = run["text"]["source"] = HOSTILE
    run["skipped_heads"] = [{"layer": 0, "head": 0, "window": 0, "reason": HOSTILE}]
    assert result.token_weights
    token_weights = tables.TokenWeights(result.token_weights.weights, [HOSTILE] * 64, [HOSTILE] * 64)
    clean = render(result.overview)
    page = render(Overview.of(result.rows, result.topn, run), token_weights=token_weights)
    for tag in ("<script", "</script", "<img"):
        assert page.count(tag) == clean.count(tag)
    assert data_of(page)["run"]["model"]["name"] == HOSTILE
    assert data_of(page)["text"]["texts"] == [HOSTILE] * 64


def test_the_map_has_every_head_once(result: ScanResult) -> None:
    heads = result.overview.heads
    assert heads.select("layer", "head").unique().height == heads.height == 15
    line = heads.row(by_predicate=(pl.col("layer") == 1) & (pl.col("head") == 2), named=True)
    own = result.topn.filter(layer=1, head=2, position=63, n=20, normalizer="own")
    assert line["separability"] == own["separability"].mean()
    rows = result.rows.filter(layer=1, head=2, position=63, normalizer="own")
    assert line["sink_weight"] == rows["sink_weight"].mean()
    assert line["sink_weight_spread"] == rows["sink_weight"].std()


def test_the_page_carries_the_numbers_of_the_tables(result: ScanResult) -> None:
    data = data_of(render(result.overview, token_weights=result.token_weights))
    head = data["heads"]["layer"].index(1) + 2
    assert (data["heads"]["layer"][head], data["heads"]["head"][head]) == (1, 2)
    own = {"layer": 1, "head": 2, "normalizer": "own"}
    for group, length in enumerate((64, 32)):
        rows = result.rows.filter(length=length, **own)
        assert data["groups"][group] == str(length)
        shown = data["by_group"]["participation"][head * 2 + group]
        assert shown == pytest.approx(rows["participation"].mean(), rel=1e-3)
        sizes = data["curves"]["n"]
        curve = data["curves"]["columns"]["distance"][(head * 2 + group) * len(sizes) :][: len(sizes)]
        for n, distance in zip(sizes, curve, strict=True):
            lines = result.topn.filter(length=length, n=n, **own)
            assert distance == (None if lines.is_empty() else pytest.approx(lines["distance"].mean(), rel=1e-3))
    assert data["what_if"]["labels"] == ["own", "own:temperature=0.5"]
    cold = result.rows.filter(layer=1, head=2, length=64, normalizer="own:temperature=0.5")
    assert data["what_if"]["columns"]["max_weight"][head * 2 + 1] == pytest.approx(cold["max_weight"].mean(), rel=1e-3)


def test_the_weights_over_the_text_are_the_heads_largest(result: ScanResult) -> None:
    assert result.token_weights
    text = data_of(render(result.overview, token_weights=result.token_weights))["text"]
    rows = result.rows.filter(window=0, length=64, normalizer="own").sort("layer", "head")
    for i, (largest, first) in enumerate(rows.select("max_weight", "sink_weight").iter_rows()):
        assert text["weights"][i][0] == pytest.approx(largest, rel=1e-2)
        assert text["weights"][i] == sorted(text["weights"][i], reverse=True)
        assert sum(text["weights"][i]) == pytest.approx(1, abs=0.02)  # all 64 keys of the row
        assert text["weights"][i][text["keys"][i].index(0)] == pytest.approx(first, rel=1e-2)
    assert "".join(text["texts"]) == ("Some text that goes on, and on. " * 9)[:64]


def test_rows_spread_over_a_window_are_grouped_by_halves() -> None:
    run = scan(build("gpt2"), "Words and more words. " * 9, tokenizer=byte_tokenizer(), length=64, rows=16)
    data = data_of(render(run.overview, token_weights=run.token_weights))
    assert data["groups"] == ["36 to 64", "20 to 32", "12 to 16", "8", "4"]
    second_half = run.rows.filter(layer=2, head=4).filter(pl.col("length") > 32)
    shown = data["by_group"]["entropy_ratio"][14 * 5]
    assert shown == pytest.approx(second_half["entropy_ratio"].mean(), rel=1e-3)
    assert data["rows"]["position"] == [4 * k + 3 for k in range(16)]


def test_a_large_model_stays_under_five_megabytes(result: ScanResult) -> None:
    """Fault 25."""
    assert result.token_weights
    rows, topn = (enlarged(table, 48, 64) for table in (result.rows, result.topn))
    page = render(Overview.of(rows, topn, result.run), token_weights=large_shown(result.token_weights, 48, 64))
    assert len(data_of(page)["heads"]["layer"]) == 48 * 64
    assert len(page) < 5_000_000


def test_a_model_of_full_patterns_stays_under_five_megabytes(result: ScanResult) -> None:
    """As many heads as have patterns of 64 x 64 cells, of an encoder, which has no empty ones."""
    assert result.token_weights
    patterns = result.token_weights.patterns
    assert patterns is not None
    filled = patterns.with_columns(pl.col("weights").list.eval(pl.element().fill_null(0.01)))
    rows, topn = (enlarged(table, 12, 24) for table in (result.rows, result.topn))
    weights = tables.TokenWeights(result.token_weights.weights, *[result.token_weights.texts] * 2, filled)
    page = render(Overview.of(rows, topn, result.run), token_weights=large_shown(weights, 12, 24))
    assert data_of(page)["patterns"]["grids"] == [
        {"rows": list(range(64)), "first_key": 0, "keys_per_cell": 1, "cells": 64}
    ]
    assert len(page) < 5_000_000


def read_letters(letters: str) -> list[float | None]:
    """Numbers from pairs of letters, by the definition in report/patterns.py."""
    pairs = [letters[k : k + 2] for k in range(0, len(letters), 2)]
    return [
        None if pair == "  " else 0.0 if pair == "!!" else (ord(pair[0]) - 25) / 10 ** int(pair[1]) for pair in pairs
    ]


def test_patterns_keep_two_figures_of_every_cell(result: ScanResult) -> None:
    assert result.token_weights
    table = result.token_weights.patterns
    assert table is not None
    data = data_of(render(result.overview, token_weights=result.token_weights))["patterns"]
    head = table.filter(layer=1, head=2)
    grid = data["grids"][data["grid"][7]]
    assert grid["rows"] == head["position"].to_list()
    cells = read_letters(data["cells"][7])
    for shown, weight in zip(cells, head["weights"].explode().to_list(), strict=True):
        assert shown == (None if weight is None else pytest.approx(weight, rel=0.0501))
        assert shown is None or shown == 0 or len(f"{shown:e}".split("e")[0].rstrip("0").replace(".", "")) <= 2
    assert read_letters(data["first"][7]) == pytest.approx(head["first_key_weight"].to_list(), rel=0.0501)


def test_cells_of_a_large_model_are_sums_over_longer_runs_of_keys() -> None:
    weights = [[0.1, 0.2, None, 0.05], [0.11, 0.22, 0.33, 0.34]]
    lines = [
        {"window": 0, "layer": layer, "head": 0, "position": row, "first_key": 0, "keys_per_cell": 3}
        | {"first_key_weight": 0.1, "weights": weights[row] * 16}
        for layer in range(293)  # one head more than have 64 x 64 cells
        for row in range(2)
    ]
    table = pl.DataFrame(lines, schema=tables.PATTERNS)
    shown = page_patterns(table, table.select("layer", "head").unique(maintain_order=True))
    assert shown is not None
    assert shown["grids"] == [{"rows": (0, 1), "first_key": 0, "keys_per_cell": 6, "cells": 32}]
    assert read_letters(shown["cells"][5]) == pytest.approx([0.3, 0.05] * 16 + [0.33, 0.67] * 16)


def test_numbers_name_the_rows_they_are_from(result: ScanResult) -> None:
    data = data_of(render(result.overview, findings=made_findings([(0, 0)]) | {"rows": 32}))
    assert data["sources"] == {
        "scan": ["2 rows that see 64 tokens, in 2 windows", "2 rows that see 32 tokens, in 2 windows"],
        "diagnosis": "32 rows in each of 2 windows of 128 tokens spread over the text",
    }
    many = scan(build("gpt2"), "Words and more words. " * 9, tokenizer=byte_tokenizer(), length=64, rows=16)
    assert data_of(render(many.overview))["sources"]["scan"][:2] == [
        "8 rows that see 36 to 64 tokens, in 1 window",
        "4 rows that see 20 to 32 tokens, in 1 window",
    ]


def test_findings_replace_the_notable_numbers(result: ScanResult) -> None:
    findings = made_findings([(0, 0), (1, 2)])
    assert data_of(render(result.overview))["notes"]
    data = data_of(render(result.overview, findings=findings))
    assert data["notes"] == []
    assert data["findings"] == findings


def test_notable_numbers_count_the_heads_that_they_name() -> None:
    lines = 10
    columns = {name: [0.5] * lines for name in HEAD_MEASURES} | {
        "layer": list(range(lines)),
        "head": [0] * lines,
        "sink_weight": [0.95] * 3 + [0.0] * 7,
        "max_weight": [0.95] * 4 + [0.1] * 6,
        "participation": [1.0] * 4 + [80.0] * 2 + [10.0] * 4,
        "jacobian_norm": [0.2] * 10,
    }
    notes = notable_numbers(pl.DataFrame(columns), {"settings": {"lengths": [100]}}, 20)
    named = {note["id"]: [layer for layer, _ in note["heads"]] for note in notes if note["heads"]}
    assert named == {"first-token": [0, 1, 2], "one-token": [3], "spread-out": [4, 5]}
    assert "3 of 10 heads" in next(note["title"] for note in notes if note["id"] == "first-token")


def test_two_runs_in_one_page(result: ScanResult) -> None:
    one = data_of(render(result.overview))
    page = document(one, one | {"run": one["run"] | {"attnscope": "other"}}, {"home": "/"})
    assert data_of(page, "other")["run"]["attnscope"] == "other"
    assert data_of(page, "links") == {"home": "/"}


def test_an_empty_table_still_gives_a_page(result: ScanResult) -> None:
    page = render(Overview.of(result.rows.clear(), result.topn.clear(), result.run))
    assert data_of(page)["heads"] is None


# Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision Deficiency (2009), for
# linear RGB and vision that lacks a kind of cone.
VISION = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def perceived(color: str, vision: Any) -> np.ndarray:
    """CIELAB coordinates of an sRGB color: distances of 2.3 are just noticeable."""
    channels = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(vision) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (
        np.cbrt(value) if value > 0.008856 else 7.787 * value + 16 / 116 for value in to_xyz @ seen / to_xyz.sum(1)
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION.values(), ids=VISION)
def test_states_and_amounts_are_distinct_with_any_color_vision(vision: Any) -> None:
    """Fault 25: small cells of a map have no mark, only a color."""
    assert len({state.mark for state in STATES.values()}) == len(STATES)
    colors = [perceived(state.color, vision) for state in STATES.values()]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(colors, 2)) > 10
    cividis = re.search(r"CIVIDIS = (\[.*?\]);", (WEB / "js" / "colors.js").read_text("utf-8"))
    assert cividis
    lightness = [perceived(color, vision)[0] for color in json.loads(cividis[1])]
    assert min(np.diff(lightness)) > 2.3


def test_every_measure_is_explained_without_its_own_name_alone() -> None:
    for measure in (*explained(20).values(), *explained_evidence({}, 20).values()):
        assert measure["sentence"].endswith(".")
        assert len(measure["sentence"].split()) > 6
