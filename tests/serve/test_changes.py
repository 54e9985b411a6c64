"""Renaming and deleting runs: what changes on disk, and which requests are refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Served, serving, serving_here

from attnscope.store.folders import sole_writer


@pytest.fixture
def kept(two_runs: Path, tmp_path: Path) -> Iterator[Served]:
    """A server of its own over copies of two runs, a folder without a run, and a link that leads out."""
    root = tmp_path / "runs"
    shutil.copytree(two_runs, root)
    (root / "plain").mkdir()
    (root / "plain" / "mine.txt").write_text("mine")
    shutil.copytree(root / "first", tmp_path / "outside")
    (root / "linked").symlink_to(tmp_path / "outside")
    with serving_here(root) as server:
        yield server


def names(served: Served) -> list[str]:
    return sorted(path.name for path in served.root.iterdir())


def test_a_run_is_renamed_with_all_its_files(kept: Served) -> None:
    before = {path.name: path.read_bytes() for path in (kept.root / "first").iterdir()}
    answer = kept.post("/api/runs/first/rename", {"name": " Größe 2 (new) "})
    assert (answer.status, answer.json()) == (200, {"name": "Größe 2 (new)"})
    assert names(kept) == ["Größe 2 (new)", "a second", "linked", "plain"]
    assert {path.name: path.read_bytes() for path in (kept.root / "Größe 2 (new)").iterdir()} == before
    assert kept.ask("/run/Gr%C3%B6%C3%9Fe%202%20%28new%29").status == 200
    assert kept.ask("/run/first").status == 404


def test_a_run_is_deleted_with_all_its_files(kept: Served) -> None:
    assert kept.post("/api/runs/a%20second/delete").status == 200
    assert names(kept) == ["first", "linked", "plain"]


@pytest.mark.parametrize(
    "wanted",
    [
        *("", " ", ".", "..", "../up", "a/b", "/tmp/x", "a\\b", ".hidden", "-rf", "a\nb", "a\0b", "end."),
        "x" * 101,
        5,
        None,
    ],
    ids=ascii,
)
def test_a_name_that_is_a_path_or_no_name_is_refused(served: Served, wanted: object) -> None:
    before = names(served)
    answer = served.post("/api/runs/first/rename", {"name": wanted})
    assert answer.status == 400
    assert "a run cannot be called" in answer.json()["error"]
    assert names(served) == before


def test_no_run_takes_the_place_of_another(kept: Served) -> None:
    for taken in ("a second", "plain", "linked"):
        answer = kept.post("/api/runs/first/rename", {"name": taken})
        assert (answer.status, "already" in answer.json()["error"]) == (400, True)
    assert names(kept) == ["a second", "first", "linked", "plain"]


@pytest.mark.parametrize("act", ["delete", "rename"])
@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2foutside", "plain", "linked", "missing", "%2ftmp", "x" * 5000])
def test_only_runs_of_the_folder_are_changed(kept: Served, name: str, act: str) -> None:
    """Fault 26."""
    before = names(kept)
    assert kept.post(f"/api/runs/{name}/{act}", {"name": "new"}).status in (400, 404, 405)
    assert names(kept) == before
    assert (kept.root.parent / "outside" / "run.json").is_file()
    assert (kept.root / "plain" / "mine.txt").is_file()


FOREIGN = {
    "a record of something else": {"run.json": '{"lr": 0.1}', "train.py": "..."},
    "nothing but a record": {"run.json": '{"model": {}, "settings": {}, "text": {}}'},
    "a record that cannot be read": {"run.json": "{"},
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=list(FOREIGN))
def test_a_folder_of_something_else_is_not_listed_renamed_or_deleted(kept: Served, files: dict[str, str]) -> None:
    folder = kept.root / "foreign"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    assert "foreign" not in {entry["name"] for entry in kept.ask("/api/runs").json()["runs"]}
    for act in ("delete", "rename"):
        assert kept.post(f"/api/runs/foreign/{act}", {"name": "new"}).status == 400
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    "file", ["notes.txt", "figures/mine.svg", "tables/mine.csv", ".parts/mine.json", "sub/run.json"]
)
def test_a_run_that_holds_something_else_is_not_deleted(kept: Served, file: str) -> None:
    mine = kept.root / "first" / file
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    answer = kept.post("/api/runs/first/delete")
    assert (answer.status, answer.json()["error"]) == (
        400,
        f"'first' also holds '{file}', not written by attnscope; move that first",
    )
    assert (kept.root / "first" / "run.json").is_file()
    mine.unlink()
    assert kept.post("/api/runs/first/delete").status == 200


def test_a_damaged_run_is_deleted(kept: Served) -> None:
    (kept.root / "first" / "run.json").write_text('{"schema": 2, "mod')
    assert kept.post("/api/runs/first/delete").status == 200
    assert not (kept.root / "first").exists()


@pytest.mark.parametrize("act", ["delete", "rename"])
@pytest.mark.parametrize(
    "change",
    [
        {"X_Attnscope_Token": "guess"},
        {"X_Attnscope_Token": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Content_Type": "text/plain"},
        {"Host": "evil.example"},
    ],
    ids=str,
)
def test_a_foreign_page_cannot_change_a_run(served: Served, act: str, change: dict[str, str]) -> None:
    """Fault 26."""
    before = names(served)
    assert served.post(f"/api/runs/first/{act}", {"name": "new"}, **change).status in (403, 421)
    assert served.ask(f"/api/runs/first/{act}").status == 405
    assert names(served) == before


def test_a_read_only_server_changes_no_run(kept: Served) -> None:
    token = kept.token()
    with serving_here(kept.root, read_only=True) as served:
        for act in ("delete", "rename"):
            headers = {"Content-Type": "application/json", "X-Attnscope-Token": token, "Origin": served.address}
            answer = served.ask(f"/api/runs/first/{act}", "POST", b'{"name": "new"}', headers)
            assert answer.status == 403
    assert (kept.root / "first").is_dir()


def test_a_run_that_another_process_writes_is_left_alone(kept: Served) -> None:
    with serving(kept.root) as other:
        with sole_writer(kept.root / "first"):
            for act in ("delete", "rename"):
                answer = other.post(f"/api/runs/first/{act}", {"name": "new"})
                assert (answer.status, "is writing to" in answer.json()["error"]) == (400, True)
        assert other.post("/api/runs/first/delete").status == 200


def test_a_running_scan_is_not_deleted(kept: Served, model_folder: Path, text: str) -> None:
    form = {"model": str(model_folder), "pasted": text * 8, "length": "64", "windows": "64", "rows": "all"}
    name = kept.post("/api/scans", form).json()["name"]
    for act in ("delete", "rename"):
        answer = kept.post(f"/api/runs/{name}/{act}", {"name": "new"})
        assert (answer.status, "still running" in answer.json()["error"]) == (400, True)
    assert (kept.root / name).is_dir()
    assert kept.post(f"/api/scans/{name}/cancel").json()["state"] == "cancelled"


def test_the_list_names_the_files_of_a_run(kept: Served) -> None:
    (kept.root / "first" / "findings.json").write_text("{}")
    entries = {entry["name"]: entry for entry in kept.ask("/api/runs").json()["runs"]}
    assert "findings.json" in entries["first"]["downloads"]
    assert "findings.json" not in entries["a second"]["downloads"]
    files = list((kept.root / "first").iterdir())
    assert (entries["first"]["files"], entries["first"]["bytes"]) == (len(files), sum(f.stat().st_size for f in files))
