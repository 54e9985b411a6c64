"""Fixtures that many tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pairwise import deselected

# Fixtures import what they use: a process that only shares out the tests loads neither torch nor transformers.

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every case, also the thorough ones and all crossed ones")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--all`, leave out tests marked `thorough`, and of those marked `pairwise` what pairs do not need."""
    if config.getoption("--all"):
        return
    left_out = deselected(items) | {item for item in items if item.get_closest_marker("thorough")}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pages of `show` go where pytest keeps its files."""
    from attnscope.show import result as base

    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_page_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from models import byte_tokenizer

    return byte_tokenizer()


@pytest.fixture
def text() -> str:
    return TEXT


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A saved tiny GPT-2 with its tokenizer, in a path with a space."""
    from models import build

    folder = tmp_path_factory.mktemp("a model")
    build("gpt2").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def runs_of_every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of every kind, made once for all workers, only to be read or copied."""
    from every_kind import EVERY_KIND
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # of all workers of this session
    root, done = base / "every kind", base / "every kind.done"
    with FileLock(base / "every kind.lock"):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)  # of a worker that failed halfway
            root.mkdir()
            for name, (_, make) in EVERY_KIND.items():
                make(root / name)
            done.touch()
    return root
