"""Training runs on the server: the list, the page, and the stream of what is added."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers import Served, serving, serving_here
from training_runs import Training, made_alarm

from attnscope.serve import streams as module
from attnscope.show.page import unpacked


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_here(tmp_path_factory.mktemp("runs")) as server:
        yield server


@pytest.fixture
def training(served: Served, request: pytest.FixtureRequest) -> Training:
    """A run with two measured steps, in a folder of its own."""
    made = Training(served.root / request.node.name)
    made.measure(50)
    made.measure(100, (made_alarm(100),))
    return made


@contextmanager
def events(served: Served, name: str, query: str = "", **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a run as the browser would see them."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request(
        "GET", f"/run/{name}/events{query}", headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/event-stream")

    def parsed() -> Iterator[dict[str, Any]]:
        event: dict[str, Any] = {}
        while line := answer.readline().decode():
            field, _, value = line.rstrip("\n").partition(": ")
            if field in ("id", "event"):
                event[field] = value
            elif field == "data":
                event[field] = json.loads(value)
            elif not field and "event" in event:
                yield event
                event = {}

    try:
        yield parsed()
    finally:
        connection.close()


def test_a_run_is_listed_with_its_kind_and_opened(served: Served, training: Training) -> None:
    name = training.files.folder.name
    (entry,) = [entry for entry in served.ask("/api/runs").json()["runs"] if entry["name"] == name]
    assert (entry["kind"], entry["state"]) == ("training", "training")
    assert entry["settings"] == "training: 2 measured steps up to step 100"
    assert entry["verdict"] == "1 alarm"
    page = served.ask(f"/run/{name}").body.decode()
    assert unpacked(page.split('id="data">')[1].split("<")[0])["steps"] == [50, 100]
    assert unpacked(served.ask(f"/run/{name}/data").body.decode())["steps"] == [50, 100]
    assert served.ask(f"/run/{name}/alarms.jsonl").status == 200
    compared = served.ask(f"/compare?a={name}&b={name}")
    assert compared.status == 404
    assert b"of the kind training" in compared.body


def test_a_stream_goes_on_from_the_page_and_from_the_last_event(served: Served, training: Training) -> None:
    name = training.files.folder.name
    start = unpacked(served.ask(f"/run/{name}/data").body.decode())["position"]
    with events(served, name, f"?since={start}") as stream:
        assert next(stream)["data"]["steps"] == []  # the page has everything
        training.measure(150, (made_alarm(150, 0, 1),))
        added = next(stream)
        while not added["data"]["steps"]:  # the files of a step are written one after the other
            added = next(stream)
    assert added["data"]["steps"] == [150]
    training.measure(200)
    with events(served, name, f"?since={start}", Last_Event_ID=added["id"]) as stream:
        following = next(stream)["data"]
    assert following["steps"] == [200]
    assert following["scalars"]["loss"]["step"] == [200]
    assert (
        following["columns"]["max_weight"]
        == unpacked(served.ask(f"/run/{name}/data").body.decode())["columns"]["max_weight"][-15:]
    )


def test_a_stream_ends_with_the_run(served: Served, training: Training) -> None:
    training.finish()
    with events(served, training.files.folder.name) as stream:
        (only,) = list(stream)
    assert only["data"]["status"] == "finished"
    assert only["data"]["steps"] == [50, 100]


@pytest.mark.parametrize("since", ["x", "1-2-3", "999-0-0-0-0"], ids=["no-position", "short", "later"])
def test_a_page_with_another_history_is_asked_to_read_again(served: Served, training: Training, since: str) -> None:
    with events(
        served, training.files.folder.name.replace("[", "%5B").replace("]", "%5D"), f"?since={since}"
    ) as stream:
        assert next(stream)["event"] == "again"


def test_a_run_that_is_deleted_ends_the_stream(served: Served, training: Training) -> None:
    with events(served, training.files.folder.name) as stream:
        assert next(stream)["event"] == "added"
        shutil.rmtree(training.files.folder)
        assert next(stream)["event"] == "gone"


def test_many_steps_at_once_are_thinned(served: Served, training: Training) -> None:
    for step in range(150, 4001, 50):
        training.measure(step, (made_alarm(step),) if step == 2050 else ())
    training.finish()
    with events(served, training.files.folder.name) as stream:
        added = next(stream)["data"]
    assert added["measured_steps"] == 80
    assert len(added["steps"]) == 50
    assert {50, 100, 2050, 4000} <= set(added["steps"])


@pytest.mark.parametrize("part", ["alarms.jsonl", "heads", "heads/part-000000050.parquet"])
def test_files_that_lead_out_of_the_folder_are_not_read(served: Served, training: Training, part: str) -> None:
    """Fault 26."""
    folder = training.files.folder
    outside = served.root.parent / f"outside-{folder.name}"
    shutil.copytree(folder, outside)
    if (folder / part).is_dir():
        shutil.rmtree(folder / part)
    else:
        (folder / part).unlink()
    (folder / part).symlink_to(outside / part)
    name = folder.name.replace("[", "%5B").replace("]", "%5D").replace("/", "%2F")
    for path in (f"/run/{name}", f"/run/{name}/data", f"/run/{name}/events", f"/run/{name}/alarms.jsonl"):
        answer = served.ask(path)
        if part == "alarms.jsonl" or not path.endswith("alarms.jsonl"):
            assert answer.status == 404, path


@pytest.mark.parametrize(
    "record", ['{"kind": "training"}', '{"kind": "training", "schema": "one"}', '{"kind": "training", "schema": 1}']
)
def test_a_damaged_run_is_one_line_and_hides_no_other(served: Served, record: str) -> None:
    folder = served.root / "damaged"
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(record)
    answer = served.ask("/run/damaged")
    assert answer.status == 404
    assert answer.body.count(b"\n") == 1
    states = {entry["name"]: entry["state"] for entry in served.ask("/api/runs").json()["runs"]}
    assert states["damaged"] == "unreadable"


@pytest.mark.parametrize("path", ["/run/scan/events", "/run/scan/data", "/run/missing/events", "/run/..%2f/events"])
def test_only_training_runs_have_streams(served: Served, path: str) -> None:
    (served.root / "scan").mkdir(exist_ok=True)
    assert served.ask(path).status == 404


def test_a_server_with_an_open_stream_ends_at_once_and_quietly(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.measure(50)
    with serving(tmp_path) as served, events(served, "run") as stream:
        next(stream)
        started = time.monotonic()
        served.process.send_signal(signal.SIGINT)
        _, told = served.process.communicate(timeout=30)
        assert served.process.returncode == 0
        assert "Traceback" not in told
        assert "Cancel" not in told
        assert time.monotonic() - started < 20  # a stream would last a quarter of an hour


def test_the_number_of_streams_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STREAMS", 2)

    async def endless() -> AsyncIterator[str]:
        while True:
            yield "event"

    async def first_parts() -> list[str]:
        streams = module.Streams()
        opened = [streams.counted(endless()) for _ in range(3)]
        parts = [await anext(stream) for stream in opened]
        await opened[0].aclose()  # type: ignore[attr-defined]
        return [*parts, await anext(streams.counted(endless()))]

    with ThreadPoolExecutor(1) as other_thread:  # a browser test may have left an event loop running in this one
        parts = other_thread.submit(lambda: asyncio.run(first_parts())).result()
    assert [part == "event" for part in parts] == [True, True, False, True]
    assert parts[2].startswith("retry: ")


def test_a_silent_run_is_listed_as_stopped(served: Served, training: Training) -> None:
    training.files.close()
    for file in training.files.folder.rglob("*.*"):
        os.utime(file, (1e9, 1e9))
    states = {entry["name"]: entry["state"] for entry in served.ask("/api/runs").json()["runs"]}
    assert states[training.files.folder.name] == "stopped"
