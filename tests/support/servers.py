"""A server and raw requests to it.

`serving` runs the command in a process of its own: for tests of the command, of signals and of other processes.
`serving_here` answers from a thread of this process, and starts at once: for tests of what is answered.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from attnscope.serve.app import create_app


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    root: Path
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request with the path and headers exactly as given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host="Host" in (headers or {}), skip_accept_encoding=True)
            for key, value in (headers or {}).items():
                connection.putheader(key, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def token(self) -> str:
        return self.ask("/api/runs").json()["token"]

    def post(self, path: str, form: Any = None, **headers: str) -> Answer:
        """A request as the server's own page sends it."""
        sent = {"Content-Type": "application/json", "X-Attnscope-Token": self.token(), "Origin": self.address}
        sent |= {key.replace("_", "-"): value for key, value in headers.items()}
        return self.ask(path, "POST", json.dumps(form or {}).encode(), sent)


@dataclass(frozen=True)
class ServedByCommand(Served):
    process: subprocess.Popen[str]


@contextmanager
def serving(root: Path, *options: str, port: int = 0) -> Iterator[ServedByCommand]:
    """`attnscope serve` over a folder, ended when the block ends."""
    command = [sys.executable, "-m", "attnscope.cli", "serve", str(root), "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r":(\d+)/ ", line)
        assert found, line
        yield ServedByCommand(root, int(found[1]), process)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextmanager
def serving_here(root: Path, *, read_only: bool = False) -> Iterator[Served]:
    """The application of `attnscope serve` over a folder, in a thread that ends when the block does."""
    app = create_app(root, read_only=read_only)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3))
    app.state.ending = lambda: server.should_exit
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Served(root, listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
