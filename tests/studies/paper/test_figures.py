"""What holds of every figure: its size, its text, its ticks, its legend, and that nothing covers anything else."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from protocol_tables import protocol_tables

from attnscope.normalizers import parse
from attnscope.show.figure_files import render
from attnscope.show.figures import Figure, FigureWidth, Mark, Panel, even_ticks, log_axis, place, round_ticks, thinned
from attnscope.show.palette import RED
from attnscope.studies.compare.calibration import named
from attnscope.studies.paper.figures import AS_PRINTED, DISTANCE_MARK, E1, EXPECTED, draw


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return draw(protocol_tables(windows=2, vectors=("value",)))


RENDERED: dict[tuple[int, FigureWidth, bool], tuple[Figure, str, bytes]] = {}


def rendered(figure: Figure, width: FigureWidth, titles: bool = False) -> tuple[str, bytes]:
    """Each figure is rendered once at each width."""
    key = (id(figure), width, titles)
    if key not in RENDERED:
        svg, pdf, _ = render(json.dumps(figure.chart(width, titles).to_dict()))
        RENDERED[key] = (figure, svg.decode(), pdf)  # the figure is kept, so that no other has its id
    return RENDERED[key][1:]


@pytest.mark.parametrize(("width", "inches"), [("one-column", 3.3), ("two-column", 6.9)])
@pytest.mark.parametrize(
    "name",
    [
        "figure-2a-value",
        pytest.param("figure-2c-value", marks=pytest.mark.thorough),
        "figure-3-value",
        pytest.param("figure-4-raw", marks=pytest.mark.thorough),
    ],
)
def test_a_figure_is_as_wide_as_its_column(
    figures: dict[str, Figure], name: str, width: FigureWidth, inches: float
) -> None:
    """In pixels of 1/96 inch, and in the points of a PDF, of which an inch has 72."""
    svg, pdf = rendered(figures[name], width)
    size = re.search(r'<svg[^>]* width="([\d.]+)"', svg)
    assert size is not None
    assert float(size[1]) == pytest.approx(96 * inches, abs=1)
    box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ", pdf)
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * inches, abs=1)


@pytest.mark.parametrize("name", ["figure-2a-value", "figure-2c-value", "figure-3-value", "figure-4-raw"])
def test_numbers_at_ticks_do_not_touch(figures: dict[str, Figure], name: str) -> None:
    svg, _ = rendered(figures[name], "two-column")
    text = re.compile(r'<text text-anchor="middle" transform="translate\(([\d.]+),([\d.]+)\)"[^>]*>([^<]+)</text>')
    groups = [text.findall(group) for group in re.findall(r'role-axis-label"[^>]*>(.*?)</g>', svg)]
    across = [group for group in groups if len(group) > 1 and len({y for _, y, _ in group}) == 1]
    assert across
    for labels in across:
        for (x, _, one), (later, _, other) in pairwise(labels):
            assert float(later) - float(x) > 5 * (len(one) + len(other)) / 2, labels


def test_a_range_is_seen_however_thin_and_a_distance_under_its_expectation() -> None:
    assert E1.edge >= 1
    assert EXPECTED.line < DISTANCE_MARK.line
    assert EXPECTED.size < DISTANCE_MARK.size
    assert list(AS_PRINTED.values()).index(DISTANCE_MARK) < list(AS_PRINTED.values()).index(EXPECTED)  # drawn before


def test_text_is_text_of_at_least_seven_points(figures: dict[str, Figure]) -> None:
    svg, pdf = rendered(figures["figure-2a-value"], "one-column")
    sizes = [float(size) for size in re.findall(r'<text[^>]* font-size="([\d.]+)px"', svg)]
    assert min(sizes) >= 7 * 96 / 72 - 1e-3
    assert "Distance bound printed" in re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert b"/BaseFont" in pdf  # outlines would need none


def test_a_title_is_drawn_only_on_request(figures: dict[str, Figure]) -> None:
    figure = figures["figure-3-value"]
    assert "Figure 3. Separability against N" not in re.findall(
        r"<text[^>]*>([^<]*)", rendered(figure, "two-column")[0]
    )
    assert "Figure 3. Separability against N" in rendered(figure, "two-column", titles=True)[0]
    assert figure.caption.startswith("Figure 3. Separability against N. Algorithm 4, value vectors")


def styles(layers: list[dict[str, Any]]) -> set[str]:
    """How marks look, without their data: everything but texts and thin guides."""
    return {json.dumps(layer["mark"], sort_keys=True) for layer in layers if layer["mark"]["type"] != "text"}


def test_a_legend_shows_the_marks_as_they_are_drawn(figures: dict[str, Figure]) -> None:
    for figure in figures.values():
        *rows, legend = figure.chart().to_dict()["vconcat"]
        drawn = [layer for row in rows for panel in row["hconcat"] for layer in panel["layer"]]
        assert styles(drawn) == styles(legend["layer"])


def test_ticks_reach_the_first_and_the_last_point() -> None:
    sizes = [1, 2, 4, 5, 8, 10, 16, 20, 32, 64, 100, 128, 256, 512]
    ticks = thinned(sizes, 6)
    assert (ticks[0], ticks[-1]) == (1, 512)
    assert len(ticks) <= 6
    assert set(ticks) <= set(sizes)
    assert log_axis("n", "N", reversed(sizes))["axis"].values == ticks


@pytest.mark.parametrize(("low", "high"), [(3.2, 410.0), (1.0, 1.0), (1e-21, 50.0), (0.99, 1.01), (7e-9, 2e-3)])
def test_round_ticks_enclose_all_points(low: float, high: float) -> None:
    ticks = round_ticks(low, high)
    assert ticks[0] <= low * (1 + 1e-8)
    assert high * (1 - 1e-8) <= ticks[-1]
    assert 2 <= len(ticks) <= 6
    assert all(f"{tick:.0e}"[0] in "1235" for tick in ticks)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.5, 0.5), (0.521, 0.676), (-3.0, 40.0)])
def test_even_ticks_enclose_all_points_in_equal_steps(low: float, high: float) -> None:
    ticks = even_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 6
    assert np.diff(ticks) == pytest.approx((ticks[-1] - ticks[0]) / (len(ticks) - 1))


@pytest.mark.parametrize("points", [[(100.0, 80.0)] * 9, [(10.0 * k, 5.0 * k) for k in range(9)], [(399.0, 1.0)] * 6])
def test_names_of_points_cover_no_other_and_stay_in_the_panel(points: list[tuple[float, float]]) -> None:
    boxes = place(points, ["topk:k=64:temperature=1.1"] * len(points), 400, 300)
    assert not [pair for pair in combinations(boxes, 2) if pair[0].meets(pair[1])]
    assert all(box.left >= 0 and box.right <= 400 and box.top >= 0 and box.bottom <= 300 for box in boxes)


def test_a_series_without_points_is_in_the_legend_alone() -> None:
    empty = pl.DataFrame({"x": [], "value": []}, schema={"x": pl.Float64, "value": pl.Float64})
    axes = [log_axis(name, name, [1, 10]) for name in ("x", "value")]
    svg, _ = rendered(Figure("Empty", [], [[Panel("", *axes, [(Mark("none", RED), empty)])]], empty), "one-column")
    assert svg.count(f'stroke="{RED}"') == 1
    assert "none" in re.findall(r"<text[^>]*>([^<]*)", svg)


def test_a_calibrated_normalizer_is_spelled_as_it_is_parsed() -> None:
    table = pl.DataFrame(
        {
            "normalizer": ["entmax:alpha=1.2", "topk:k=64", "ssmax", "ssmax"],
            "calibration": ["global", "global", "none", "head"],
            "parameter": ["alpha", "temperature", None, "s"],
            "value": [1.3456, 1.1, None, None],
        }
    )
    names = named(table)["name"].to_list()
    assert names == ["entmax:alpha=1.35", "topk:k=64:temperature=1.1", "ssmax", "ssmax, s per head"]
    for name in names[:3]:
        parse(name)
