"""Hostile requests to the server: a 4xx with one line, and nothing started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers import Served, serving_here


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_here(tmp_path_factory.mktemp("runs")) as server:
        yield server


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"pasted": ["a", "list"]}, "pasted takes text; received ['a', 'list']"),  # scanned the sample
        ({"pasted": {"a": 1}}, "pasted takes text"),
        ({"pasted": 5}, "pasted takes text; received 5"),
        ({"pasted": "\ud800"}, "a lone surrogate at offset 0"),
        ({"pasted": "a\0b"}, "a zero byte at offset 1"),
        ({"text": ["book.txt"]}, "text takes text"),
        ({"text": "a\0b"}, "a zero byte"),
        ({"model": ["gpt2"]}, "model takes text"),
        ({"model": "\udcff"}, "a lone surrogate"),
        ({"length": 64}, "length takes text; received 64"),
        ({"length": "64,128"}, "length takes one whole number; received '64,128'"),  # took the first
        ({"length": DIGITS}, "length takes whole numbers separated by commas; received '999"),
        ({"lengths": "8;9"}, "received '8;9'"),
        ({"windows": "1.5"}, "received '1.5'"),
        ({"rows": ["last"]}, "rows takes text"),
        ({"normalizers": ["softmax"]}, "normalizers takes text"),
        ({"bounds": True}, "bounds takes text"),
        ({"diagnose": "maybe"}, "diagnose takes true or false; received 'maybe'"),
        ({"verify": []}, "verify takes true or false"),
        ({"lenght": "64"}, "a scan has no setting 'lenght'"),  # was left out
        ({"x" * 5000: "1"}, "(5,002 characters)"),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, dict) else "",
)
def test_a_field_of_another_type_is_refused_by_name(served: Served, form: dict[str, Any], message: str) -> None:
    answer = served.post("/api/scans", form)
    assert answer.status == 400
    error = answer.json()["error"]
    assert message in error
    assert "\n" not in error
    assert len(error) < 1000
    assert list(served.root.iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"length": ' + b"9" * 5000 + b"}",
        b"[1]",
        b"\xff",
        b"{",
    ],
    ids=["arrays", "objects", "digits", "no object", "no text", "cut off"],
)
def test_a_body_that_is_no_json_object_is_refused(served: Served, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "X-Attnscope-Token": served.token(), "Origin": served.address}
    answer = served.ask("/api/scans", "POST", body, headers)
    assert answer.status == 400
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("path", ["/run/{}", "/run/{}/run.json", "/api/scans/{}", "/compare?a={0}&b={0}"])
@pytest.mark.parametrize("name", ["x" * 5000, "%ff", "%00", "..%2f..", "%f0%9f%98%80" * 300], ids=ascii)
def test_names_that_no_file_can_have_are_not_found(served: Served, path: str, name: str) -> None:
    answer = served.ask(path.format(name))
    assert answer.status in (404, 405)
    assert len(answer.body.splitlines()) == 1


@pytest.mark.parametrize("act", ["cancel", "resume", "x" * 5000])
def test_acts_on_scans_that_are_not_there_are_refused(served: Served, act: str) -> None:
    assert served.post(f"/api/scans/{'x' * 5000}/{act}").status in (400, 404)


def test_of_four_starts_at_once_one_is_started(served: Served, model_folder: Path, text: str) -> None:
    """And a model whose name is as long as a folder's may be gets a run whose name fits."""
    model = model_folder.parent / ("é" * 100)
    model.symlink_to(model_folder)
    token = served.token()
    headers = {"Content-Type": "application/json", "X-Attnscope-Token": token, "Origin": served.address}
    form = json.dumps({"model": str(model), "pasted": text * 8, "length": "64", "windows": "64"}).encode()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: served.ask("/api/scans", "POST", form, headers), range(4)))
    assert sorted(answer.status for answer in answers) == [202, 400, 400, 400]
    started = next(answer.json()["name"] for answer in answers if answer.status == 202)
    assert len(started.encode()) <= 255
    assert all("still running" in answer.json()["error"] for answer in answers if answer.status == 400)
    assert served.post(f"/api/scans/{quote(started)}/cancel").status == 200
    model.unlink()


def test_a_text_that_no_file_has_as_its_name_is_refused(served: Served) -> None:
    answer = served.post("/api/scans", {"text": "é" * 5000})
    assert answer.status == 400
    assert "\n" not in answer.json()["error"]
    assert len(answer.json()["error"]) < 1000
