"""The runs of a folder. Only what lies in the folder itself is listed or read: a name that is not in the list, or a
link that leads out of the folder, is no run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from attnscope import tables
from attnscope.errors import InputError, OutputError
from attnscope.report.data import page_data
from attnscope.serve import reproductions

# What a page is made of; every one must lie in the folder.
_READ = ("run.json", "rows.parquet", "topn.parquet", "weights.parquet", "tokens.json", "findings.json", "claims.json")
DOWNLOADS = (*_READ, "report.html", "claims.md")
REQUEST = ".request.json"

# What reading a record meets that holds something else than it should.
DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, pl.exceptions.PolarsError)


@dataclass(frozen=True)
class Entry:
    """A run as the list shows it."""

    name: str
    state: Literal["finished", "stopped", "unreadable"]
    model: str = ""
    text: str = ""
    settings: str = ""
    finished: str = ""
    kept: int = 0  # finished windows of a run that was stopped
    windows: int = 0
    verdict: str = ""  # the headline of its diagnosis, or how the claims of a reproduction came out
    kind: Literal["scan", "reproduction"] = "scan"


class Library:
    """The folder that is served."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError(f"no folder at {str(root)!r}; give the folder that holds your runs, or create it")
        self.root = root.resolve()

    def entries(self) -> list[Entry]:
        """All runs, the newest first; folders that hold none are left out."""
        found = [entry for name in self._names() if (entry := self._entry(name)) is not None]
        return sorted(found, key=lambda entry: (entry.finished, entry.name), reverse=True)

    def folder(self, name: str) -> Path:
        """The folder of a run, by a name that is in the list."""
        if name not in self._names():
            raise OutputError(f"no run {name!r} in {str(self.root)!r}")
        return self.root / name

    def file(self, name: str, file: str) -> Path:
        """A file of a run, if it is one of a run's files and lies inside the folder."""
        path = self.folder(name) / file
        if file not in DOWNLOADS or not path.is_file() or not path.resolve().is_relative_to(self.root):
            raise OutputError(f"run {name!r} has no file {file!r}")
        return path

    def figure(self, name: str, figure: str) -> Path:
        """A picture of a reproduction, by a path that is in its list."""
        folder = self.folder(name)
        if figure not in reproductions.figures(folder):
            raise OutputError(f"run {name!r} has no figure {figure!r}")
        return folder / figure

    def reproduction(self, name: str) -> str | None:
        """The page of a reproduction; nothing if the run is a scan."""
        folder = self.folder(name)
        if not reproductions.is_reproduction(self._json(folder / "run.json") or {}):
            return None
        if not self._inside(folder / "claims.json"):
            raise OutputError(f"claims.json of run {name!r} is a link that leads out of the folder; it is not read")
        return reproductions.page(name, folder)

    def data(self, name: str) -> dict[str, Any]:
        """What the page shows of a run, from its tables."""
        folder = self.folder(name)
        for file in _READ:
            if not (folder / file).resolve().is_relative_to(self.root):
                raise OutputError(f"{file} of run {name!r} is a link that leads out of the folder; it is not read")
        if reproductions.is_reproduction(self._json(folder / "run.json") or {}):
            raise OutputError(f"{name!r} is a reproduction: it has claims and figures, no heads to compare")
        rows, topn, run = tables.load_run(folder)
        findings, claims = tables.load_findings(folder), _optional(folder / "claims.json")
        try:
            return page_data(rows, topn, run, findings, tables.load_token_weights(folder), claims)
        except DAMAGED as error:
            raise OutputError(f"run {name!r} is damaged ({type(error).__name__}: {error}); scan again") from error

    def request(self, name: str) -> dict[str, Any] | None:
        """How a run was started here, if it was and did not finish."""
        path = self.folder(name) / REQUEST
        return _optional(path) if path.resolve().is_relative_to(self.root) else None

    def _names(self) -> list[str]:
        return [path.name for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]

    def _entry(self, name: str) -> Entry | None:
        folder = self.root / name
        if (folder / "run.json").is_file():
            record = self._json(folder / "run.json") or {}
            try:
                if reproductions.is_reproduction(record):
                    return _reproduced(name, record, self._json(folder / "claims.json"))
                return _finished(name, record, self._verdict(folder))
            except DAMAGED:
                return Entry(name, "unreadable")
        parts = folder / ".parts"
        if not parts.is_dir() or not self._inside(parts):
            return None
        plan = _optional(parts / "plan.json") or {}
        request = self.request(name) or {}
        settings = plan.get("settings")
        windows = settings.get("windows", 0) if isinstance(settings, dict) else 0
        kept = len(list(parts.glob("window-*.notes.json")))
        model, source = str(request.get("model") or ("sample" if request else "")), str(request.get("source", ""))
        kind: Literal["scan", "reproduction"] = "reproduction" if reproductions.is_reproduction(plan) else "scan"
        return Entry(name, "stopped", model, source, "", "", kept, windows, kind=kind)

    def _verdict(self, folder: Path) -> str:
        verdict = (self._json(folder / "findings.json") or {}).get("verdict")
        return str(verdict.get("headline", "")) if isinstance(verdict, dict) else ""

    def _json(self, path: Path) -> dict[str, Any] | None:
        """The object in a file that lies inside the folder, if it can be read."""
        return _optional(path) if self._inside(path) else None

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)


def _finished(name: str, record: dict[str, Any], verdict: str) -> Entry:
    settings = record["settings"]
    rows = "last rows" if settings.get("rows", "last") == "last" else f"{settings['rows']} rows"
    words = f"{settings['windows']} x {settings['length']:,} tokens, {rows}"
    model, source, finished = record["model"]["name"], record["text"]["source"], record["finished"]
    return Entry(name, "finished", _text(model), _text(source), words, _text(finished), verdict=verdict)


def _reproduced(name: str, record: dict[str, Any], claims: dict[str, Any] | None) -> Entry:
    settings, verdict = reproductions.told(record, claims)
    model, source, finished = record["model"]["name"], record["text"]["source"], record["finished"]
    names = _text(model), _text(source), settings, _text(finished)
    return Entry(name, "finished", *names, verdict=verdict, kind="reproduction")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _optional(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
