"""`attnscope serve`: its pages and API, and the requests it refuses."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from servers import Served, serving, serving_here

from attnscope.cli import run
from attnscope.serve.guard import LARGEST_BODY, host_allowed, is_loopback
from attnscope.serve.jobs import Jobs


def test_it_lists_its_runs_and_opens_them(served: Served) -> None:
    listed = served.ask("/api/runs").json()
    assert sorted(entry["name"] for entry in listed["runs"]) == ["a second", "first"]
    assert {entry["state"] for entry in listed["runs"]} == {"finished"}
    page = served.ask("/run/a%20second")
    assert page.status == 200
    assert b'id="data"' in page.body
    assert page.headers["x-frame-options"] == "DENY"
    assert served.ask("/compare?a=first&b=a+second").status == 200
    table = served.ask("/run/first/rows.parquet")
    assert table.body == (served.root / "first" / "rows.parquet").read_bytes()
    assert table.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    "path",
    [
        "/run/..",
        "/run/../../etc/passwd",
        "/run/%2e%2e",
        "/run/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/run/first/../../secret.json",
        "/run/first/..%2f..%2fsecret.json",
        "/run/first/.parts",
        "/run/first/%2fetc%2fpasswd",
        "/run/first/notes.txt",
        "/run/linked",
        "/run/linked/run.json",
        "/run/leaking/run.json",
        "/run/leaking",
        "/run/missing",
        "/run/%00",
        "/compare?a=first&b=../first",
        "//etc/passwd",
    ],
)
def test_nothing_outside_the_folder_is_served(served: Served, path: str) -> None:
    """Fault 26."""
    outside = served.root.parent / f"{served.root.name}-outside"
    if not outside.exists():
        shutil.copytree(served.root / "first", outside)
        (served.root.parent / "secret.json").write_text('{"secret": 1}')
        (served.root / "linked").symlink_to(outside)
        (served.root / "leaking").mkdir()
        (served.root / "first" / "notes.txt").write_text("mine")
        for file in outside.iterdir():
            (served.root / "leaking" / file.name).symlink_to(file)
    answer = served.ask(path)
    assert answer.status in (400, 404)
    assert b"secret" not in answer.body
    assert b"root:" not in answer.body
    assert b'id="data"' not in answer.body


@pytest.mark.parametrize(
    ("header", "host", "allowed"),
    [
        ("127.0.0.1:8765", "127.0.0.1", True),
        ("localhost:8765", "127.0.0.1", True),
        ("[::1]:8765", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("evil.example", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("127.0.0.1.evil.example:8765", "127.0.0.1", False),
        ("127.0.0.1:80@evil.example", "127.0.0.1", False),
        ("192.168.0.7", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
        ("192.168.0.7:8765", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("box.local:8765", "box.local", True),
    ],
)
def test_only_its_own_host_names_are_answered(header: str | None, host: str, allowed: bool) -> None:
    """Fault 26."""
    assert host_allowed(header, host) is allowed


def test_a_foreign_host_header_is_refused(served: Served) -> None:
    """Fault 26."""
    assert served.ask("/api/runs", headers={"Host": "evil.example"}).status == 421
    assert served.ask("/api/runs", headers={"Host": f"localhost:{served.port}"}).status == 200


@pytest.mark.parametrize(
    "change",
    [
        {"X_Attnscope_Token": "guess"},
        {"X_Attnscope_Token": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
    ],
    ids=str,
)
def test_a_foreign_page_cannot_start_a_scan(served: Served, change: dict[str, str]) -> None:
    before = sorted(path.name for path in served.root.iterdir())
    assert served.post("/api/scans", {"length": "32"}, **change).status == 403
    assert sorted(path.name for path in served.root.iterdir()) == before


def test_a_body_that_is_too_large_or_no_form_is_refused(served: Served) -> None:
    assert served.post("/api/scans", {"pasted": "x" * LARGEST_BODY}).status == 413
    headers = {"Content-Type": "application/json", "X-Attnscope-Token": served.token()}
    assert served.ask("/api/scans", "POST", b"[1]", headers).status == 400
    assert served.ask("/api/scans", "POST", b"{", headers).status == 400
    answer = served.post("/api/scans", {"lengths": "8;16"})
    assert answer.status == 400
    assert "8;16" in answer.json()["error"]


def follow(served: Served, name: str, until: Any) -> dict[str, Any]:
    limit = time.monotonic() + 240
    while time.monotonic() < limit:
        job = served.ask(f"/api/scans/{name}").json()
        if until(job):
            return job
        time.sleep(0.1)
    raise AssertionError(f"still {job}")


def test_a_scan_is_started_cancelled_resumed_and_finished(
    tmp_path: Path, model_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "runs").mkdir()
    with serving_here(tmp_path / "runs") as served:
        form = {"model": str(model_folder), "pasted": text * 4, "length": "64", "windows": "12", "rows": "32"}
        form["bounds"] = "paper"
        started = served.post("/api/scans", form)
        assert started.status == 202
        name = started.json()["name"]
        refused = served.post("/api/scans", form)
        assert refused.status == 400
        assert "still running" in refused.json()["error"]
        manifest = tmp_path / "runs" / name / ".parts" / "manifest.jsonl"
        follow(served, name, lambda job: job["done"] >= 4 and manifest.exists())
        assert served.post(f"/api/scans/{name}/cancel").json()["state"] == "cancelled"
        (entry,) = served.ask("/api/runs").json()["runs"]
        assert entry["state"] == "stopped"
        assert 1 <= entry["finished_windows"] < entry["windows"] == 12
        assert served.ask(f"/run/{name}").status == 404
        assert served.post(f"/api/scans/{name}/resume").status == 202
        done = follow(served, name, lambda job: job["state"] != "running")
        assert done["state"] == "finished", done
        folder = tmp_path / "runs" / name
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
        record = json.loads((folder / "run.json").read_text())
        assert (record["text"]["source"], record["settings"]["bounds"]) == ("pasted text", "paper")
        # What only the scan can see is reported by it, and leaves no files.
        wrong = served.post("/api/scans", {"model": str(model_folder), "pasted": "short"}).json()["name"]
        failed = follow(served, wrong, lambda job: job["state"] != "running")
        assert failed["state"] == "failed"
        assert "too few" in failed["error"]
        assert not (tmp_path / "runs" / wrong).exists()


def test_a_cancelled_scan_without_a_finished_window_leaves_no_files(tmp_path: Path) -> None:
    """A process that ends after the files of a block and before its line in the manifest has not finished it."""
    for name, finished in (("without", False), ("with", True)):
        folder = tmp_path / name
        (folder / ".parts").mkdir(parents=True)
        (folder / ".request.json").write_text("{}")
        (folder / ".parts" / "rows-00000.parquet").write_bytes(b"half a block")
        if finished:
            header = {"plan": {}, "windows": 2, "block": 1, "names": {}}
            (folder / ".parts" / "manifest.jsonl").write_text(json.dumps(header) + "\n")
        Jobs._remove_if_empty(folder)
        assert folder.exists() is finished


def test_a_read_only_server_starts_no_scan(tmp_path: Path) -> None:
    with serving(tmp_path, "--read-only") as served:
        listed = served.ask("/api/runs").json()
        assert (listed["read_only"], listed["token"]) == (True, None)
        headers = {"Content-Type": "application/json", "X-Attnscope-Token": "None"}
        assert served.ask("/api/scans", "POST", b"{}", headers).status == 403


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("0.0.0.0", False), ("box", False)]
)
def test_loopback_is_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_it_listens_on_loopback_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 26."""
    import uvicorn

    bound: list[str] = []
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda self, sockets: bound.extend(one.getsockname()[0] for one in sockets)
    )
    assert run(["serve", str(tmp_path), "--port", "0"]) == 0
    assert bound == ["127.0.0.1"]


