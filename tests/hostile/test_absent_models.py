"""A model that is nowhere is refused at once, and a hub that does not answer is asked once."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from attnscope.capture.models import load_model
from attnscope.errors import ModelError

REFUSE = """
import sys
from attnscope.cli import run
assert run(["scan", sys.argv[1]]) == 2
assert "torch" not in sys.modules and "transformers" not in sys.modules, "loaded before the model was looked for"
"""


def refuse(name: str, tmp_path: Path, **environment: str) -> str:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    variables |= {"HF_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", REFUSE, name]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stderr.strip()


def use_hub(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process ask a server instead of the hub."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.mark.parametrize("name", ["/none/such", "./none", "none.gguf", "a/b/c"])
def test_a_path_that_is_not_there_is_refused_before_torch_is_loaded(name: str, tmp_path: Path) -> None:
    """Fault 20."""
    message = refuse(name, tmp_path)
    assert repr(name) in message
    assert "\n" not in message


NO_HUB_IDS = ["models/models--x--y", "end.", "-a", "ü/ü", "a..b", "\n", " ", "a\n", "x" * 97]


@pytest.mark.parametrize("name", NO_HUB_IDS)
def test_a_name_that_no_model_of_the_hub_can_have_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="no model at") as refused:
        load_model(name)
    assert "\n" not in str(refused.value)


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    """Fault 20: a server that hangs up on every request counts those for the model."""
    requests = []
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(0.1)
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        refusal = pool.submit(refuse, "some/model", tmp_path, HF_ENDPOINT=endpoint)
        while not refusal.done():
            with suppress(TimeoutError):
                connection, _ = server.accept()
                requests.append(connection.recv(4096).decode().splitlines()[0])
                connection.close()
    assert "cannot reach the model hub for 'some/model'" in refusal.result()
    assert [line for line in requests if "some/model" in line] == ["HEAD /some/model/resolve/main/config.json HTTP/1.1"]


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", "'some/model' is a gated model; accept its terms on the hub and log in"),
        (404, "RepoNotFound", "no folder and no model of the hub is called 'some/model'; check the name"),
        (404, "RevisionNotFound", "'some/model' has no revision 'v2' on the hub"),
        (404, "EntryNotFound", "'some/model' has no config.json on the hub"),
    ],
)
def test_what_the_hub_refuses_is_one_line_with_the_next_step(
    status: int, code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 20: a server that answers as the hub does."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hub) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        use_hub(f"http://127.0.0.1:{server.server_port}", monkeypatch)
        try:
            with pytest.raises(ModelError, match=f"^{re.escape(message)}"):
                load_model("some/model", revision="v2")
        finally:
            server.shutdown()


def test_a_model_in_the_cache_is_loaded_without_the_hub(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 20: the hub is down, the files are there."""
    from huggingface_hub import constants

    commit, repository = "a" * 40, tmp_path / "models--some--model"
    shutil.copytree(model_folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    use_hub("http://127.0.0.1:9", monkeypatch)
    loaded = load_model("some/model")
    assert (loaded.family, loaded.revision) == ("gpt2", commit)
    with pytest.raises(ModelError, match="cannot reach the model hub for 'some/other'"):
        load_model("some/other")
