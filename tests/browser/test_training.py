"""The page of a training run in a real browser: from disk, and live while a writer adds steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import serving
from training_runs import Training, made_alarm, measured_step

import attnscope

Open = Callable[..., Any]
LAST = 3500  # the last step of `training.html`


@pytest.fixture
def page(opened: Open, reports: Path) -> Any:
    return opened((reports / "training.html").as_uri())


def shares(step: int, measure: str) -> dict[str, str]:
    """What the cells of the map say of a measure that is a share."""
    words = {}
    for layer, head, value in measured_step(step).select("layer", "head", measure).iter_rows():
        percent = 100 * float(f"{value:.4g}")
        words[f"L{layer}H{head}"] = f"{percent:.0f}%" if percent >= 10 else f"{percent:.1f}%"
    return words


def cells(page: Any) -> list[str]:
    labels: list[str] = page.locator("#map .cell").evaluate_all(
        "cells => cells.map((cell) => cell.getAttribute('aria-label'))"
    )
    return labels


def move(page: Any, step: int) -> None:
    page.locator("#step").evaluate(
        "(slider, index) => { slider.value = index; slider.dispatchEvent(new Event('input')); }", step // 50 - 1
    )


def curve(page: Any, title: str) -> Any:
    return page.locator("#curves figure", has=page.locator(".figure-title", has_text=title)).locator("svg")


def test_the_slider_shows_the_map_of_every_step(page: Any) -> None:
    assert page.locator("#step-words").inner_text() == "3,500 of 3,500"
    page.locator("#measure").select_option("max_weight")
    for step in (LAST, 50, 1700):
        move(page, step)
        assert page.locator("#step-words").inner_text() == f"{step:,} of 3,500"
        shown = dict(label.split(": Max weight ") for label in cells(page))
        assert {head: words.split(",")[0] for head, words in shown.items()} == shares(step, "max_weight")
    assert "step 1,700" in page.locator("#map-place .figure-title").inner_text()
    page.locator("#step").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#step-words").inner_text() == "1,750 of 3,500"


def test_a_color_means_the_same_at_every_step(page: Any) -> None:
    page.locator("#measure").select_option("max_logit")
    fill = "cell => cell.firstChild.getAttribute('fill')"
    values = {}
    for step in (50, LAST):
        move(page, step)
        ends = page.locator("#map-place .ends").inner_text()
        values[step] = (ends, page.locator("#cell-0-0-0").evaluate(fill))
    assert values[50][0] == values[LAST][0]
    assert values[50][1] != values[LAST][1]


def test_readings_on_the_page_are_those_of_python(page: Any, reports: Path, tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.measure(LAST)
    run: Any = attnscope.load_run(tmp_path)
    expected = {
        f"L{layer}H{head}": reading
        for layer, head, reading in run.readings.select("layer", "head", "reading").iter_rows()
    }
    assert dict(label.split(": ") for label in cells(page)) == expected
    counts = {state: list(expected.values()).count(state) for state in set(expected.values())}
    for state, count in counts.items():
        assert f"{count} {state}" in page.locator(".state-counts").inner_text()


def test_curves_show_the_chosen_heads_beside_the_loss(page: Any) -> None:
    page.locator("#measure").select_option("max_weight")
    page.locator("#cell-0-2-0").click()
    page.locator("#keep").click()
    page.locator("#cell-0-0-1").click()
    chart = curve(page, "Max weight")
    assert chart.locator("polyline").count() == 2
    assert chart.locator("polygon").count() == 1  # the range over all heads
    chart.focus()
    page.keyboard.press("ArrowLeft")
    table = measured_step(LAST - 50)
    lines = page.locator("#hint").inner_text().splitlines()
    assert lines[0] == "step 3,450"
    expected = shares(LAST - 50, "max_weight")
    assert lines[1:3] == [f"L2H0: {expected['L2H0']}", f"L0H1: {expected['L0H1']}"]
    low, high = table["max_weight"].min(), table["max_weight"].max()
    assert lines[3] == f"all heads: {100 * low:.1f}% to {100 * high:.0f}%"
    loss = curve(page, "Loss")
    assert loss.locator("polyline").count() == 1
    page.get_by_role("button", name="Drop L2H0").click()
    assert curve(page, "Max weight").locator("polyline").count() == 1


def test_a_click_on_a_curve_moves_the_map_to_that_step(page: Any) -> None:
    catcher = curve(page, "Loss").locator(".catcher")
    catcher.scroll_into_view_if_needed()
    box = catcher.bounding_box()
    page.mouse.click(box["x"] + 12, box["y"] + 80)
    step = int(page.locator("#step-words").inner_text().split()[0].replace(",", ""))
    assert 50 <= step <= 200
    assert f"step {step}" in page.locator("#numbers h3").inner_text()


def test_alarms_are_on_the_axis_and_in_the_list(page: Any) -> None:
    assert (
        "1 alarm in 1 of 15 heads, the first at step 3,050: L1H2, entropy collapse"
        in page.locator(".headline").inner_text()
    )
    assert curve(page, "Entropy ratio").locator(".event").count() == 1
    line = page.locator("#alarms tbody tr")
    assert line.count() == 1
    assert "Lower the learning rate" in line.inner_text()
    assert "<b>now</b>" in line.inner_text()
    assert page.locator("#map .remark").count() == 1
    page.locator("#cell-0-1-2").hover()
    assert page.locator("#hint").inner_text().splitlines()[1] == "alarm at step 3,050: entropy collapse"
    page.locator("#cell-0-0-0").click()
    assert "alarm of another head" in curve(page, "Entropy ratio").text_content()
    move(page, 1000)
    assert page.locator("#map .remark").count() == 0
    page.locator("#alarm-after").click()
    assert page.locator("#step-words").inner_text() == "3,050 of 3,500"
    assert page.locator("#alarm-after").is_disabled()
    line.get_by_role("link", name="L1H2").click()
    assert page.locator("#numbers h3").inner_text().startswith("L1H2 at step 3,050")


def test_it_says_how_many_steps_it_has(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.monitor.page._MOST_STEPS", 15)
    training = Training(tmp_path / "run")
    for step in range(50, 2001, 50):
        training.measure(step)
    run: Any = attnscope.load_run(tmp_path / "run")
    (tmp_path / "page.html").write_text(run.page(), encoding="utf-8")
    page = opened((tmp_path / "page.html").as_uri())
    words = page.locator(".lead").inner_text()
    assert "40 measured steps, from 50 to 2,000. This page has 15 of them" in words
    assert "Training when this page was made" in page.locator("#live").inner_text()
    assert page.locator("#verdict-title").inner_text() == "So far, at step 2,000"


# Live


def wait(page: Any, text: str, selector: str = "#step-words") -> None:
    page.locator(selector, has_text=text).wait_for()


def drawn_steps(page: Any) -> list[float]:
    """The steps of the loss chart, by walking over it."""
    chart = curve(page, "Loss")
    chart.focus()
    steps = []
    for _ in range(100):
        words = page.locator("#hint").inner_text() if page.locator("#hint").is_visible() else ""
        page.keyboard.press("ArrowLeft")
        if page.locator("#hint").inner_text() == words:
            break
        steps.append(float(page.locator("#hint").inner_text().splitlines()[0].removeprefix("step ").replace(",", "")))
    return steps[::-1]


def test_steps_and_alarms_appear_while_the_page_is_open(opened: Open, tmp_path: Path) -> None:
    training = Training(tmp_path / "live")
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/run/live")
        assert "Nothing was measured yet" in page.locator("#verdict").inner_text()
        for step in (50, 100):
            training.measure(step)
            wait(page, f"{step} of {step}")
        assert "Training, live" in page.locator("#live").inner_text()
        page.locator("#measure").select_option("max_weight")
        training.measure(150, (made_alarm(150),))
        wait(page, "150 of 150")
        wait(page, "1 alarm in 1 of 15 heads", ".headline")
        shown = dict(label.split(": Max weight ") for label in cells(page))
        assert {head: words.split(",")[0] for head, words in shown.items()} == shares(150, "max_weight")
        move(page, 100)  # who looks at an earlier step stays there
        training.measure(200)
        wait(page, "100 of 200")
        training.finish()
        wait(page, "Finished", "#live")
        assert drawn_steps(page) == [50, 100, 150]


def test_a_page_that_lost_the_server_goes_on_where_it_was(opened: Open, tmp_path: Path) -> None:
    training = Training(tmp_path / "live")
    training.measure(50)
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/run/live", losing=True)
        training.measure(100)
        wait(page, "100 of 100")
        page.evaluate("window.same = true")
        port = served.port
    wait(page, "the connection to the server is lost", "#live")
    for step in (150, 200):
        training.measure(step)
    with serving(tmp_path, port=port):
        wait(page, "200 of 200")
        wait(page, "Training, live", "#live")
        training.measure(250)
        wait(page, "250 of 250")
        assert drawn_steps(page) == [50, 100, 150, 200]
        assert page.evaluate("window.same")  # it was not loaded again
        page.close()


def test_a_run_that_is_resumed_earlier_is_read_again(opened: Open, tmp_path: Path) -> None:
    training = Training(tmp_path / "live")
    for step in (50, 100, 150):
        training.measure(step)
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/run/live")
        wait(page, "150 of 150")
        training.files.keep_until(50)
        training.measure(75)
        wait(page, "75 of 75")
        training.measure(125)
        wait(page, "125 of 125")
        assert drawn_steps(page) == [50, 75]


def test_a_run_that_was_killed_is_shown_as_stopped(opened: Open, tmp_path: Path) -> None:
    training = Training(tmp_path / "live")
    training.measure(50)
    training.files.close()
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/run/live")
        wait(page, "Training, live", "#live")
        for file in (tmp_path / "live").rglob("*.*"):
            os.utime(file, (1e9, 1e9))
        wait(page, "Stopped", "#live")
        page.goto(f"{served.address}/")
        run = page.locator(".runs tbody tr")
        run.wait_for()
        assert "training: 1 measured steps up to step 50, stopped without being closed" in run.inner_text()
        run.get_by_role("link", name="live").click()
        page.wait_for_selector("html[data-ready]", state="attached")


def test_the_list_of_runs_keeps_up_unless_somebody_is_at_work_in_it(opened: Open, tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/")
        wait(page, "No runs yet", "#runs")
        training = Training(tmp_path / "live")
        training.measure(50)
        wait(page, "up to step 50", ".runs")
        page.get_by_role("button", name="Rename live").click()
        training.measure(100)
        page.wait_for_timeout(3500)  # more than the page leaves between two looks
        assert page.get_by_label("New name of live").input_value() == "live"
        page.get_by_role("button", name="Keep the name").click()
        page.locator(":focus").blur()
        wait(page, "up to step 100", ".runs")
