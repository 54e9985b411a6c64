"""Results of `attnscope reproduce` on the server: their entry in the list, and the page of claims and figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from servers import Served, serving_here

from attnscope.show.page import unpacked

SETTINGS = {"lengths": [32, 1024], "windows": 8, "rows": 1, "vectors": ["value"], "draws": 99, "seed": 0}
RUN: dict[str, Any] = {
    "identity": {"schema": 2},
    "attnscope": "0.1.0",
    "finished": "2026-01-02T03:04:05+00:00",
    "model": {"name": "some/model", "layers": 2, "heads": 6},
    "text": {"source": "book.txt", "sha256": "0" * 64, "tokens": 9000},
    "settings": SETTINGS,
}
CLAIMS = [{"id": f"claim-{k}", "verdict": verdict} for k, verdict in enumerate(["agrees", "disagrees", "disagrees"])]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("server")
    done, stopped, damaged = (root / name for name in ("done", "stopped", "damaged"))
    pictures = done / "figures" / "value"
    pictures.mkdir(parents=True)
    (pictures / "figure-1.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (pictures / "captions.json").write_text(json.dumps({"figure-1": "Figure 1. Tokens.", "linked": "elsewhere"}))
    (pictures / "notes.txt").write_text("mine")
    secret = root.parent / "secret.svg"
    secret.write_text("secret")
    (pictures / "linked.svg").symlink_to(secret)
    (done / "figures" / "away").symlink_to(root.parent)
    damaged.mkdir()
    for folder in (done, damaged):
        (folder / "run.json").write_text(json.dumps(RUN))
    (done / "claims.json").write_text(json.dumps({"claims": CLAIMS}))
    (damaged / "claims.json").write_text('{"claims": [{"id":')
    (stopped / ".parts").mkdir(parents=True)
    header = {"plan": {"identity": {}, "settings": SETTINGS}, "windows": 8, "block": 1}
    entry = {"block": 0, "windows": [0, 1], "tables": {}, "notes": {}}
    (stopped / ".parts" / "manifest.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(entry)}\n")
    with serving_here(root) as served:
        yield served


def test_a_reproduction_is_listed_as_one(server: Served) -> None:
    entries = {entry["name"]: entry for entry in server.ask("/api/runs").json()["runs"]}
    done, stopped = entries["done"], entries["stopped"]
    assert (done["kind"], done["state"], done["model"]) == ("reproduction", "finished", "some/model")
    assert done["settings"] == "reproduction: 8 x 1,024 tokens"
    assert done["verdict"] == "3 claims: agrees 1, disagrees 2"
    assert (stopped["kind"], stopped["state"]) == ("reproduction", "stopped")
    assert (stopped["finished_windows"], stopped["windows"]) == (1, 8)


def test_its_page_has_claims_and_figures(server: Served) -> None:
    page = server.ask("/run/done")
    assert page.status == 200
    packed = page.body.decode().split('id="data">')[1].split("<")[0]
    data = unpacked(packed)
    assert data["claims"]["claims"] == CLAIMS
    assert data["figures"] == ["figures/value/figure-1.svg"]
    assert data["captions"] == {"figures/value/figure-1.svg": "Figure 1. Tokens."}
    picture = server.ask("/run/done/figures/value/figure-1.svg")
    assert picture.body.startswith(b"<svg")
    assert picture.headers["content-disposition"].startswith("attachment")  # its scripts never run here


@pytest.mark.parametrize(
    "path",
    [
        "value/linked.svg",
        "away/secret.svg",
        "value/notes.txt",
        "value/captions.json",
        "../secret.svg",
        "value/..%2f..%2frun.json",
    ],
)
def test_nothing_but_its_figures_is_sent(server: Served, path: str) -> None:
    answer = server.ask(f"/run/done/figures/{path}")
    assert answer.status == 404
    assert b"secret" not in answer.body.replace(path.encode(), b"")


def test_it_cannot_be_compared_and_damage_is_reported(server: Served) -> None:
    refused = server.ask("/compare?a=done&b=done")
    assert (refused.status, b"is a reproduction" in refused.body) == (404, True)
    damaged = server.ask("/run/damaged")
    assert (damaged.status, b"cannot be read" in damaged.body) == (404, True)
