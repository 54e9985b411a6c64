"""The report's looks, as far as they can be measured: contrast, size of text, clipped words, numbers on hover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import build
from reports import made_findings

from attnscope.scanning import ScanResult, scan
from attnscope.scanning.page_data import render

Open = Callable[..., Any]
LEAST_CONTRAST = 4.5  # WCAG 2.1, AA
LEAST_TEXT = 11  # pixels
WIDTHS = (1280, 768, 390)

# Every visible text of the page with its color and what lies behind it, from computed styles. A text in a picture lies
# on the last shape drawn before it that covers its middle, else on what is behind the picture.
TEXTS = """() => {
  const parsed = (color) => (color.match(/[\\d.]+/g) ?? []).map(Number);
  const over = (top, below) => {
    const [r, g, b, a = 1] = top;
    return [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
  };
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const color = parsed(getComputedStyle(element).backgroundColor);
    return color.length === 4 && color[3] === 0 ? behind(element.parentElement)
      : color.length === 4 ? over(color, behind(element.parentElement)) : color;
  };
  const covers = (one, x, y) => {
    const box = one.getBoundingClientRect();
    return box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, noscript, option, .skip, [hidden]")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const style = getComputedStyle(element);
    const picture = element.closest("svg");
    let ground = behind(picture ? picture.parentElement : element);
    if (picture) {
      const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
      for (const shape of picture.querySelectorAll("rect, polygon, circle, path")) {
        const before = shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
        if (!before || !covers(shape, x, y)) continue;
        const looks = getComputedStyle(shape);
        const fill = parsed(looks.fill);
        if (looks.fill === "none" || fill[3] === 0) continue;
        ground = over([...fill.slice(0, 3), Number(looks.opacity) * Number(looks.fillOpacity)], ground);
      }
    }
    const scale = picture ? picture.getBoundingClientRect().width / picture.viewBox.baseVal.width : 1;
    found.push({
      text: node.textContent.trim().slice(0, 40),
      color: over(parsed(picture ? style.fill : style.color), ground),
      ground,
      size: parseFloat(style.fontSize) * scale,
      picture: Boolean(picture),
    });
  }
  return found;
}"""


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast ratio of WCAG 2.1 of two sRGB colors, channels up to 255."""
    luminances = []
    for color in (one, other):
        part = np.array(color) / 255
        linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
        luminances.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_timeout(100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["judged", "plain", "refuted", "training"])
def test_all_text_has_contrast(opened: Open, reports: Path, name: str, scheme: str) -> None:
    page = opened((reports / f"{name}.html").as_uri() + "#head=L0H3", color_scheme=scheme)
    unfold(page)
    texts = page.evaluate(TEXTS)
    assert sum(one["picture"] for one in texts) > 50
    faint = {one["text"]: round(contrast(one["color"], one["ground"]), 2) for one in texts}
    assert {text: ratio for text, ratio in faint.items() if ratio < LEAST_CONTRAST} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_on_a_map_of_dimmed_heads_have_contrast(opened: Open, reports: Path, scheme: str) -> None:
    page = opened((reports / "judged.html").as_uri(), color_scheme=scheme)
    page.locator(".state-counts button").first.click()
    assert page.locator("#map .cell.dim").count() == 12
    faint = [one for one in page.evaluate(TEXTS) if contrast(one["color"], one["ground"]) < LEAST_CONTRAST]
    assert faint == []


@pytest.mark.parametrize("name", ["judged", "training"])
@pytest.mark.parametrize("width", WIDTHS)
def test_text_in_pictures_can_be_read(opened: Open, reports: Path, width: int, name: str) -> None:
    page = opened((reports / f"{name}.html").as_uri(), viewport={"width": width, "height": 800})
    small = {one["text"]: one["size"] for one in page.evaluate(TEXTS) if one["size"] < LEAST_TEXT}
    assert small == {}


