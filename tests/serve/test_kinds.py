"""A run of every kind on the server: in the list with one line about it, as a page, and damaged."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from every_kind import EVERY_KIND
from starlette.testclient import TestClient

import attnscope.studies
from attnscope.serve.app import create_app
from attnscope.store.kinds import kind_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, runs_of_every_kind: Path) -> Path:
    """A folder with a run of every kind, each of them damaged too, and a reproduction that was stopped."""
    root = tmp_path_factory.mktemp("server") / "runs"
    shutil.copytree(runs_of_every_kind, root)
    for name in EVERY_KIND:
        damaged = shutil.copytree(root / name, root / f"damaged {name}")
        (damaged / kind_of(damaged).record).write_text('{"mod')
    stopped = root / "stopped" / ".parts"
    stopped.mkdir(parents=True)
    names = {"kind": "reproduction", "model": "some/model"}
    header = {"plan": {}, "windows": 8, "block": 1, "names": names}
    entry = {"block": 0, "windows": [0, 1], "tables": {}, "notes": {}}
    (stopped / "manifest.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(entry)}\n")
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(create_app(root), base_url="http://127.0.0.1:8765") as client:
        yield client


@pytest.fixture(scope="module")
def listed(client: TestClient) -> dict[str, Any]:
    return {entry["name"]: entry for entry in client.get("/api/runs").json()["runs"]}


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_run_of_every_kind_is_listed_and_opens(client: TestClient, listed: dict[str, Any], name: str) -> None:
    entry = listed[name]
    assert (entry["kind"], entry["opens"], entry["reason"]) == (EVERY_KIND[name][0], True, "")
    assert entry["state"] in (("training", "stopped") if name == "training" else ("finished",))
    assert entry["settings"]
    assert entry["finished"] > "2026"
    page = client.get(f"/run/{name}")
    assert page.status_code == 200, page.text
    assert page.text.lower().startswith("<!doctype html>")
    for file in entry["downloads"]:
        assert client.get(f"/run/{name}/{file}").status_code == 200


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_damaged_run_is_listed_with_its_reason(client: TestClient, listed: dict[str, Any], name: str) -> None:
    entry = listed[f"damaged {name}"]
    assert (entry["kind"], entry["state"], entry["opens"]) == (EVERY_KIND[name][0], "unreadable", False)
    assert "cannot be read" in entry["reason"]
    answer = client.get(f"/run/damaged {name}")
    assert answer.status_code == 404
    assert answer.text.count("\n") == 1


def test_a_stopped_run_says_how_far_it_is(listed: dict[str, Any]) -> None:
    stopped = listed["stopped"]
    assert (stopped["kind"], stopped["state"], stopped["model"]) == ("reproduction", "stopped", "some/model")
    assert (stopped["finished_windows"], stopped["windows"]) == (1, 8)


def test_only_kinds_that_say_so_are_compared(client: TestClient) -> None:
    assert client.get("/compare?a=scan&b=diagnosed").status_code == 200
    for other, words in (("audit", "of the kind audit"), ("reproduction", "of the kind reproduction")):
        refused = client.get(f"/compare?a={other}&b={other}")
        assert (refused.status_code, words in refused.text) == (404, True)


def test_files_in_folders_of_a_run_are_sent_as_downloads(client: TestClient, root: Path) -> None:
    figure = next((root / "reproduction" / "figures").glob("*/*.svg"))
    picture = client.get(f"/run/reproduction/{figure.relative_to(root / 'reproduction').as_posix()}")
    assert picture.content == figure.read_bytes()
    assert picture.headers["content-disposition"].startswith("attachment")  # its scripts never run here


@pytest.fixture
def secret(root: Path) -> Path:
    secret = root.parent / "secret.svg"
    figures = next((root / "damaged reproduction" / "figures").glob("*"))
    if not secret.exists():
        secret.write_text("secret")
        (figures / "linked.svg").symlink_to(secret)
        (figures / "notes.txt").write_text("mine")
        (figures.parent / "away").symlink_to(root.parent)
    return figures


@pytest.mark.parametrize(
    "path",
    ["{}/linked.svg", "away/secret.svg", "{}/notes.txt", "../secret.svg", "{}/..%2f..%2frun.json", "{}/%2fsecret.svg"],
)
def test_nothing_but_its_files_is_sent(client: TestClient, secret: Path, path: str) -> None:
    answer = client.get(f"/run/damaged reproduction/figures/{path.format(secret.name)}")
    assert answer.status_code == 404
    assert "secret" not in answer.text.replace("secret.svg", "")


def test_a_study_of_a_stranger_is_listed_and_its_runs_stay_when_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "path" / "tides"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from attnscope.store.kinds import Description, Kind\n"
        "def describe(folder, run):\n    return Description(run['model'], '', 'tides', 'high')\n"
        "def page(place, folder):\n    return '<!doctype html><p>the tides'\n"
        "_HERE = 'attnscope.studies.tides'\n"
        "KINDS = (Kind('tides', '', _HERE + ':describe', page=_HERE + ':page'),)\n"
    )
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"kind": "tides", "attnscope": "0.3.0", "model": "the sea"}))
    with TestClient(create_app(run.parent), base_url="http://127.0.0.1:8765") as client:
        with monkeypatch.context() as patch:
            patch.setattr(attnscope.studies, "__path__", [*attnscope.studies.__path__, str(package.parent)])
            (entry,) = client.get("/api/runs").json()["runs"]
            assert (entry["kind"], entry["verdict"], entry["state"]) == ("tides", "high", "finished")
            assert "the tides" in client.get("/run/run").text
        sys.modules.pop("attnscope.studies.tides")
        (entry,) = client.get("/api/runs").json()["runs"]
        assert entry["state"] == "unreadable"
        assert "the kind 'tides', which is not part of this attnscope" in entry["reason"]
