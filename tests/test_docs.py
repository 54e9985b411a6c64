"""Docs match the code: Python blocks name what exists and call it as it can be; all pages and notebooks are there."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import attnscope

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCES = [page for page in sorted(DOCS.rglob("*.md")) if "reference" not in page.parts]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
LARGEST_NOTEBOOK = 300_000  # bytes


def blocks(page: Path) -> list[str]:
    """The Python code of a page or a notebook."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    found = re.findall(r"^```(?:python|\{code-cell\}[^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    others = "coming-from" in page.name  # every first block there is another tool's
    return [block for block in found if not others or "attnscope" in block]


def value_of(node: ast.expr) -> Any:
    """What `attnscope.a.b` is; None for any other expression. A name that does not exist is an AttributeError."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "attnscope"):
        return None
    value: Any = attnscope
    for part in reversed(parts):
        value = getattr(value, part)
    return value


def named(page: Path) -> Iterator[tuple[str, Any]]:
    """The functions and classes of attnscope that a page names in full or imports, with those names."""
    names = re.findall(r"(?<![\w./-])attnscope(?:\.[A-Za-z]\w*)+", page.read_text("utf-8"))
    for block in blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnscope"):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        parts = name.split(".")
        for end in range(2, len(parts) + 1):
            try:
                value = resolve_name(".".join(parts[:end]))
            except (AttributeError, ImportError):
                break
            if inspect.isclass(value) or inspect.isfunction(value):  # a method is described with its class
                yield name, value
                break


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The functions and classes in the reference, which docs/conf.py writes."""
    conf: dict[str, Any] = runpy.run_path(str(DOCS / "conf.py"))
    folder = tmp_path_factory.mktemp("reference")
    conf["write_reference"](folder)
    text = "\n".join(page.read_text("utf-8") for page in folder.glob("*.rst"))
    names = re.findall(r"^\.\. auto(?:class|function):: (\S+)", text, re.MULTILINE)
    return [resolve_name(name) for name in names]


@pytest.mark.parametrize("page", [ROOT / "README.md", *SOURCES, *NOTEBOOKS], ids=lambda page: page.name)
def test_what_a_page_names_is_in_the_reference(page: Path, reference: list[Any]) -> None:
    assert [name for name, value in named(page) if value not in reference] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *SOURCES, *NOTEBOOKS], ids=lambda page: page.name)
def test_python_blocks_name_what_exists_and_call_it_as_it_can_be(page: Path) -> None:
    for block in blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute):
                value_of(node)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnscope"):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Call) and node.keywords and (called := value_of(node.func)) is not None:
                taken = inspect.signature(called).parameters
                if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
                    assert {each.arg for each in node.keywords if each.arg} <= set(taken)


def test_python_blocks_of_a_page_define_what_they_use(tmp_path: Path) -> None:
    for number, page in enumerate([ROOT / "README.md", *SOURCES, *NOTEBOOKS]):
        (tmp_path / f"{page.stem}_{number}.py").write_text("\n".join(blocks(page)), "utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise", "."]
    done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = set()
    for page in SOURCES:
        for contents in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            names = [line for line in contents.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / name).relative_to(DOCS).as_posix() for name in names}
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in [*SOURCES, *NOTEBOOKS]}
    assert pages - listed == {"index"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks_say_what_is_learned_and_have_small_outputs(notebook: Path) -> None:
    content = json.loads(notebook.read_text("utf-8"))
    assert "You will have learned" in "".join(content["cells"][0]["source"])
    assert notebook.stat().st_size < LARGEST_NOTEBOOK
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", ())]
    assert outputs
    assert not any(output["output_type"] == "error" for output in outputs)