def test_a_used_port_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert run(["serve", str(tmp_path), "--port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot listen on 127.0.0.1:{port}" in line


def test_a_missing_folder_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", str(tmp_path / "missing")]) == 2
    assert "no folder at" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the process in /proc")
def test_a_scan_ends_with_its_server(tmp_path: Path, model_folder: Path, text: str) -> None:
    """The process of a scan exits after its server is killed."""
    with serving(tmp_path) as served:
        form = {"model": str(model_folder), "pasted": text * 8, "length": "64", "windows": "64", "rows": "all"}
        name = served.post("/api/scans", form).json()["name"]
        follow(served, name, lambda job: job["done"] > 0)
        assert _is_running(name)
        served.process.kill()
    limit = time.monotonic() + 30
    while time.monotonic() < limit and _is_running(name):
        time.sleep(0.1)
    assert not _is_running(name)


def _is_running(name: str) -> bool:
    """Whether some process names the run's folder in its command line."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if process.name != str(os.getpid()) and b"attnscope.serve" in command and name.encode() in command:
            return True
    return False


def _record(folder: Path, **changes: Any) -> None:
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | changes))


DAMAGES: dict[str, tuple[Any, str]] = {
    "no rows": (lambda folder: (folder / "rows.parquet").unlink(), "rows.parquet is missing"),
    "half a table": (lambda folder: (folder / "topn.parquet").write_bytes(b"PAR1half"), "not a readable run"),
    "half a record": (lambda folder: (folder / "run.json").write_text('{"schema": 2, "mod'), "cannot be read"),
    "a list": (lambda folder: (folder / "run.json").write_text("[1]"), "holds no JSON object"),
    "a deep record": (lambda folder: (folder / "run.json").write_text("[" * 100_000), "cannot be read"),
    "a newer schema": (lambda folder: _record(folder, schema=99), "upgrade attnscope"),
    "no settings": (lambda folder: _record(folder, settings={}), "is damaged"),
    "a number as time": (lambda folder: _record(folder, finished=5), "5 is no text"),
    "no model": (lambda folder: _record(folder, model=[1]), "is damaged"),
    "odd findings": (lambda folder: (folder / "findings.json").write_text('{"thresholds": 5}'), "is damaged"),
    "NaN": (lambda folder: (folder / "findings.json").write_text('{"verdict": NaN}'), "is damaged"),
}


def test_damaged_runs_are_reported_and_do_not_hide_others(served: Served, tmp_path: Path) -> None:
    for name, (damage, _) in DAMAGES.items():
        damage(Path(shutil.copytree(served.root / "first", tmp_path / name)))
    shutil.copytree(served.root / "first", tmp_path / "whole")
    with serving_here(tmp_path) as other:
        listed = {entry["name"]: entry["state"] for entry in other.ask("/api/runs").json()["runs"]}
        assert set(listed) == {*DAMAGES, "whole"}
        unreadable = {name for name, state in listed.items() if state == "unreadable"}
        assert unreadable == {*DAMAGES} - {"half a table", "odd findings", "NaN"}
        assert other.ask("/run/whole").status == 200
        for name, (_, words) in DAMAGES.items():
            answer = other.ask(f"/run/{name.replace(' ', '%20')}")
            assert answer.status == (404 if words else 200), name
            assert words.encode() in answer.body, name
