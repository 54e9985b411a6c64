"""The training text of the sample model: the documentation inside CPython.

Two sources that every Python installation has:

- `pydoc_data.topics`: the language reference behind `help("for")`;
- the docstrings of the standard library, taken from its source with `ast`, and those of
  the modules written in C, taken from the live objects.

Everything is cut into documents (a topic, or one module's docstrings), sorted, freed of
repeated paragraphs, and split by a hash of the document's name into a training part and
a held-out part. The result depends on the Python version and on nothing else.
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
SHORTEST_DOCUMENT = 200  # characters; anything less is a stub


def documents() -> dict[str, str]:
    """Return every document by name, in sorted order, repeated paragraphs left out."""
    found: dict[str, str] = {}
    for topic, text in pydoc_data.topics.topics.items():
        found[f"topic {topic}"] = text
    for name, text in _python_modules():
        found[f"module {name}"] = text
    for name, text in _c_modules():
        found.setdefault(f"module {name}", text)
    return dict(_without_repeats(found))


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
    own = ast.get_docstring(node)
    if own:
        yield f"{name}\n\n{_indented(own)}"
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
            continue  # of another platform, or read from its source above
        try:
            module = importlib.import_module(name)
        except ImportError:  # its C library is not on this machine
            continue
        text = "\n\n".join(_live_docstrings(module, name))
        if text:
            yield name, text


def _live_docstrings(owner: types.ModuleType | type, name: str) -> Iterator[str]:
    own = inspect.getdoc(owner)
    if own:
        yield f"{name}\n\n{_indented(own)}"
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


def _without_repeats(found: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Leave out paragraphs seen before: aliases and inherited docstrings repeat by the hundred."""
    seen: set[str] = set()
    for name in sorted(found):
        kept = []
        for paragraph in re.split(r"\n\s*\n", found[name].strip()):
            folded = " ".join(paragraph.split())
            if len(folded) > 40:
                if folded in seen:
                    continue
                seen.add(folded)
            kept.append(paragraph.rstrip())
        text = "\n\n".join(kept) + "\n"
        # Memory addresses in default values differ from run to run.
        text = re.sub(r" at 0x[0-9a-f]+", "", text)
        if len(text) >= SHORTEST_DOCUMENT:
            yield name, text


if __name__ == "__main__":
    training, held_out = split(documents())
    for label, part in (("training", training), ("held-out", held_out)):
        print(f"{label}: {len(part)} documents, {sum(map(len, part.values())):,} characters")
