"""A server on a free port over a folder of small runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from models import build
from servers import Served, serving

from attnscope.scanning import scan


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("runs")
    text = "The quick brown fox jumps over the lazy dog. " * 9
    for name in ("first", "a second"):
        scan(build("gpt2"), text, tokenizer=tokenizer, length=32, out=root / name)
    with serving(root) as server:
        yield server


@pytest.fixture
def root(served: Served) -> Path:
    return served.root
