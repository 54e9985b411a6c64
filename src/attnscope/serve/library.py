"""The runs of a folder. Only what lies in the folder itself is listed or read: a name that is not in the list, or a
link that leads out of the folder, is no run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnscope import tables
from attnscope.errors import InputError, OutputError
from attnscope.report.data import page_data

# What a page is made of; every one must lie in the folder.
_READ = ("run.json", "rows.parquet", "topn.parquet", "weights.parquet", "tokens.json", "findings.json", "claims.json")
DOWNLOADS = (*_READ, "report.html")
REQUEST = ".request.json"


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
    verdict: str = ""  # the headline of its diagnosis


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

    def data(self, name: str) -> dict[str, Any]:
        """What the page shows of a run, from its tables."""
        folder = self.folder(name)
        for file in _READ:
            if not (folder / file).resolve().is_relative_to(self.root):
                raise OutputError(f"{file} of run {name!r} is a link that leads out of the folder; it is not read")
        rows, topn, run = tables.load_run(folder)
        findings, claims = _optional(folder / "findings.json"), _optional(folder / "claims.json")
        return page_data(rows, topn, run, findings, tables.load_shown(folder), claims)

    def request(self, name: str) -> dict[str, Any] | None:
        """How a run was started here, if it was and did not finish."""
        path = self.folder(name) / REQUEST
        return _optional(path) if path.resolve().is_relative_to(self.root) else None

    def _names(self) -> list[str]:
        return [path.name for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]

    def _entry(self, name: str) -> Entry | None:
        folder = self.root / name
        if (folder / "run.json").is_file():
            record = _optional(folder / "run.json") if self._inside(folder / "run.json") else None
            try:
                return _finished(name, record or {}, self._verdict(folder))
            except (KeyError, TypeError, AttributeError):
                return Entry(name, "unreadable")
        parts = folder / ".parts"
        if not parts.is_dir() or not self._inside(parts):
            return None
        plan = _optional(parts / "plan.json") or {}
        request = self.request(name) or {}
        settings = plan.get("settings", {})
        kept = len(list(parts.glob("window-*.notes.json")))
        model = str(request.get("model") or ("sample" if request else ""))
        return Entry(name, "stopped", model, str(request.get("source", "")), "", "", kept, settings.get("windows", 0))

    def _verdict(self, folder: Path) -> str:
        findings = _optional(folder / "findings.json") if self._inside(folder / "findings.json") else None
        verdict = (findings or {}).get("verdict")
        return str(verdict.get("headline", "")) if isinstance(verdict, dict) else ""

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)


def _finished(name: str, record: dict[str, Any], verdict: str) -> Entry:
    settings = record["settings"]
    rows = "last rows" if settings.get("rows", "last") == "last" else f"{settings['rows']} rows"
    words = f"{settings['windows']} x {settings['length']:,} tokens, {rows}"
    model, source = record["model"]["name"], record["text"]["source"]
    return Entry(name, "finished", model, source, words, record["finished"], verdict=verdict)


def _optional(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
