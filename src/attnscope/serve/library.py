"""The runs of a folder: list, show, rename and delete them, of whatever kind they are (`attnscope.store.kinds`).

Only what is inside the folder is listed, read or changed: links that lead out of it are refused.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from attnscope.errors import InputError, OutputError, shown
from attnscope.store import folders
from attnscope.store.kinds import (
    RECORD,
    Description,
    Kind,
    describe,
    files_of,
    find_kind,
    kind_of,
    kinds,
    load_run,
    resolve,
)
from attnscope.store.manifest import MANIFEST, UNFINISHED, Manifest

REQUEST = ".request.json"

# The files of a run of any kind while it is measured.
_UNFINISHED = (
    *(REQUEST, ".attnscope-*", "*/.attnscope-*", ".parts/plan.json", ".parts/window-*"),
    *(".parts/manifest.jsonl", ".parts/*.parquet", ".parts/overview.json"),
)

# Names that every file system takes and that no path is written with.
_NAME = re.compile(r"\w[\w .,+=@()-]{0,99}(?<![ .])")

# Exceptions raised by reading a run with unexpected content.
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError, pl.exceptions.PolarsError)


@dataclass(frozen=True)
class Entry(Description):
    """A run in the list."""

    name: str = ""
    kind: str = ""
    reason: str = ""  # why it cannot be read
    opens: bool = False  # it has a page
    side_by_side: bool = False  # its page can show another run of its kind beside it
    finished_windows: int = 0  # of a run that was stopped, or is running elsewhere
    windows: int = 0
    downloads: tuple[str, ...] = ()
    files: int = 0
    bytes: int = 0


class Library:
    """The runs in the folder `root`."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError(f"no folder at {str(root)!r}; give the folder that holds your runs, or create it")
        self.root = root.resolve()

    def entries(self) -> list[Entry]:
        """All runs, the newest first; folders without a run are left out."""
        entries = [entry for name in self._names() if (entry := self._entry(name)) is not None]
        return sorted(entries, key=lambda entry: (entry.finished, entry.name), reverse=True)

    def folder(self, name: str) -> Path:
        """The folder of a run; OutputError if `name` is not the name of a folder in `root`."""
        if name not in self._names():
            raise OutputError(f"no run {name!r} in {str(self.root)!r}")
        return self.root / name

    def opened(self, name: str) -> tuple[Path, Kind]:
        """The folder of a finished or live run, whose files all lie inside `root`, and its kind."""
        folder = self.folder(name)
        if not self._inside(folder / RECORD):
            raise OutputError(f"{RECORD} of run {name!r} is a link that leads out of the folder; it is not read")
        kind = kind_of(folder)
        for path in folder.rglob("*"):
            if path.is_symlink() and not self._inside(path) and (path.is_dir() or _is_of(kind, folder, path)):
                file = path.relative_to(folder).as_posix()
                raise OutputError(f"{file} of run {name!r} is a link that leads out of the folder; it is not read")
        return folder, kind

    def live(self, name: str) -> tuple[Path, str]:
        """The folder of a run that a page can follow, and the module that does so (`Kind.live`)."""
        folder, kind = self.opened(name)
        if not kind.live:
            raise OutputError(f"{name!r} is of the kind {kind.name}, which cannot be followed")
        return folder, kind.live

    def page(self, *names: str) -> str:
        """The page of a run, or of two of the same kind side by side."""
        opened = [self.opened(name) for name in names]
        (folder, kind), *others = opened
        for name, (_, found) in zip(names, opened, strict=True):
            if others and not (found.side_by_side and found == kind):
                raise OutputError(f"{name!r} is of the kind {found.name}, which is not compared; open it alone")
        place = {"home": "/", "names": names, "here": f"/run/{quote(names[0])}"}
        try:
            for path, found in opened:
                describe(path, found)
            if kind.page:
                return str(resolve(kind.page)(place, *(path for path, _ in opened)))
            page: str = load_run(folder).page()
            return page.replace("<body>", '<body><p><a href="/">attnscope: all runs</a></p>', 1)
        except OutputError:
            raise
        except DAMAGED as error:
            either = " or ".join(repr(name) for name in names)
            raise OutputError(f"run {either} is damaged ({type(error).__name__}: {error}); run it again") from error

    def file(self, name: str, file: str) -> Path:
        """The path of a file of a run; OutputError if a run of its kind has no such file inside the folder."""
        folder = self.folder(name)
        kind = find_kind(folder) if self._inside(folder / RECORD) else None
        path = folder / file
        allowed = kind is not None and ".." not in file.split("/") and _is_of(kind, folder, path)
        if not allowed or not path.is_file() or not self._inside(path):
            raise OutputError(f"run {name!r} has no such file")
        return path

    def request(self, name: str) -> dict[str, Any] | None:
        """The settings of an unfinished scan that was started from the page; None for any other run."""
        path = self.folder(name) / REQUEST
        try:
            content = json.loads(path.read_text("utf-8")) if self._inside(path) else None
        except (OSError, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None

    def rename(self, name: str, wanted: object) -> str:
        """Give a run another name, and return it; InputError if no run can have it, OutputError if it is taken."""
        if not isinstance(wanted, str) or not _NAME.fullmatch(wanted.strip()):
            raise InputError(
                f"a run cannot be called {shown(wanted)}; use up to 100 letters, digits, spaces and . , + = @ ( ) _ -, "
                "with a letter or digit first"
            )
        folder, new = self._run_folder(name), self.root / wanted.strip()
        with folders.sole_writer(folder):
            if new.name in {path.name for path in self.root.iterdir()}:
                raise OutputError(f"there is already a file or folder called {new.name!r}; choose another name")
            folder.rename(new)
        return new.name

    def delete(self, name: str) -> None:
        """Delete the folder of a run with all its files; OutputError if it holds files that are not of the run."""
        folder = self._run_folder(name)
        with folders.sole_writer(folder):
            foreign = foreign_files(folder)
            if foreign:
                more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
                held = f"{foreign[0]!r}{more}"
                raise OutputError(f"{name!r} also holds {held}, not written by attnscope; move that first")
            shutil.rmtree(folder)

    def _run_folder(self, name: str) -> Path:
        """The folder of a run, finished or not; OutputError for a folder without a run."""
        folder = self.folder(name)
        if self._entry(name) is None:
            raise OutputError(f"no run {name!r} in {str(self.root)!r}")
        return folder

    def _names(self) -> list[str]:
        return [path.name for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]

    def _entry(self, name: str) -> Entry | None:
        folder = self.root / name
        try:
            kind = find_kind(folder) if self._inside(folder / RECORD) else None
        except OutputError as error:
            return self._listed(Description(state="unreadable"), name, reason=str(error))
        if kind is None:
            return self._unfinished(name)
        known = {"kind": kind.name, "opens": True, "downloads": self._downloads(kind, folder)}
        try:
            self.opened(name)
            return self._listed(describe(folder, kind), name, side_by_side=kind.side_by_side, **known)
        except OutputError as error:
            return self._listed(Description(state="unreadable"), name, reason=str(error), **known | {"opens": False})

    def _unfinished(self, name: str) -> Entry | None:
        """A run whose windows are not all finished; None if there is none."""
        folder = self.root / name
        parts = folder / UNFINISHED
        manifest = Manifest.read(parts) if self._inside(parts / MANIFEST) else None
        if manifest is None:
            return None
        names = manifest.header.get("names") or {}
        model, text, kind = (str(names.get(each) or "") for each in ("model", "text", "kind"))
        state = "running" if folders.is_being_written(folder) else "stopped"
        windows = {"finished_windows": manifest.finished_windows, "windows": manifest.header["windows"]}
        return self._listed(Description(model, text, state=state), name, kind=kind, **windows)  # type: ignore[arg-type]

    def _listed(self, found: Description, name: str, **known: Any) -> Entry:
        """The entry of a run, with the number and size of its files."""
        paths = (self.root / name).rglob("*")
        sizes = [path.lstat().st_size for path in paths if path.is_symlink() or path.is_file()]
        return Entry(**asdict(found), name=name, files=len(sizes), bytes=sum(sizes), **known)

    def _downloads(self, kind: Kind, folder: Path) -> tuple[str, ...]:
        """The files of a run beside its tables in folders, in the order in which its kind names them."""
        found = (path for pattern in files_of(kind) if "/" not in pattern for path in sorted(folder.glob(pattern)))
        return tuple(path.name for path in found if path.is_file() and self._inside(path))

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)


def foreign_files(folder: Path) -> list[str]:
    """Files below a folder, as relative paths, that attnscope does not write."""
    written = [*_UNFINISHED, *(pattern for kind in kinds() for pattern in kind.written)]
    files = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    return [path for path in _relative(files, folder) if not any(_matches(path, pattern) for pattern in written)]


def _is_of(kind: Kind, folder: Path, path: Path) -> bool:
    """Whether a run of this kind writes such a file."""
    (file,) = _relative([path], folder)
    return any(_matches(file, pattern) for pattern in files_of(kind))


def _relative(paths: Iterable[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path) for path in paths]


def _matches(file: str, pattern: str) -> bool:
    """Whether a relative path fits a pattern, folder by folder."""
    return file.count("/") == pattern.count("/") and fnmatchcase(file, pattern)
