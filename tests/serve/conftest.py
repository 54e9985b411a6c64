"""A server over a folder of two small runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from models import build
from servers import Served, serving_here

from attnscope.scanning import scan


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A folder with two runs, only to be copied."""
    folder = tmp_path_factory.mktemp("two_runs")
    text = "The quick brown fox jumps over the lazy dog. " * 9
    for name in ("first", "a second"):
        scan(build("gpt2"), text, tokenizer=tokenizer, length=32, out=folder / name)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, two_runs: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("server") / "runs"
    shutil.copytree(two_runs, root)
    with serving_here(root) as server:
        yield server
