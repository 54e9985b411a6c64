"""The training text of the sample model: the documentation inside CPython.

Two sources that every Python installation has:

- `pydoc_data.topics`: the language reference that `help("for")` prints;
- the docstrings of the standard library, read from its source with `ast`, and those of
  the modules written in C, read from the imported objects.

The text is cut into documents (a topic, or the docstrings of one module), which are sorted,
freed of repeated paragraphs, and split into a training and a held-out part by a hash of their
names. The result depends on the Python version only.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import pydoc_data.topics
import re
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

SKIPPED_PACKAGES = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "pydoc_data",
    "__phello__",
}
HELD_OUT_PERCENT = 8
SHORTEST_DOCUMENT = 200  # characters; shorter documents are stubs


def documents() -> dict[str, str]:
    """Every document by name, in sorted order, without repeated paragraphs."""
    texts: dict[str, str] = {}
    for topic, text in pydoc_data.topics.topics.items():
        texts[f"topic {topic}"] = text
    for name, text in _python_modules():
        texts[f"module {name}"] = text
    for name, text in _c_modules():
        texts.setdefault(f"module {name}", text)
    return dict(_without_repeats(texts))


def split(documents: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split documents into (training, held-out) by a hash of their names."""
    training: dict[str, str] = {}
    held_out: dict[str, str] = {}
    for name, text in documents.items():
        bucket = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100
        (held_out if bucket < HELD_OUT_PERCENT else training)[name] = text
    return training, held_out


def _python_modules() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_PACKAGES.intersection(relative.parts):
            continue
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        text = "\n\n".join(_docstrings(tree, name))
        if text:
            yield name, text


def _docstrings(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    docstring = ast.get_docstring(node)
    if docstring:
        yield f"{name}\n\n{_indented(docstring)}"
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _docstrings(child, f"{name}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(child)
            if text:
                yield f"{name}.{child.name}({ast.unparse(child.args)})\n\n{_indented(text)}"


def _c_modules() -> Iterator[tuple[str, str]]:
    for name in sorted(sys.stdlib_module_names):
        spec = importlib.util.find_spec(name) if name != "__main__" else None
        if spec is None or (spec.origin or "").endswith(".py"):
            continue  # not available on this platform, or read from its source above
        try:
            module = importlib.import_module(name)
        except ImportError:  # its C library is not installed
            continue
        text = "\n\n".join(_live_docstrings(module, name))
        if text:
            yield name, text


def _live_docstrings(owner: types.ModuleType | type, name: str) -> Iterator[str]:
    docstring = inspect.getdoc(owner)
    if docstring:
        yield f"{name}\n\n{_indented(docstring)}"
    for key, member in sorted(vars(owner).items()):
        if key.startswith("_") and not key.startswith("__"):
            continue
        if inspect.isclass(member) and isinstance(owner, types.ModuleType):
            yield from _live_docstrings(member, f"{name}.{key}")
        elif callable(member) and (text := inspect.getdoc(member)):
            signature = getattr(member, "__text_signature__", None) or "(...)"
            yield f"{name}.{key}{signature}\n\n{_indented(text)}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else "" for line in text.splitlines())


def _without_repeats(texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The documents without paragraphs of earlier ones: aliases and inherited docstrings repeat by the hundred."""
    earlier: set[str] = set()
    for name in sorted(texts):
        paragraphs = []
        for paragraph in re.split(r"\n\s*\n", texts[name].strip()):
            folded = " ".join(paragraph.split())
            if len(folded) > 40:
                if folded in earlier:
                    continue
                earlier.add(folded)
            paragraphs.append(paragraph.rstrip())
        text = "\n\n".join(paragraphs) + "\n"
        # Memory addresses in default values differ from run to run.
        text = re.sub(r" at 0x[0-9a-f]+", "", text)
        if len(text) >= SHORTEST_DOCUMENT:
            yield name, text


if __name__ == "__main__":
    training, held_out = split(documents())
    for label, part in (("training", training), ("held-out", held_out)):
        print(f"{label}: {len(part)} documents, {sum(map(len, part.values())):,} characters")
