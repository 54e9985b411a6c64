"""The report in a real browser, opened from disk."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from reports import enlarged, large_shown, made_findings

from attnscope.columns import head_name
from attnscope.scanning import ScanResult
from attnscope.scanning.overview import Overview
from attnscope.scanning.page_data import render
from attnscope.show.numbers import short_path

Open = Callable[..., Any]
COUNTS = "B3 broad 20% S3 sink-bound 20% C3 constant 20% L3 local 20% ·3 selective 20%"
SHOWN = "#map .cell:not(.dim)"


def counts(page: Any) -> str:
    """The numbers below the bar of states."""
    return " ".join(page.locator(".state-counts").inner_text().split())


def test_a_newcomer_sees_the_verdict_and_the_map_first(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri())
    assert page.locator("#verdict h2").inner_text() == "Verdict"
    assert page.locator(".headline").inner_text() == "3 of 15 heads need many tokens."
    assert page.locator(".headline").bounding_box()["y"] < 400  # the verdict comes first
    assert counts(page) == COUNTS
    card = page.locator(".finding").first
    assert page.locator("#map").bounding_box()["y"] < min(900, card.bounding_box()["y"])  # without scrolling
    assert "Some heads need many tokens" in card.inner_text()
    assert "Do not sharpen them." in card.inner_text()
    card.get_by_role("button").click()
    assert page.locator(SHOWN).count() == 3
    assert page.locator(".subject h3").inner_text().startswith("L0H3")


def test_the_heads_that_matter_most_lead_to_their_panels(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri())
    line = page.locator(".ranked li").nth(1)
    for words in ("L1H3", "Why: Why second.", "What to do: What second.", "When that matters: when second."):
        assert words in line.inner_text()
    line.get_by_role("link", name="L1H3").click()
    assert page.locator(".subject h3").inner_text().startswith("L1H3")
    assert page.url.endswith("#head=L1H3")
    while page.locator("#panel").bounding_box()["y"] > 300:  # the page scrolls there
        page.wait_for_timeout(50)
    assert "attnscope scan" in page.locator(".next").inner_text()
    assert "too short" in page.locator(".verdict .warning").inner_text()


@pytest.mark.parametrize("name", ["openai-community/gpt2", "/data/minilm/model", "runs/of/mine", "C:\\models\\a.gguf"])
def test_the_page_names_a_model_as_the_terminal_does(
    opened: Open, result: ScanResult, tmp_path: Path, name: str
) -> None:
    run = result.run | {"model": result.run["model"] | {"name": name}}
    (tmp_path / "named.html").write_text(render(Overview.of(result.rows, result.topn, run)), encoding="utf-8")
    assert opened((tmp_path / "named.html").as_uri()).locator("h1").inner_text() == short_path(name)


def test_an_encoder_decoder_is_not_told_to_be_diagnosed(opened: Open, result: ScanResult, tmp_path: Path) -> None:
    layers = [
        entry | {"kind": kind, "module": module}
        for entry, kind, module in zip(
            result.run["model"]["heads"],
            ("self", "self", "cross"),
            ("encoder.block.0.attention", "decoder.block.0.attention", "decoder.block.0.cross"),
            strict=True,
        )
    ]
    run = result.run | {"model": result.run["model"] | {"heads": layers}}
    (tmp_path / "t5.html").write_text(render(Overview.of(result.rows, result.topn, run)), encoding="utf-8")
    page = opened((tmp_path / "t5.html").as_uri() + "#head=L2H1")
    assert "--diagnose" not in page.locator("#verdict").inner_text()
    assert page.locator(".subject h3 .module").inner_text() == "decoder.block.0.cross"
    assert "2: decoder.block.*.cross" in page.locator("#how").inner_text()


def test_the_bar_of_states_is_in_proportion(opened: Open, result: ScanResult, tmp_path: Path) -> None:
    found = made_findings([(layer, head) for layer in range(3) for head in range(5)])
    states = ["selective"] * 9 + ["broad"] * 5 + ["local"]
    for entry, state in zip(found["heads"], states, strict=True):
        entry |= {"state": state, "edge": None}
    path = tmp_path / "bar.html"
    path.write_text(render(result.overview, found), encoding="utf-8")
    for width in (1280, 390):
        page = opened(path.as_uri(), viewport={"width": width, "height": 800})
        sizes = page.locator(".part").evaluate_all(
            "parts => parts.map((part) => [part.dataset.state, part.getBoundingClientRect().width])"
        )
        whole = sum(size for _, size in sizes)
        shares = {state: size / whole for state, size in sizes}
        assert shares == pytest.approx({"broad": 5 / 15, "local": 1 / 15, "selective": 9 / 15}, abs=0.005)
        assert counts(page) == "B5 broad 33% L1 local 6.7% ·9 selective 60%"


def test_labels_are_explained_with_their_limits_and_doubts(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri() + "#head=L0H3")
    words = page.locator(".judgment").inner_text()
    assert "near the limit to selective" in words
    assert "70% of the time" in words
    assert "42%\tnot enough (limit 30%)" in words
    predictions = page.locator(".predictions tbody .numbers").all_inner_texts()
    assert ["✓ held" in line for line in predictions] == [True, False]
    assert "constant" in page.locator(".verified").inner_text()
    page.locator("#measure").select_option("tokens_needed")
    assert page.locator("#cell-0-2-4").get_attribute("aria-label") == "L2H4: Tokens needed 24, selective"


def test_a_refuted_label_is_shown_nowhere_as_if_it_held(opened: Open, reports: Path) -> None:
    """Fault 31."""
    page = opened((reports / "refuted.html").as_uri() + "#head=L0H3")
    assert counts(page) == "S3 sink-bound 20% C3 constant 20% L3 local 20% ·3 selective 20% x3 no label 20%"
    withdrawn = page.locator(".verdict .withdrawn").inner_text()
    assert "1.1 times (0.9 to 1.3 over 4 windows)" in withdrawn
    assert "broad" not in page.locator(".legend").inner_text()
    assert "x no label 3" in page.locator(".legend").inner_text()
    assert page.locator("#cell-0-0-3").get_attribute("aria-label") == "L0H3: no label"
    assert page.locator(".subject h3 .badge").inner_text() == "x no label"
    words = page.locator(".judgment").inner_text()
    assert "1.1 times (0.9 to 1.3 over 4 windows)" in words
    assert "enough" not in words
    assert "needs many tokens" not in page.locator(".subject").inner_text().lower()
    assert "broad" not in page.locator("#filter-state").inner_text()
    page.locator(".filters summary").click()
    page.locator("#filter-state").select_option("no label")
    assert page.locator(SHOWN).count() == 3
    lines = page.locator(".predictions tbody .numbers").all_inner_texts()
    assert ["(9.8 to 10.2)" in lines[0], "(0.9 to 1.3)" in lines[1]] == [True, True]
    assert page.locator(".predictions .badge").count() == 1  # a badge says what a label means: not of one that failed


def test_the_claims_are_a_table(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri())
    lines = page.locator("#claims tbody tr").all_inner_texts()
    assert len(lines) == 2
    assert "Weights lie between <b>bounds</b>." in lines[0]
    assert "✗ violated in 25%\t✓ held" in lines[0]
    assert "\\u202e" in lines[1]
    with page.expect_download() as download:
        page.locator("#claims").get_by_role("button", name="CSV").click()
    table = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert [line[0] for line in table] == ["claim", "lemma-1", "figure-2"]
    plain = opened((reports / "plain.html").as_uri())
    assert not plain.locator("#claims").is_visible()


def test_a_click_on_a_head_shows_its_numbers(opened: Open, reports: Path, result: ScanResult) -> None:
    page = opened((reports / "plain.html").as_uri())
    page.locator("#cell-0-2-4").click()
    assert page.locator(".subject h3").inner_text() == "L2H4"
    tokens = result.rows.filter(layer=2, head=4, length=128, normalizer="own")["participation"].item()
    assert f"Participation {tokens:.3g} at" in page.locator(".in-words").inner_text()
    titles = page.locator(".subject .figure-title").all_inner_texts()
    assert len(titles) == 9  # text, pattern, six charts, what if
    assert page.locator(".what-if tbody tr").count() == 2
    assert page.url.endswith("#head=L2H4")


def test_the_measure_and_the_length_can_be_switched(opened: Open, reports: Path, result: ScanResult) -> None:
    page = opened((reports / "plain.html").as_uri())
    page.locator("#measure").select_option("sink_weight")
    page.locator("#length").select_option("2")
    weight = result.rows.filter(layer=1, head=0, length=32, normalizer="own")["sink_weight"].item()
    label = page.locator("#cell-0-1-0").get_attribute("aria-label")
    shown = re.search(r"Sink weight (<?[\d.]+)%", label)
    assert shown
    assert float(shown[1].lstrip("<")) == pytest.approx(100 * weight, abs=0.51)
    assert "length 32" in page.locator(".maps .figure-title").inner_text()


def test_heads_and_lengths_are_compared(opened: Open, reports: Path) -> None:
    page = opened((reports / "plain.html").as_uri())
    page.locator("#cell-0-0-0").click()
    page.locator("#compare").select_option("heads")
    assert "choose the second head" in page.locator("#panel").inner_text()
    page.locator("#cell-0-1-1").click()
    assert page.locator(".subject h3").all_inner_texts() == ["L0H0", "L1H1"]
    page.locator("#compare").select_option("lengths")
    assert page.locator(".subject h3").all_inner_texts() == ["L1H1, length 128", "L1H1, length 64"]


def test_two_runs_open_on_their_names_verdicts_and_differences(opened: Open, reports: Path) -> None:
    page = opened((reports / "plain.html").as_uri() + "#head=L1H1")
    with page.expect_file_chooser() as chooser:
        page.locator("#compare").select_option("runs")
    chooser.value.set_files(reports / "judged.html")
    page.locator(".map").nth(1).wait_for()
    title = page.locator("h1").inner_text()
    assert title.startswith("A: ")
    assert " compared with B: " in title
    verdicts = page.locator(".verdicts > div").all_inner_texts()
    assert [text[:2] for text in verdicts] == ["A:", "B:"]
    assert "none diagnosed" in verdicts[0]
    assert "3 of 15 heads need many tokens." in verdicts[1]
    assert page.locator(".apart tbody tr").all_inner_texts() == ["diagnosis\tnone\t2 windows of 128 tokens"]
    assert page.locator("h1").bounding_box()["y"] < 200  # the page is at its top
    assert [title[:2] for title in page.locator(".subject h3").all_inner_texts()] == ["A:", "B:"]
    assert "B minus A" in page.locator(".maps").inner_text()
    differences = page.locator(".differences tbody tr td:last-child").all_inner_texts()
    assert {text.split()[0] for text in differences} == {"0"}  # the same numbers twice
    assert page.locator("#list tbody tr").count() == 15
    page.locator("#compare").select_option("none")
    assert " compared with " not in page.locator("h1").inner_text()


def test_runs_of_different_shapes_are_shown_apart(
    opened: Open, reports: Path, result: ScanResult, tmp_path: Path
) -> None:
    rows, topn = (table.filter(pl.col("layer") < 2) for table in (result.rows, result.topn))
    run = result.run | {"model": result.run["model"] | {"heads": result.run["model"]["heads"][:2]}}
    other = tmp_path / "other.html"
    other.write_text(render(Overview.of(rows, topn, run)), encoding="utf-8")
    page = opened((reports / "plain.html").as_uri())
    page.locator("#other-file").set_input_files(other)
    page.locator(".map").nth(1).wait_for()
    warning = page.locator("#top .warning").inner_text()
    assert "A has 3 layers of 5 heads, B has 2 layers of 5 heads" in warning
    assert "B minus A" not in page.locator(".maps").inner_text()
    assert not page.locator("#list").is_visible()
    page.locator("#cell-1-1-2").click()
    assert page.locator(".subject h3").all_inner_texts() == ["B: L1H2, length 128"]


def test_long_names_fit_a_phone_while_runs_are_compared(
    opened: Open, reports: Path, result: ScanResult, tmp_path: Path
) -> None:
    text = result.run["text"] | {"source": "/books/" + "a_long_name_" * 6}
    run = result.run | {"model": result.run["model"] | {"name": "/models/" + "another_name_" * 6}, "text": text}
    other = tmp_path / "other.html"
    other.write_text(render(Overview.of(result.rows, result.topn, run)), encoding="utf-8")
    page = opened((reports / "plain.html").as_uri(), viewport={"width": 390, "height": 800})
    page.locator("#other-file").set_input_files(other)
    page.locator(".map").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_file_that_is_no_report_is_refused(opened: Open, reports: Path, tmp_path: Path) -> None:
    page = opened((reports / "plain.html").as_uri())
    (tmp_path / "other.html").write_text('<script id="data">alert(1)</script>')
    page.locator("#other-file").set_input_files(tmp_path / "other.html")
    page.locator("#status", has_text="not a report.html").wait_for()


def test_heads_are_filtered_and_sorted(opened: Open, reports: Path, result: ScanResult) -> None:
    page = opened((reports / "plain.html").as_uri())
    own = result.rows.filter(length=128, normalizer="own")
    middle = round(own["participation"].median())
    page.locator(".filters summary").click()
    page.locator("#limit").fill(str(middle))
    page.locator("#limit").press("Enter")
    expected = own.filter(own["participation"] >= middle).height
    assert page.locator("table.list tbody tr").count() == pytest.approx(expected, abs=1)  # four figures in the page
    page.locator("#clear").click()
    page.locator('[data-column="max_weight"]').click()
    first = page.locator("table.list tbody tr th").first.inner_text()
    top = own.sort("max_weight", descending=True).row(0, named=True)
    assert first == head_name(top["layer"], top["head"])
    page.locator("#sorted").check()
    assert "by participation" in page.locator("#map").inner_html()


def test_hostile_tokens_are_shown_and_not_run(opened: Open, reports: Path) -> None:
    """Fault 21."""
    page = opened((reports / "plain.html").as_uri())
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    text = page.locator(".tokens").inner_text()
    assert "".join(text.split()).startswith("</script><script>window.hacked=1</script>")
    assert "\\u0007" in text
    assert "\u202e" not in page.locator("body").inner_text()
    assert "\\u202e" in page.locator("h1").inner_text()


def test_dark_follows_the_system_and_can_be_chosen(opened: Open, reports: Path) -> None:
    """Fault 25."""
    page = opened((reports / "plain.html").as_uri(), color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(23, 27, 32)"
    page.locator("#theme").select_option("light")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    axis = page.locator(".charts svg text").first.get_attribute("fill")
    assert axis == "#1b1f24"
    page.emulate_media(color_scheme="light")
    page.locator("#theme").select_option("dark")
    assert page.evaluate(background) == "rgb(23, 27, 32)"


def test_the_keyboard_reaches_everything(opened: Open, reports: Path) -> None:
    """Fault 25."""
    page = opened((reports / "plain.html").as_uri() + "#head=L0H0")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#map").focus()
    for key, head in (
        ("ArrowRight", "L0H1"),
        ("ArrowDown", "L1H1"),
        ("End", "L1H4"),
        ("ArrowUp", "L0H4"),
    ):
        page.keyboard.press(key)
        assert page.locator(".subject h3").inner_text() == head
        assert page.evaluate("document.activeElement.id") == "map"
    assert page.locator("#map").get_attribute("aria-activedescendant") == "cell-0-0-4"
    page.locator("#measure").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.id") == "measure"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    term = page.locator(".subject .term").first
    term.focus()
    assert page.locator("#hint").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#hint").is_visible()


def test_every_chart_can_be_saved(opened: Open, reports: Path, result: ScanResult) -> None:
    page = opened((reports / "plain.html").as_uri() + "#head=L1H2", color_scheme="dark")
    chart = page.locator(".subject figure", has=page.locator(".figure-title", has_text="Top mass"))
    contents = {}
    for kind in ("SVG", "PNG", "CSV"):
        with page.expect_download() as download:
            chart.get_by_role("button", name=kind).click()
        assert download.value.suggested_filename == f"top-mass-L1H2.{kind.lower()}"
        contents[kind] = Path(download.value.path()).read_bytes()
    assert contents["PNG"].startswith(b"\x89PNG")
    assert b'fill="#ffffff"' in contents["SVG"]
    assert b"Top mass" in contents["SVG"]
    lines = list(csv.reader(io.StringIO(contents["CSV"].decode())))
    own = result.topn.filter(layer=1, head=2, length=128, normalizer="own").sort("n")
    assert [int(line[0]) for line in lines[1:]] == own["n"].to_list()
    assert [float(line[1]) for line in lines[1:]] == pytest.approx(own["top_mass"].to_list(), rel=1e-3)


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_screen(opened: Open, reports: Path, width: int) -> None:
    page = opened((reports / "judged.html").as_uri(), viewport={"width": width, "height": 800})
    for compared in ("none", "heads", "lengths"):
        page.locator("#compare").select_option(compared)
        page.locator("#cell-0-1-1").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, compared
    clipped = "parts => parts.filter((part) => part.scrollWidth > part.clientWidth).map((part) => part.textContent)"
    assert page.locator(".state-bar .part, .tile, .badge").evaluate_all(clipped) == []


def test_lengths_are_compared_by_what_depends_on_them(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri() + "#head=L0H3")
    assert "Error if a simpler rule" in page.locator("#panel").inner_text()
    page.locator("#compare").select_option("lengths")
    words = page.locator("#panel").inner_text()
    assert "Separability" in words
    assert "Error" not in words  # the diagnosis has one length
    assert "Where it looks" not in words


def test_a_run_without_a_diagnosis_is_compared_by_a_number(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri())
    assert page.locator("#measure").input_value() == "state"
    page.locator("#other-file").set_input_files(reports / "plain.html")
    page.locator(".map").nth(1).wait_for()
    assert page.locator("#measure").input_value() == "participation"
    first, second = (page.locator(".maps figure").nth(k).bounding_box() for k in range(2))
    assert first["y"] == second["y"]  # side by side
    offered = page.locator("#measure option").evaluate_all("options => options.map((option) => option.value)")
    assert "sink_weight" in offered
    assert not {"state", "tokens_needed"} & set(offered)  # the other run has none


def test_it_prints_light_and_whole(opened: Open, reports: Path) -> None:
    page = opened((reports / "judged.html").as_uri())
    page.locator("#theme").select_option("dark")
    axis = page.locator(".charts svg text").first
    assert axis.get_attribute("fill") == "#e8ebee"
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not page.locator(".controls").first.is_visible()
    assert axis.get_attribute("fill") == "#1b1f24"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("table.list tbody tr").count() == 15
    assert page.locator("details:not([open]):visible").count() == 0
    assert "the panels of the other 14 heads" in page.locator("#on-paper").inner_text()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert axis.get_attribute("fill") == "#e8ebee"
    assert page.pdf()[:4] == b"%PDF"


def test_a_single_head_and_missing_numbers_are_shown_as_what_they_are(
    opened: Open, result: ScanResult, tmp_path: Path
) -> None:
    rows, topn = (table.filter(layer=0, head=0, length=128, normalizer="own") for table in (result.rows, result.topn))
    nothing = [table.with_columns(pl.selectors.float() * float("nan")) for table in (result.rows, result.topn)]
    one, missing = tmp_path / "one.html", tmp_path / "missing.html"
    one.write_text(render(Overview.of(rows, topn, result.run), token_weights=result.token_weights), encoding="utf-8")
    missing.write_text(render(Overview.of(*nothing, result.run)), encoding="utf-8")
    page = opened(one.as_uri())
    assert page.locator("#map .cell").count() == 1
    assert "1 layer, 1 head." in page.locator("#top").inner_text()
    assert "other heads" not in page.locator(".in-words").inner_text()
    page = opened(missing.as_uri())
    assert page.locator("#map .cell").count() == 15
    assert "nan" not in page.locator("body").inner_text().lower().split()
    assert page.locator(".finding").count() == 0


def test_a_report_of_3072_heads_is_small_and_quick(opened: Open, result: ScanResult, tmp_path: Path) -> None:
    """Fault 25."""
    assert result.token_weights
    rows, topn = (enlarged(table, 48, 64) for table in (result.rows, result.topn))
    path = tmp_path / "large.html"
    path.write_text(
        render(Overview.of(rows, topn, result.run), token_weights=large_shown(result.token_weights, 48, 64)),
        encoding="utf-8",
    )
    assert path.stat().st_size < 5_000_000
    page = opened(path.as_uri())
    assert page.locator("#map .cell").count() == 48 * 64
    page.locator("#map").focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("End")
    assert page.locator(".subject h3").inner_text() == "L47H63"
    page.locator("#measure").select_option("separability")
    assert page.locator("table.list tbody tr").count() == 20
    page.locator("#list button.more").click()
    assert page.locator("table.list tbody tr").count() == 48 * 64


def test_heads_ranked_by_a_test_say_which_windows_it_ran_on(opened: Open, result: ScanResult, tmp_path: Path) -> None:
    found = made_findings([(layer, head) for layer in range(3) for head in range(5)])
    paths = {}
    for kl in (None, 0.08):
        for one in found["verdict"]["heads"]:
            one["kl"] = kl
        found["verification"] |= {"windows": 3, "length": 128}
        paths[kl] = tmp_path / f"{kl}.html"
        paths[kl].write_text(render(result.overview, found), encoding="utf-8")
    assert "From the diagnosis: 2 windows" in opened(paths[None].as_uri()).locator(".ranked").inner_text()
    tested = opened(paths[0.08].as_uri()).locator(".ranked").inner_text()
    assert "From the test inside the model, on 3 other windows of 128 tokens" in tested
