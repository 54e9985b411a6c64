"""The server's pages in a real browser: the list, the form, progress, cancel, compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servers import serving

import attnscope
from attnscope.scanning import ScanResult


def test_a_scan_is_started_watched_cancelled_and_taken_up(
    opened: Callable[..., Any], result: ScanResult, model_folder: Path, text: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("one", "two"):
        result.save(tmp_path / name)
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/")
        page.wait_for_selector(".runs")
        assert page.locator(".runs tbody th").all_inner_texts() == ["two", "one"]

        page.locator("#model").fill(str(model_folder))
        page.locator("#pasted").fill(text * 64)
        page.locator("#length").fill("32")
        page.locator("#windows").fill("300")  # more than are measured until it is cancelled
        page.locator("#rows").fill("all")
        page.locator("#diagnose").uncheck()
        page.locator("#start").click()
        page.locator("#progress").wait_for()
        box = page.locator("#progress").bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= 900  # in view
        while page.locator("#progress-bar").evaluate("bar => bar.value") < 4:
            page.wait_for_timeout(50)
        while not list(tmp_path.glob("*/.parts/manifest.jsonl")):  # windows that are not in it are not kept
            page.wait_for_timeout(50)
        assert "window" in page.locator("#progress-words").inner_text()
        page.locator("#cancel").click()
        page.locator("#status", has_text="was cancelled").wait_for()
        stopped = page.locator(".runs tr", has_text="windows finished")
        stopped.wait_for()
        stopped.get_by_role("button", name="Resume").click()
        page.locator("#status", has_text="is finished").wait_for()
        page.locator(".runs tbody th a").nth(2).wait_for()

        for name in ("one", "two"):
            page.get_by_label(f"Choose {name} for comparison").check()
        page.locator("#compare").click()
        page.wait_for_selector("html[data-ready]", state="attached")
        assert page.locator(".map").count() == 2
        page.get_by_role("link", name="all runs").click()
        page.wait_for_selector(".runs")


def test_the_page_of_a_study_is_opened_from_the_list_and_leads_back(opened: Callable[..., Any], tmp_path: Path) -> None:
    attnscope.audit("lemma-1", progress=False).save(tmp_path / "some audit")
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/")
        page.get_by_role("link", name="some audit").click()
        page.get_by_text("lemma-1").first.wait_for()
        page.get_by_role("link", name="all runs").click()
        page.wait_for_selector(".runs")


def test_a_diagnosis_is_ticked_tried_and_read(
    opened: Callable[..., Any], model_folder: Path, text: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/")
        page.locator("#new").wait_for()
        assert page.locator("#diagnose").is_checked()
        page.locator("#verify").check()
        page.locator("#diagnose").uncheck()  # labels that are tested come from a diagnosis
        assert not page.locator("#verify").is_checked()
        page.locator("#verify").check()
        assert page.locator("#diagnose").is_checked()
        page.locator("#model").fill(str(model_folder))
        page.locator("#pasted").fill(text * 8)
        page.locator("#length").fill("32")
        page.locator("#windows").fill("2")
        page.locator("#start").click()
        page.locator("#status", has_text="is finished").wait_for()
        run = page.locator(".runs tbody tr")
        (folder,) = tmp_path.iterdir()
        headline = json.loads((folder / "findings.json").read_text("utf-8"))["verdict"]["headline"]
        assert headline in run.inner_text()
        run.get_by_role("link").first.click()
        page.wait_for_selector("html[data-ready]", state="attached")
        assert headline in page.locator(".headline").inner_text()
        assert page.locator("#map .cell").count() == 15
        assert "Tested inside the model" in page.locator("#findings").inner_text()


def test_a_wrong_path_is_refused_beside_its_field(opened: Callable[..., Any], tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/", refusing=True)
        page.locator("#new").wait_for()
        page.locator("#text").fill("/no/such/text")
        page.locator("#start").click()
        refusal = page.locator(".refusal")
        refusal.wait_for()
        assert "/no/such/text" in refusal.inner_text()
        assert page.locator("#text").get_attribute("aria-invalid") == "true"
        assert page.locator("#text").evaluate("field => field === document.activeElement")
        page.locator("#text").fill("")
        page.locator("#model").fill("/no/such/model")
        page.locator("#start").click()
        page.locator("#model[aria-invalid]").wait_for()
        assert page.locator(".refusal").count() == 1
        assert list(tmp_path.iterdir()) == []


def test_runs_are_filtered_renamed_and_deleted(opened: Callable[..., Any], result: ScanResult, tmp_path: Path) -> None:
    for name in ("alpha", "beta", "gamma"):
        result.save(tmp_path / name)
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/", refusing=True)
        runs = page.locator(".runs tbody th")
        runs.first.wait_for()
        page.locator("#filter").fill("BET")
        assert runs.all_inner_texts() == ["beta"]
        assert page.locator("#shown").inner_text() == "1 of 3 runs"
        page.locator("#filter").fill("")

        page.get_by_role("button", name="Rename beta").click()
        field = page.get_by_label("New name of beta")
        field.fill("../beta")
        field.press("Enter")
        page.locator("#status", has_text="cannot be called").wait_for()
        field.fill("delta")
        field.press("Enter")
        page.locator("#status", has_text="beta is now called delta").wait_for()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["alpha", "delta", "gamma"]

        page.get_by_role("button", name="Delete alpha").click()
        page.get_by_role("button", name="Keep alpha").click()
        assert (tmp_path / "alpha").is_dir()
        page.get_by_role("button", name="Delete alpha").click()
        page.get_by_role("button", name="Yes, delete alpha").click()
        page.locator("#status", has_text="alpha was deleted").wait_for()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["delta", "gamma"]
        assert sorted(runs.all_inner_texts()) == ["delta", "gamma"]


def test_the_list_links_the_findings_of_a_diagnosed_run(
    opened: Callable[..., Any], result: ScanResult, tmp_path: Path
) -> None:
    result.save(tmp_path / "plain")
    result.save(tmp_path / "judged")
    (tmp_path / "judged" / "findings.json").write_text("{}")
    with serving(tmp_path) as served:
        page = opened(f"{served.address}/")
        page.locator(".runs tbody th").first.wait_for()
        linked = page.get_by_role("link", name="findings.json")
        assert linked.evaluate_all("links => links.map((link) => link.getAttribute('href'))") == [
            "/run/judged/findings.json"
        ]
