"""Names of a package that are imported when they are first used, and listed by `dir` before."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy(
    package: str, path: Iterable[str], names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: its public submodules, and names by the module that they are from.

    A name that is also a submodule's means the submodule.
    """
    submodules = {found.name for found in pkgutil.iter_modules(list(path)) if not found.name.startswith("_")}

    def getattribute(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(names[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        own = getattr(sys.modules[package], "__all__", ())
        return sorted({*own, *names, *submodules})

    return getattribute, directory
