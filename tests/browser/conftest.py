"""A real Chromium, driven by playwright; where either is missing the tests are skipped and say why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from models import build
from reports import made_claims, made_findings, withdrawn_findings
from training_runs import made_training

import attnscope
from attnscope.scanning import ScanResult, scan
from attnscope.scanning.overview import Overview
from attnscope.scanning.page_data import render

# A machine under load may take its time; nothing here waits longer than it has to.
PATIENCE = 240_000
HOSTILE = "</script><script>window.hacked=1</script>"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = os.environ.get("ATTNSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium on the PATH; on Debian: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        # The sandbox needs rights that containers and root lack.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open an address; at the end no page may have erred, or asked for anything outside its own origin.

    `refusing` says that the server refuses a request of the page, `losing` that it goes away for a while, which the
    browser reports as errors.
    """
    problems: list[str] = []
    contexts: list[Any] = []

    def open_page(address: str, refusing: bool = False, losing: bool = False, **options: Any) -> Any:
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        origin = "/".join(address.split("/")[:3])

        def listen(message: Any) -> None:
            expected = (refusing and "status of 400" in message.text) or (losing and "net::ERR_" in message.text)
            if message.type in ("error", "warning") and not expected:
                problems.append(message.text)

        page.on("console", listen)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith((origin, "blob:", "data:")) or problems.append(request.url),
        )
        page.goto(address)
        if "/run/" in address or "/compare" in address or address.startswith("file:"):
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="session")
def result(tokenizer: Any) -> ScanResult:
    """A small run with a hostile text, several lengths and a what-if."""
    text = f"{HOSTILE}\u202eright to left\u0007<img src=x onerror=window.hacked=2> and words that go on. " * 4
    return scan(build("gpt2"), text, tokenizer=tokenizer, length=128, lengths=[32, 64, 128], temperatures=[0.5])


@pytest.fixture(scope="session")
def reports(result: ScanResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages in a folder: `plain.html`, `judged.html` with findings of an older version and claims, `refuted.html`,
    `training.html` of a training run."""
    folder = tmp_path_factory.mktemp("reports with space")
    heads = [(layer, head) for layer in range(3) for head in range(5)]
    run = result.run | {"model": result.run["model"] | {"name": f"{HOSTILE}\u202e"}}
    plain = render(Overview.of(result.rows, result.topn, run), token_weights=result.token_weights)
    judged = render(
        Overview.of(result.rows, result.topn, run),
        findings=made_findings(heads),
        token_weights=result.token_weights,
        claims=made_claims(),
    )
    refuted = render(Overview.of(result.rows, result.topn, run), findings=withdrawn_findings(heads))
    (folder / "refuted.html").write_text(refuted, encoding="utf-8")
    (folder / "plain.html").write_text(plain, encoding="utf-8")
    (folder / "judged.html").write_text(judged, encoding="utf-8")
    training: Any = attnscope.load_run(made_training(tmp_path_factory.mktemp("training") / "run", 70))
    (folder / "training.html").write_text(training.page(), encoding="utf-8")
    return folder
