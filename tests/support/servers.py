"""A real server in a process of its own, and raw requests to it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    process: subprocess.Popen[str]

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


@contextmanager
def serving(root: Path, *options: str, port: int = 0) -> Iterator[Served]:
    """`attnscope serve` over a folder, ended when the block ends."""
    command = [sys.executable, "-m", "attnscope.cli", "serve", str(root), "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r":(\d+)/ ", line)
        assert found, line
        yield Served(root, int(found[1]), process)
    finally:
        process.terminate()
        process.communicate(timeout=30)
