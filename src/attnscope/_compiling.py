"""How the package's loops are compiled by numba: the only place that calls it with options.

`loop` compiles a function that Python calls, `helper` one that only loops call. Both relax the order of additions, so
that sums vectorize, but keep NaN and infinity, which stand for masked keys and broken rows. `rounded` keeps every
rounding, and `ordered` the order of operations too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

_RELAXED = {"contract", "reassoc", "nsz", "arcp"}


def loop(function: Function) -> Function:
    """Compile on first use, without the interpreter lock, and cache the result on disk where that can be written."""
    options: Any = {"fastmath": _RELAXED, "error_model": "numpy", "nogil": True}
    try:
        compiled: Any = njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder to cache in: compile in every process
        return cast(Function, njit(**options)(function))
    # numba's own stamp covers the function's file alone; what it calls comes from others too.
    compiled._cache._cache_file._source_stamp = _source_stamp()
    return cast(Function, compiled)


def helper(function: Function) -> Function:
    """Compile a function that only loops call."""
    return cast(Function, njit(fastmath=_RELAXED, error_model="numpy")(function))


def rounded(function: Function) -> Function:
    """The same with every product rounded before it is added: a b - a b is zero."""
    return cast(Function, njit(fastmath=_RELAXED - {"contract"}, error_model="numpy")(function))


def ordered(function: Function) -> Function:
    """The same with operations in the order in which they are written."""
    return cast(Function, njit(fastmath={"contract"}, error_model="numpy")(function))


@cache
def _source_stamp() -> tuple[tuple[str, int, int], ...]:
    """Name, time of change and size of every file that imports this module: caches of other states are not used."""
    package = Path(__file__).parent
    files = [path for path in sorted(package.rglob("*.py")) if __name__ in path.read_text("utf-8")]
    states = [(path.relative_to(package).as_posix(), path.stat()) for path in [Path(__file__), *files]]
    return tuple((name, state.st_mtime_ns, state.st_size) for name, state in states)
