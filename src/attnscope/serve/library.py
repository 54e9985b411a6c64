"""The runs of a folder: list, read, rename and delete them.

Only what is inside the folder is listed, read or changed: links that lead out of it are refused.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Literal, NamedTuple

import polars as pl

from attnscope.errors import InputError, OutputError, shown
from attnscope.scanning.page_data import page_data
from attnscope.scanning.result import ScanResult
from attnscope.serve import training
from attnscope.show.html import policy
from attnscope.show.page import packed
from attnscope.store import folders, tables
from attnscope.store.manifest import FINISHED, MANIFEST, UNFINISHED, Manifest


class Assets(NamedTuple):
    """The parts of a page: its template, and the style and script to be inlined into it."""

    template: Template
    style: str
    script: str


@lru_cache
def load_assets(page: str, report_scripts: tuple[str, ...]) -> Assets:
    """The assets of one of the server's pages, whose script follows `report_scripts` of the report."""
    report, serve = resources.files("attnscope.show.page"), resources.files("attnscope.serve") / "web"
    scripts = [*(report / "js" / name for name in report_scripts), serve / f"{page}.js"]
    return Assets(
        Template((serve / f"{page}.html").read_text("utf-8")),
        (report / "page.css").read_text("utf-8") + (serve / "index.css").read_text("utf-8"),
        "\n".join(script.read_text("utf-8") for script in scripts),
    )


REQUEST = ".request.json"

# The files of a scan, a prediction for longer inputs, a reproduction, a training run, and of any of them while it runs.
_WRITTEN = (
    *("run.json", "rows.parquet", "topn.parquet", "weights.parquet", "patterns.parquet", "tokens.json"),
    *("horizon.json", "horizon.parquet", "heads.parquet"),
    *("findings.json", "report.html", "claims.json", "claims.md", "protocol.html", "tables/*.parquet"),
    *("alarms.jsonl", "scalars.jsonl", "heads/part-*.parquet", "parameters/part-*.parquet"),
    *(f"figures/*/*.{kind}" for kind in ("svg", "pdf", "png", "parquet", "json")),
    *(
        f"{folder}/{name}"
        for folder in (".parts", "parts")
        for name in ("manifest.jsonl", "*.parquet", "overview.json")
    ),
    *(REQUEST, ".parts/plan.json", ".parts/window-*", ".attnscope-*", "*/.attnscope-*"),
)
# Beside a record that cannot be read, they show whose it was.
_RUN_TABLES = ("topn.parquet", "tables/protocol_distance.parquet", "parts/manifest.jsonl")


def is_run(folder: Path, record: Mapping[str, Any] | None) -> bool:
    """Whether a folder with a `run.json`, whose content is the record, is a run of attnscope, damaged or not."""
    known = record or {}
    named = "attnscope" in known or known.get("kind") == "training"
    return named or any((folder / table).is_file() for table in _RUN_TABLES)


