"""The rooms of the package: which may import which, no cycle among modules, and no room above its ceiling."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SIZE: dict[str, Any] = runpy.run_path(str(Path(__file__).resolve().parent.parent / "scripts" / "size"))


@pytest.fixture(scope="module")
def modules() -> Any:
    return SIZE["modules"]()


def test_rooms_import_only_rooms_below_them(modules: Any) -> None:
    """Lazily and for types too; no study imports another."""
    assert SIZE["broken_edges"](modules) == []


def test_no_module_imports_itself_through_others(modules: Any) -> None:
    assert SIZE["cycles"](SIZE["imports"](modules)) == []


def test_no_room_is_above_its_ceiling(modules: Any) -> None:
    """Nor is the package; no file is a helper of a few lines."""
    assert SIZE["above"](modules) == []


def test_the_table_of_edges_has_no_cycle() -> None:
    allowed = {room: set(rooms) for room, rooms in SIZE["EDGES"].items()}
    assert SIZE["cycles"](allowed) == []
    assert set(allowed) == set(SIZE["CEILINGS"])


def test_an_import_upward_is_told_by_both_modules() -> None:
    module = SIZE["Module"]
    package = SIZE["PACKAGE"]
    low = module("attnscope.errors", package / "errors.py")
    high = module("attnscope.cli.app", package / "cli" / "app.py")
    low.__dict__["tree"] = SIZE["ast"].parse("def later():\n    from attnscope.cli.app import run\n")
    high.__dict__["tree"] = SIZE["ast"].parse("from attnscope.errors import AttnscopeError\n")
    found = {m.name: m for m in (low, high)}
    assert SIZE["broken_edges"](found) == ["attnscope.errors -> attnscope.cli.app"]
    assert SIZE["cycles"](SIZE["imports"](found)) == [["attnscope.cli.app", "attnscope.errors"]]
