"""A study is a folder that can be deleted: without it every module is imported, and the rest works."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnscope
import attnscope.studies

STUDIES = sorted(found.name for found in pkgutil.iter_modules(attnscope.studies.__path__))

# Run where the study is missing: import everything, list the commands, scan the sample, list runs on the server.
PROGRAM = """
import importlib, json, pkgutil, sys
import attnscope
from attnscope.cli import run
from attnscope.serve.library import Library
from attnscope.store.kinds import kinds
from pathlib import Path

EXTRAS = ("ray", "lightning", "tensorboard", "peft")
failed = []
for found in pkgutil.walk_packages(attnscope.__path__, "attnscope."):
    try:
        found.name.endswith("__main__") or importlib.import_module(found.name)
    except ImportError as error:
        if (error.name or "").split(".")[0] not in EXTRAS:
            failed.append(f"{found.name}: {error}")
exec("from attnscope import *")
assert run(["--help"]) == 0
root = Path(sys.argv[1])
assert run(["scan", "--length", "64", "--diagnose", "--out", str(root / "scan")]) == 0
assert run(["report", str(root / "scan")]) == 0
listed = {entry.name: [entry.kind, entry.state, entry.reason] for entry in Library(root).entries()}
(root / "found.json").write_text(json.dumps({"failed": failed, "listed": listed, "kinds": [k.name for k in kinds()]}))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("study", STUDIES)
def test_the_rest_works_without_a_study(study: str, tmp_path: Path) -> None:
    package, root = tmp_path / "path" / "attnscope", tmp_path / "runs"
    source = Path(attnscope.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    kinds = kinds_of(study)
    shutil.rmtree(package / "studies" / study)
    left = root / "left"
    left.mkdir(parents=True)
    (left / "run.json").write_text(json.dumps({"kind": kinds[0], "attnscope": attnscope.__version__}))
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", PROGRAM, str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((root / "found.json").read_text())
    assert found["failed"] == []
    assert found["listed"]["scan"] == ["scan", "finished", ""]
    assert found["listed"]["left"][1] == "unreadable"
    assert "is not part of this attnscope" in found["listed"]["left"][2]
    assert not set(kinds) & set(found["kinds"])


def kinds_of(study: str) -> list[str]:
    """The names of the kinds of a study."""
    module = pkgutil.resolve_name(f"attnscope.studies.{study}")
    return [kind.name for kind in module.KINDS]