def foreign_files(folder: Path) -> list[str]:
    """Files below a folder, as relative paths, that attnscope does not write."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    paths = (path.relative_to(folder).as_posix() for path in files)
    return [path for path in paths if not any(fnmatchcase(path, written) for written in _WRITTEN)]


FIGURES = "figures"
_SCRIPTS = ("format.js", "colors.js", "svg.js", "model.js", "claims.js")
_VERDICTS = ("agrees", "depends", "disagrees")


def is_reproduction(record: Mapping[str, Any]) -> bool:
    """Whether a `run.json`, or the plan of a stopped run, was written by `attnscope reproduce`."""
    settings = record.get("settings")
    return isinstance(settings, dict) and not {"draws", "first_key"}.isdisjoint(settings)


def describe(record: Mapping[str, Any], claims: Mapping[str, Any] | None) -> tuple[str, str]:
    """One line each about what was measured and how many claims have which verdict."""
    settings = record["settings"]
    size = f"reproduction: {settings['windows']} x {settings['lengths'][-1]:,} tokens"
    answers = (claims or {}).get("claims")
    counts = Counter(claim.get("verdict") for claim in answers) if isinstance(answers, list) else Counter()
    verdicts = ", ".join(f"{verdict} {counts[verdict]}" for verdict in _VERDICTS if counts[verdict])
    return size, f"{counts.total()} claims: {verdicts}" if verdicts else ""


def figures(folder: Path) -> list[str]:
    """The SVG figures of a reproduction, as paths relative to its folder; links are left out."""
    parent = folder / FIGURES
    if not parent.is_dir() or parent.is_symlink():
        return []
    readings = sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
    return [
        f"{FIGURES}/{reading.name}/{path.name}"
        for reading in readings
        for path in sorted(reading.glob("*.svg"))
        if path.is_file() and not path.is_symlink()
    ]


def captions(folder: Path) -> dict[str, str]:
    """What the figures show, by the path of the figure; those of a damaged file are left out."""
    found = {}
    for figure in figures(folder):
        reading, name = Path(figure).parent, Path(figure).stem
        try:
            caption = json.loads((folder / reading / "captions.json").read_text("utf-8"))[name]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        if isinstance(caption, str):
            found[figure] = caption
    return found


def page(name: str, folder: Path) -> str:
    """The HTML page with the claims and figures of a reproduction."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        claims = json.loads((folder / "claims.json").read_text("utf-8"))
        describe(run, claims)  # fails on a damaged record
        record = {key: run[key] for key in ("model", "text", "settings", "finished", "attnscope")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(f"the reproduction {name!r} cannot be read ({type(error).__name__}); run it again") from None
    template, style, script = load_assets("reproduction", _SCRIPTS)
    data = {"run": record, "name": name, "claims": claims, "figures": figures(folder), "captions": captions(folder)}
    return template.substitute(
        policy=policy(script, style, images="'self' data:"), style=style, script=script, data=packed(data)
    )


# The files that a page is built from; every one must lie inside the folder.
_TABLES = ("rows.parquet", "topn.parquet", "weights.parquet", "patterns.parquet")
_READ = (*_TABLES, "run.json", "tokens.json", "findings.json", "claims.json", *tables.HORIZON_FILES)
DOWNLOADS = (*_READ, "report.html", "claims.md", *training.DOWNLOADS)

# Names that every file system takes and that no path is written with.
_NAME = re.compile(r"\w[\w .,+=@()-]{0,99}(?<![ .])")

# Exceptions raised by reading a record with unexpected content.
DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, pl.exceptions.PolarsError)