@pytest.mark.parametrize("name", ["judged", "training"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_label_of_a_picture_is_clipped_or_covered(opened: Open, reports: Path, width: int, name: str) -> None:
    page = opened((reports / f"{name}.html").as_uri(), viewport={"width": width, "height": 800})
    outside, touching = page.evaluate("""() => {
      const outside = [], touching = [];
      for (const picture of document.querySelectorAll(".drawing svg")) {
        const frame = picture.getBoundingClientRect();
        const labels = [...picture.querySelectorAll("text")].map((one) => {
          const { left, right, top, bottom } = one.getBoundingClientRect();
          return { text: one.textContent, left, right, top, bottom };
        });
        for (const one of labels) {
          const wide = one.left < frame.left - 0.5 || one.right > frame.right + 0.5;
          if (wide || one.top < frame.top - 0.5 || one.bottom > frame.bottom + 0.5) outside.push(one.text);
        }
        labels.forEach((one, k) => labels.slice(k + 1).forEach((other) => {
          const wide = one.left < other.right - 1 && other.left < one.right - 1;
          if (wide && one.top < other.bottom - 3 && other.top < one.bottom - 3) touching.push([one.text, other.text]);
        }));
      }
      return [outside, touching];
    }""")
    assert outside == []
    assert touching == []


def test_the_numbers_of_a_long_pattern_are_not_clipped(opened: Open, tmp_path: Path, tokenizer: Any) -> None:
    long = scan(build("llama-gqa"), "words and more of them " * 60, tokenizer=tokenizer, length=1100, lengths=[1100])
    path = tmp_path / "long.html"
    path.write_text(render(long.overview, token_weights=long.token_weights), encoding="utf-8")
    page = opened(path.as_uri(), viewport={"width": 390, "height": 800})
    last, right = page.evaluate("""() => {
      const picture = document.querySelector(".pattern .drawing svg");
      const labels = [...picture.querySelectorAll("text")].map((one) => one.getBoundingClientRect().right);
      return [Math.max(...labels), picture.getBoundingClientRect().right];
    }""")
    assert "1,0" in page.locator(".pattern .drawing svg").text_content()  # numbers of four figures
    assert last <= right + 0.5


def test_equal_numbers_of_a_chart_do_not_cover_each_other(opened: Open, result: ScanResult, tmp_path: Path) -> None:
    found = made_findings([(layer, head) for layer in range(3) for head in range(5)])
    names = ("separability", "null_uniform", "null_random", "separability_without_sink")
    found["heads"][3]["evidence"] |= dict.fromkeys(names, 0.5)
    path = tmp_path / "equal.html"
    path.write_text(render(result.overview, found), encoding="utf-8")
    page = opened(path.as_uri() + "#head=L0H3")
    figure = page.locator(".subject figure", has=page.locator(".figure-title", has_text="Separability"))
    marks = figure.locator("svg").evaluate(
        "(svg) => [...svg.querySelectorAll('circle')].map((one) => [one.getAttribute('fill'), one.getAttribute('cx')])"
    )
    legend = [fill for fill, _ in marks[-4:]]
    at = [next(x for other, x in marks if other == fill) for fill in legend]
    assert len(set(at)) == 4


def test_the_tests_of_labels_fit_a_tablet(opened: Open, reports: Path) -> None:
    page = opened((reports / "refuted.html").as_uri(), viewport={"width": 768, "height": 900})
    wide, room = page.locator(".verified .scroll").evaluate("(box) => [box.scrollWidth, box.clientWidth]")
    assert wide <= room
    assert "withdrawn" in page.locator(".predictions").inner_text()


def test_a_cell_shows_its_numbers(opened: Open, reports: Path, result: ScanResult) -> None:
    page = opened((reports / "judged.html").as_uri())
    page.locator("#cell-0-1-2").hover()
    own = result.rows.filter(layer=1, head=2, length=128, normalizer="own").row(0, named=True)
    lines = page.locator("#hint").inner_text().splitlines()
    assert lines[0] == "L1H2: local"
    assert lines[1] == f"Participation: {own['participation']:.3g}"
    assert lines[2] == "Tokens needed: 17"


def test_a_chart_shows_its_numbers_to_pointer_and_keys(opened: Open, reports: Path, result: ScanResult) -> None:
    page = opened((reports / "plain.html").as_uri() + "#head=L1H2")
    chart = page.locator(".subject figure", has=page.locator(".figure-title", has_text="Top mass")).locator("svg")
    own = result.topn.filter(layer=1, head=2, length=128, normalizer="own").sort("n")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    expected = [f"N {n}\nmeasured: {round(100 * mass)}%" for n, mass in own.select("n", "top_mass").iter_rows()]
    assert page.locator("#hint").inner_text() == expected[-1]
    chart.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#hint").inner_text() == expected[-2]


def test_the_bar_of_states_shows_its_numbers(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri())
    page.locator(".state-bar .part").nth(1).hover()
    assert page.locator("#hint").inner_text().startswith("sink-bound: 3 of 15 heads, 20%.")


def test_what_leaves_an_axis_is_marked(opened: Open, result: ScanResult, tmp_path: Path) -> None:
    found = made_findings([(layer, head) for layer in range(3) for head in range(5)])
    found["heads"][3]["evidence"] |= {"error_first_key": 4.25, "separability": 1.5}
    path = tmp_path / "beyond.html"
    path.write_text(render(result.overview, found), encoding="utf-8")
    page = opened(path.as_uri() + "#head=L0H3")
    bars = page.locator(".errors tbody tr").all_inner_texts()
    assert "▸" in bars[0]
    assert "425%" in bars[0]
    assert "▸" not in bars[1]
    separability = page.locator(".subject figure", has=page.locator(".figure-title", has_text="Separability"))
    assert separability.locator("svg > .beyond").count() == 2  # the mark, and its entry in the legend
    assert "beyond the axis" in separability.locator("svg").text_content()


def test_numbers_say_which_rows_they_are_from(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri() + "#head=L0H3")
    scanned, diagnosed = "1 row that sees 128 tokens, in 1 window", "2 windows of 128 tokens spread over the text"
    assert f"From the diagnosis: {diagnosed}" in page.locator("#measure-sentence").inner_text()
    page.locator("#measure").select_option("sink_weight")
    assert f"From the scan: {scanned}." in page.locator("#measure-sentence").inner_text()
    panel = page.locator(".subject").inner_text()
    assert f"Scan: {scanned}. Diagnosis: {diagnosed}" in panel
    tiles = [" ".join(text.split()) for text in page.locator(".tile").all_inner_texts()]
    assert [[word for word in text.split() if word in ("scan", "diagnosis")] for text in tiles[:3]] == [
        ["scan", "diagnosis"],
        ["diagnosis"],
        ["scan"],
    ]
    assert tiles[0].endswith("4.2 diagnosis")
    assert page.locator(".list .source").all_inner_texts() == [f"Scan: {scanned}", f"Diagnosis: {diagnosed}"]
    page.locator("#length").select_option("2")
    assert "1 row that sees 32 tokens" in page.locator(".subject").inner_text()


def test_the_pattern_is_that_of_the_head_and_can_hide_the_first_key(
    opened: Open, reports: Path, result: ScanResult
) -> None:
    page = opened((reports / "plain.html").as_uri() + "#head=L1H2")
    patterns = result.token_weights.patterns.filter(layer=1, head=2)  # type: ignore[union-attr]
    figure = page.locator(".pattern")
    assert "the weight of one row on 2 neighboring keys together" in figure.inner_text()

    def pointed(row: int, cell: int) -> str:
        box = figure.locator(".catcher").bounding_box()
        page.mouse.move(box["x"] + (cell + 0.5) / 64 * box["width"], box["y"] + (row + 0.5) / 64 * box["height"])
        return str(page.locator("#hint").inner_text())

    figure.locator(".catcher").scroll_into_view_if_needed()
    line = patterns.row(40, named=True)
    words = pointed(40, 0).splitlines()
    assert words[0].startswith(f"row {line['position']} ")
    assert words[1].startswith("keys 0 to 1 “</”")
    shown = float(words[2].removeprefix("weight ").rstrip("%"))
    assert shown == pytest.approx(100 * line["weights"][0], abs=0.06 if shown < 10 else 0.6)
    figure.get_by_label("Hide the first key").check()
    figure = page.locator(".pattern")
    words = pointed(40, 0).splitlines()
    assert words[1].startswith("key 1 ")
    shown = float(words[2].removeprefix("weight ").rstrip("%"))
    assert shown == pytest.approx(100 * (line["weights"][0] - line["first_key_weight"]), abs=0.3)
    assert "not seen" in pointed(10, 60)
