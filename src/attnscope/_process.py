"""What the package asks of its process: names imported on first use, threads, and what a forked child cannot use.

Work passed to threads that do not exist waits forever. polars has one pool per process, so a child of a process that
used it is refused; torch's operations run without other threads if it is set to use one.

Requirement: importing this module, which the package itself does, loads nothing heavy: torch is imported on use.

The compiled loops release the interpreter lock. A pool belongs to the process that created it: a forked child creates
its own.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


# Functions of one room that a room below it calls: "module:name" by what they are for, filled in by the package.
HOOKS: dict[str, str] = {}


def hook(purpose: str) -> Callable[..., Any]:
    """The function that the package named for a purpose."""
    module, _, name = HOOKS[purpose].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


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
            if f"{package}.{name}" in sys.modules:  # a module that has moved
                return sys.modules[f"{package}.{name}"]
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(names[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        own = getattr(sys.modules[package], "__all__", ())
        return sorted({*own, *names, *submodules})

    return getattribute, directory


class _Moved(ModuleType):
    """An old module name: its names are those of other modules now, each with a warning when it is used."""

    def __init__(self, old: str, names: Mapping[str, str]) -> None:
        super().__init__(old)
        self.__path__: list[str] = []  # its submodules have moved as well
        self._names = names

    def __getattr__(self, name: str) -> Any:
        new = self._names.get(name) or self._names.get("*")
        if f"{self.__name__}.{name}" in sys.modules:
            return sys.modules[f"{self.__name__}.{name}"]
        if new is None or name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(new), name)
        message = f"{self.__name__}.{name} has moved: import it from {new}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return found


def keep_old_names(package: str, moved: Mapping[str, Mapping[str, str]]) -> None:
    """Let moved modules be imported by their old names: for each name its new module, `*` for all others."""
    for old, names in moved.items():
        full = f"{package}.{old}"
        sys.modules[full] = _Moved(full, names)


P = ParamSpec("P")
R = TypeVar("R")

_PATIENCE = 10.0  # seconds for work of microseconds

_imported_in = os.getpid()
_used_in: int | None = None


def refuses_after_fork(function: Callable[P, R]) -> Callable[P, R]:
    """Run the function with working threads; raises AttnscopeError immediately if a fork left them in the parent."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        with _working_threads():
            return function(*args, **kwargs)

    return checked


@contextmanager
def _working_threads() -> Iterator[None]:
    global _used_in
    _used_in = _used_in or os.getpid()
    if not _is_forked():
        yield
        return
    if _used_in != os.getpid() or not _polars_works():
        raise AttnscopeError(
            "attnscope or polars was used before this process was forked, and their threads were not copied; start "
            "the process with the 'spawn' method, e.g. multiprocessing_context='spawn' of a DataLoader"
        )
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    if torch is None or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _is_forked() -> bool:
    """Whether this process was forked from one that had imported this module; a fork server has used no threads."""
    if os.getpid() == _imported_in:
        return False
    import multiprocessing

    parent = multiprocessing.parent_process()
    return parent is None or parent.pid == os.getppid()


def _polars_works() -> bool:
    """Whether the threads of polars respond: the parent process may have started them without this package."""
    import polars as pl

    probe = threading.Thread(target=lambda: pl.select(pl.repeat(1, 2)), daemon=True)
    probe.start()
    probe.join(_PATIENCE)
    return not probe.is_alive()


def parallel_for(work: Callable[[Any], None], pieces: Iterable[Any]) -> None:
    """Call `work` on every piece, without gradients, on as many threads as torch uses; raises the first error."""
    import torch

    pieces = list(pieces)
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        with torch.no_grad():
            for piece in pieces:
                work(piece)
        return
    remaining = iter(pieces)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            for piece in remaining:
                if errors:
                    return
                work(piece)
        except BaseException as error:
            errors.append(error)

    workers = [_pool(os.getpid(), torch.get_num_threads()).submit(take) for _ in range(threads)]
    try:
        for worker in workers:
            worker.result()
    except BaseException as error:  # an interruption of this thread: the others stop after their piece
        errors.append(error)
        for worker in workers:
            worker.result()
    if errors:
        raise errors[0]


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads of a process, each running torch's operations single-threaded; the caller keeps its thread count."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    started = threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, "attnscope", _use_one_thread)
    for _ in range(threads):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(threads)
    return pool


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    torch.get_num_threads()  # torch adopts the number in this thread when it is first queried
    torch.set_grad_enabled(False)
