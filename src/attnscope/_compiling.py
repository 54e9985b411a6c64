"""How the package's loops are compiled by numba: the only place that calls it with options.

`loop` compiles a function that Python calls, `helper` one that only loops call. Both relax the order of additions, so
that sums vectorize, but keep NaN and infinity, which stand for masked keys and broken rows. `rounded` keeps every
rounding, and `ordered` the order of operations too.

What only loops call is inlined into them. Otherwise a process that compiles a loop would run the functions as they were
compiled on their own, and one that reads the loop from the cache as they were compiled within it: other roundings.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

Function = TypeVar("Function", bound=Callable[..., Any])

_RELAXED = {"contract", "reassoc", "nsz", "arcp"}
_PACKAGE = Path(__file__).parent


def loop(function: Function) -> Function:
    """Compile on first use, without the interpreter lock, and cache the result on disk if possible."""
    compiled: Any = njit(fastmath=_RELAXED, error_model="numpy", nogil=True)(function)
    with suppress(RuntimeError):  # no folder for a cache: compile in every process
        compiled._cache = _SourceCache(function)
    return cast(Function, compiled)


def helper(function: Function) -> Function:
    """Compile a function that only loops call."""
    return cast(Function, njit(fastmath=_RELAXED, error_model="numpy", forceinline=True)(function))


def rounded(function: Function) -> Function:
    """The same with every product rounded before it is added: a b - a b is zero."""
    return cast(Function, njit(fastmath=_RELAXED - {"contract"}, error_model="numpy", forceinline=True)(function))


def ordered(function: Function) -> Function:
    """The same with operations in the order in which they are written."""
    return cast(Function, njit(fastmath={"contract"}, error_model="numpy", forceinline=True)(function))


class _SourceCache(FunctionCache):
    """numba's cache on disk, in files named by a digest of all source that a loop is compiled from.

    numba's own cache only checks the time and size of the loop's file, and keeps its file names when that changes: a
    constant from another file would go stale, as would everything if a process ended between writing index and data.
    Nor do its keys include the field names of named tuples, whose order determines the compiled code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        digest = source_digest(Path(function.__code__.co_filename))
        self._cache_file = IndexDataCacheFile(self._cache_path, f"{self._impl.filename_base}-{digest[:16]}", digest)

    def save_overload(self, signature: Any, data: Any) -> None:
        """Write compiled code; if the disk is full, the next process compiles again."""
        with suppress(OSError):
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        key = super()._index_key(signature, codegen)  # type: ignore[no-untyped-call]
        return key, _field_names(signature)


def _field_names(types: Any) -> tuple[Any, ...]:
    """The names of fields in the types of arguments, at any depth."""
    return tuple((getattr(one, "fields", None), _field_names(getattr(one, "types", ()))) for one in types)


@cache
def source_digest(file: Path) -> str:
    """SHA-256 of a file and of every file of the package that it imports, directly or through others."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported_files(path)
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def imported_files(file: Path) -> list[Path]:
    """The files of the package that a file imports."""
    return [path for name in _imported_names(file) if (path := _file_of(name)) is not None]


def _imported_names(file: Path) -> Iterator[str]:
    """Names that may be modules: `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:  # relative imports are banned by the linter
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(module: str) -> Path | None:
    """The file of a module of this package; None for anything else."""
    package, *parts = module.split(".")
    if package != __name__.partition(".")[0]:
        return None
    path = _PACKAGE.joinpath(*parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
