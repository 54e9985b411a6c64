"""The documentation site: Sphinx with MyST, so that every page stays plain Markdown (`make docs`)."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import types
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import attnscope
from attnscope.cli.app import app

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "attnscope"
author = "The attnscope developers"
copyright = author
release = version = attnscope.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
default_role = "code"  # docstrings write names in single backticks

html_theme = "furo"
html_title = f"attnscope {release}"
html_show_sphinx = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_in_temp = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
suppress_warnings = [
    "ref.python",  # names of dimensions in annotations, "heads rows", are no references
    "mystnb.unknown_mime_type",  # charts come as Vega-Lite and as SVG
]

COMMAND_LINE = """# Command line

Most commands print their verdict first and what to type next last, in 80 columns. `recall`, `scorecard` and `budget` begin
with what was measured; `scorecard`, `budget` and `report` end with their files. `--verbose` adds the other tables and notes,
`--json` prints one JSON object on standard output and nothing else. Exit codes: 0 success, 1 a check or an audit failed, 2 bad
usage or input, 3 some heads were left out (they are listed with the reason).
"""
ROOMS = [
    "normalizers",
    "swapping",
    "monitor",
    "experiments",
    "capture",
    "doctor",
    "theory",
    "studies",
    "studies.audit",
    "progress",
]
DEEPER = {  # not at its top
    "attnscope": ["store.tables.within_support"],
    "attnscope.capture": ["forward.run"],
    "attnscope.studies": ["budget.running.budget", "compare.guidelines.guidelines", "recall.recall", "recall.Plan"],
}


def write_reference(folder: Path) -> None:
    """A page for the top of the package and for each room: every public name once, by its docstring."""
    folder.mkdir(exist_ok=True)
    known: set[object] = set()
    for name in ["attnscope", *(f"attnscope.{room}" for room in ROOMS)]:
        module = importlib.import_module(name)
        lines = [name, "=" * len(name), "", f".. automodule:: {name}", ""]
        deeper = {member: resolve_name(f"{name}.{member}") for member in DEEPER.get(name, [])}
        for member, value in (public(module) | deeper).items():
            if value not in known:
                kind = "class" if inspect.isclass(value) else "function"
                lines += [f".. auto{kind}:: {name}.{member}", *["   :members:"] * (kind == "class"), ""]
        if name == "attnscope.studies.audit":
            for member in sorted(itertools.chain.from_iterable(module.SPACES.values())):
                lines += [f".. py:data:: {name}.{member}", "", f"   {getattr(module, member).name}", ""]
        known |= set(public(module).values())
        (folder / f"{name}.rst").write_text("\n".join(lines), "utf-8")


def write_command_line(file: Path) -> None:
    """All commands with their options, as `--help` has them."""
    text = app.generate_docs(output_format="markdown")
    file.write_text(COMMAND_LINE + text[text.index("**Look at a model**") :], "utf-8")


def public(module: types.ModuleType) -> dict[str, Any]:
    """Functions and classes of attnscope that a module offers."""
    offered = {name: getattr(module, name) for name in getattr(module, "__all__", dir(module)) if name[0] != "_"}
    return {
        name: value
        for name, value in sorted(offered.items())
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("attnscope")
    }


def plain_to_rst(*event: Any) -> None:
    """Docstrings are plain text with Markdown tables, and |x| is a norm: say so in Sphinx's own markup."""
    lines: list[str] = event[-1]
    text: list[str] = []
    in_table = False
    for line in lines:
        row = re.fullmatch(r"\s*\|(.*)\|", line)
        if row is None:
            text += [*[""] * in_table, line if line.lstrip().startswith((">>>", "...")) else escape_bars(line)]
        elif set(row[1]) != {"-", "|"}:
            text += [] if in_table else ["", ".. list-table::", "   :header-rows: 1", ""]
            cells = row[1].split(" | ")
            text += [f"   {' ' if number else '*'} - {escape_bars(cell.strip())}" for number, cell in enumerate(cells)]
        in_table = row is not None
    lines[:] = text


def escape_bars(text: str) -> str:
    """Escape | outside of backticks."""
    return "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in re.split(r"(`[^`]*`)", text))


def setup(sphinx: Sphinx) -> None:
    """Called by Sphinx before it looks for pages."""
    folder = Path(__file__).parent / "reference"
    write_reference(folder)
    write_command_line(folder / "command-line.md")
    sphinx.connect("autodoc-process-docstring", plain_to_rst)