@dataclass(frozen=True)
class Entry:
    """A run in the list."""

    name: str
    state: Literal["finished", "running", "training", "failed", "stopped", "unreadable"]
    model: str = ""
    text: str = ""
    settings: str = ""
    finished: str = ""
    finished_windows: int = 0  # of a run that was stopped, or is running elsewhere
    windows: int = 0
    verdict: str = ""  # the headline of the diagnosis, the verdicts of a reproduction's claims, or the number of alarms
    kind: Literal["scan", "reproduction", "training"] = "scan"
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
        entries = [self._with_files(entry) for name in self._names() if (entry := self._entry(name)) is not None]
        return sorted(entries, key=lambda entry: (entry.finished, entry.name), reverse=True)

    def folder(self, name: str) -> Path:
        """The folder of a run; OutputError if `name` is not the name of a folder in `root`."""
        if name not in self._names():
            raise OutputError(f"no run {name!r} in {str(self.root)!r}")
        return self.root / name

    def file(self, name: str, file: str) -> Path:
        """The path of a downloadable file of a run; OutputError if there is none inside the folder."""
        path = self.folder(name) / file
        if file not in DOWNLOADS or not path.is_file() or not path.resolve().is_relative_to(self.root):
            raise OutputError(f"run {name!r} has no file {file!r}")
        return path

    def figure(self, name: str, figure: str) -> Path:
        """The path of a figure of a reproduction; OutputError if it is not one of `reproductions.figures`."""
        folder = self.folder(name)
        if figure not in figures(folder):
            raise OutputError(f"run {name!r} has no figure {figure!r}")
        return folder / figure

    def reproduction(self, name: str) -> str | None:
        """The page of a reproduction; None if the run is a scan."""
        folder = self.folder(name)
        if not is_reproduction(self._json(folder / "run.json") or {}):
            return None
        self._check_inside(folder, "claims.json")
        return page(name, folder)

    def training(self, name: str) -> Path | None:
        """The folder of a training run, whose files all lie inside `root`; None for any other run."""
        folder = self.folder(name)
        if not training.is_training(self._json(folder / "run.json") or {}):
            return None
        self._check_inside(folder, *(str(path.relative_to(folder)) for path in training.files_of(folder)))
        return folder

    def data(self, name: str) -> dict[str, Any]:
        """The data of a scan's page, from its tables."""
        folder = self.folder(name)
        self._check_inside(folder, *_READ)
        if is_reproduction(self._json(folder / "run.json") or {}):
            raise OutputError(f"{name!r} is a reproduction: it has claims and figures, but no heads to compare")
        if self.training(name) is not None:
            raise OutputError(f"{name!r} is a training run, which cannot be compared; open it on its own")
        self._check_inside(folder, *(f"{FINISHED}/{path.name}" for path in (folder / FINISHED).glob("*")))
        claims = _optional(folder / "claims.json")
        try:
            result = ScanResult.load(folder)
            findings = None if result.findings is None else result.findings.content
            data = page_data(result.overview, findings, result.token_weights, claims)
            return data if result.horizon is None else data | {"horizon": result.horizon.page_data()}
        except OutputError:
            raise
        except DAMAGED as error:
            raise OutputError(f"run {name!r} is damaged ({type(error).__name__}: {error}); scan again") from error

    def request(self, name: str) -> dict[str, Any] | None:
        """The settings of an unfinished scan that was started from the page; None for any other run."""
        return self._json(self.folder(name) / REQUEST)

    def rename(self, name: str, wanted: object) -> str:
        """Give a run another name, and return it; InputError if no run can have it, OutputError if it is taken."""
        if not isinstance(wanted, str) or not _NAME.fullmatch(wanted.strip()):
            raise InputError(
                f"a run cannot be called {shown(wanted)}; use up to 100 letters, digits, spaces and . , + = @ ( ) _ -, "
                "with a letter or digit first"
            )
        folder, new = self._run_folder(name), self.root / wanted.strip()
        with folders.sole_writer(folder):
            if new.name in self._taken():
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

    def _taken(self) -> set[str]:
        return {path.name for path in self.root.iterdir()}

    def _with_files(self, entry: Entry) -> Entry:
        """The entry with the files that can be downloaded, and the number and size of all."""
        folder = self.root / entry.name
        downloads = tuple(file for file in DOWNLOADS if (folder / file).is_file() and self._inside(folder / file))
        sizes = [path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
        return replace(entry, downloads=downloads, files=len(sizes), bytes=sum(sizes))

    def _names(self) -> list[str]:
        return [path.name for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]

    def _entry(self, name: str) -> Entry | None:
        folder = self.root / name
        if (folder / "run.json").is_file():
            record = self._json(folder / "run.json") or {}
            if not is_run(folder, record):
                return None
            try:
                if is_reproduction(record):
                    return _reproduced(name, record, self._json(folder / "claims.json"))
                if self.training(name) is not None:
                    return _trained(name, folder, record)
                return _finished(name, record, self._verdict(folder))
            except (OutputError, *DAMAGED):
                return Entry(name, "unreadable")
        parts = folder / UNFINISHED
        manifest = Manifest.read(parts) if self._inside(parts / MANIFEST) else None
        if manifest is None:
            return None
        plan, windows, finished = manifest.header["plan"], manifest.header["windows"], manifest.finished_windows
        names = manifest.header.get("names") or {}
        model, source = (str(names.get(each) or "") for each in ("model", "text"))
        kind: Literal["scan", "reproduction"] = "reproduction" if is_reproduction(plan) else "scan"
        state: Literal["running", "stopped"] = "running" if folders.is_being_written(folder) else "stopped"
        return Entry(name, state, model, source, "", "", finished, windows, kind=kind)

    def _verdict(self, folder: Path) -> str:
        verdict = (self._json(folder / "findings.json") or {}).get("verdict")
        return str(verdict.get("headline", "")) if isinstance(verdict, dict) else ""

    def _json(self, path: Path) -> dict[str, Any] | None:
        """The JSON object in a file inside the folder; None if it cannot be read."""
        return _optional(path) if self._inside(path) else None

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)

    def _check_inside(self, folder: Path, *files: str) -> None:
        for file in files:
            if not self._inside(folder / file):
                raise OutputError(
                    f"{file} of run {folder.name!r} is a link that leads out of the folder; it is not read"
                )


def _finished(name: str, record: dict[str, Any], verdict: str) -> Entry:
    settings = record["settings"]
    rows = "last rows" if settings.get("rows", "last") == "last" else f"{settings['rows']} rows"
    size = f"{settings['windows']} x {settings['length']:,} tokens, {rows}"
    model, source, finished = record["model"]["name"], record["text"]["source"], record["finished"]
    return Entry(name, "finished", _text(model), _text(source), size, _text(finished), verdict=verdict)


def _reproduced(name: str, record: dict[str, Any], claims: dict[str, Any] | None) -> Entry:
    settings, verdict = describe(record, claims)
    model, source, finished = record["model"]["name"], record["text"]["source"], record["finished"]
    names = _text(model), _text(source), settings, _text(finished)
    return Entry(name, "finished", *names, verdict=verdict, kind="reproduction")


def _trained(name: str, folder: Path, record: dict[str, Any]) -> Entry:
    status, settings, verdict, updated = training.describe(folder, record)
    model = _text(record["model"]["name"])
    return Entry(name, status, model, "", settings, updated, verdict=verdict, kind="training")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _optional(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if it cannot be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
