"""`attnscope reproduce`: the paper's experiments on any model and text, from the model to tables, figures and claims.

`run.json` records what determines the numbers (model, text, settings, version) and a digest of each table. A later
run reuses the tables if all of these are equal and every table matches its digest; otherwise it measures again.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from attnscope import __version__
from attnscope._process import refuses_after_fork
from attnscope.capture.documents import Corpus, given_source
from attnscope.capture.text import Text
from attnscope.capture.tokens import TokenizedText, tokenized, window_choice, window_tokens
from attnscope.engine.blocks import Blocks, Work
from attnscope.engine.run import WindowPlan, merge_notes, plan_windows, without_heads
from attnscope.engine.store import collect as collect_blocks
from attnscope.errors import OutputError, listed_names, plain
from attnscope.progress import Progress, Step, reporting
from attnscope.show.result import Result, brief_lines
from attnscope.store import folders
from attnscope.store.folders import as_file, write_all
from attnscope.store.manifest import digest
from attnscope.studies.paper import view
from attnscope.studies.paper.claims import answer
from attnscope.studies.paper.measuring import ProtocolMeasurer
from attnscope.studies.paper.settings import TABLE_NAMES, FirstKey, plan

if TYPE_CHECKING:
    from attnscope.capture.models import ModelFacts
    from attnscope.engine.blocks import Engine
    from attnscope.engine.run import Head
    from attnscope.engine.store import BlocksOnDisk, PartStore
    from attnscope.progress import OnStep
    from attnscope.show.blocks import Block
    from attnscope.show.figure_files import FigureStyle
    from attnscope.show.figures import FigureWidth
    from attnscope.studies.paper.settings import Settings

SCHEMA = 4
TABLES, FIGURES, PAGE = "tables", "figures/protocol", "report.html"


class Collected(NamedTuple):
    """The tables of a reproduction by name, and the facts that its record states about the run."""

    tables: dict[str, pl.DataFrame]
    heads: dict[int, int]  # by layer
    skipped: dict[Head, str]
    failed: list[dict[str, Any]]  # blocks
    tokens: int  # of the text
    resumed: int  # windows read back from an earlier run


@dataclass(frozen=True)
class ReproductionWork:
    """A reproduction that is planned: its windows, one in each block."""

    settings: Settings
    text: TokenizedText
    plan: WindowPlan
    blocks: Blocks

    @classmethod
    def planned(
        cls, model: ModelFacts, text: Text | Corpus, settings: Settings, folder: Path | None = None
    ) -> ReproductionWork:
        """Choose the windows: the first ones of a text, spread evenly over a corpus."""
        choice = window_choice(text, None, 0, False)
        tokens = tokenized(model, text, choice, folder)
        windows = window_tokens(model, tokens, settings.longest, settings.windows, settings.bos, choice)
        plan = plan_windows(model, settings.lengths, settings.positions)
        return cls(settings, tokens, plan, Blocks(windows))


def collect(engine: Engine, work: ReproductionWork, store: PartStore, progress: OnStep | None = None) -> Collected:
    """Measure every window that the store does not have yet; a head that is left out of one is left out of all."""
    collect_blocks(engine, Work(work.plan, ProtocolMeasurer(work.settings), store.finish), work.blocks, store, progress)
    notes = merge_notes(store.notes())
    skipped = {(record["layer"], record["head"]): record["reason"] for record in notes["skipped"]}
    return Collected(
        {name: without_heads(store.table(name), skipped) for name in TABLE_NAMES},
        {entry["layer"]: entry["heads"] for entry in notes["heads"]},
        skipped,
        store.failed,
        len(work.text),
        store.resumed,
    )


class DamagedTableError(OutputError):
    """A table that is not the one that was written."""


def identity(model: str | None, revision: str | None, text_digest: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that determines the numbers, as far as it is known without loading the model."""
    return {
        "schema": SCHEMA,
        "attnscope": __version__,
        "model": model or "sample",
        "revision": revision,
        "files": _files(Path(model)) if model and Path(model).exists() else [],
        "text": text_digest,
        "settings": settings,
    }


def _files(path: Path) -> list[list[Any]]:
    """Name, size and modification time of a local model's files."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def save_tables(folder: Path, tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> dict[str, Any]:
    """Write the tables, then `run.json` with their digests; returns the record as written."""
    target = folder / TABLES
    write_all(target, {f"{name}.parquet": table.write_parquet for name, table in tables.items()})
    run = run | {"tables": {name: digest(target / f"{name}.parquet") for name in tables}}
    write_all(folder, {"run.json": as_file(run)})
    return run


def load_tables(folder: Path, expected: dict[str, Any]) -> tuple[dict[str, pl.DataFrame], dict[str, Any]] | str | None:
    """The tables and record of an earlier run, the reason why they cannot be used, or None if there are none.

    `expected` is the `identity` of this run.
    """
    record = folder / "run.json"
    if not record.is_file():
        return None
    try:
        run = json.loads(record.read_text("utf-8"))
        expected = json.loads(json.dumps(expected))  # tuples become lists, as in the file
        if run["identity"] != expected:
            changed = [key for key in expected if run["identity"].get(key) != expected[key]]
            return f"different {' and '.join(changed) or 'identity'}"
        return read_tables(folder)
    except DamagedTableError as error:
        return str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
        return f"it cannot be read ({type(error).__name__})"


def read_tables(folder: Path) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    """The tables and the record in a folder, whatever they were measured with."""
    run = json.loads((folder / "run.json").read_text("utf-8"))
    if run["identity"]["schema"] != SCHEMA:
        raise DamagedTableError("an older version of attnscope wrote it, whose tables are others")
    tables = {}
    for name, written in run["tables"].items():
        path = folder / TABLES / f"{name}.parquet"
        if not path.is_file():
            raise DamagedTableError(f"{path.name} is missing")
        if digest(path) != written:
            raise DamagedTableError(f"{path.name} is damaged")
        tables[name] = pl.read_parquet(path)
    return tables, run


@dataclass(frozen=True, repr=False, eq=False)
class Reproduction(Result):
    """The paper's experiments on a model: tables, evaluated claims, figures.

    >>> result = attnscope.load_run("runs/reproduce-gpt2")  # doctest: +SKIP
    >>> {claim["id"]: claim["verdict"] for claim in result.claims}  # doctest: +SKIP

    Attributes
    ----------
    tables
        The measured tables by name (docs/reproduce.md).
    claims
        The paper's empirical claims with measurements and verdicts, as in `claims.json`.
    run
        Model, text, settings, versions, timings.
    folder
        Where everything was written.
    figures
        Paths of the figures' files by name.
    reused
        Whether the tables are those of an earlier run.
    """

    tables: dict[str, pl.DataFrame]
    claims: list[dict[str, Any]]
    run: dict[str, Any]
    folder: Path
    figures: dict[str, str]
    reused: bool

    @property
    def skipped_heads(self) -> list[dict[str, Any]]:
        """Heads left out, with the reason."""
        return list(self.run["skipped_heads"])

    @property
    def plot(self) -> view.ReproductionPlots:
        """Altair charts: `plot.names`, `plot.figure("figure-2a")`."""
        return view.ReproductionPlots(self.tables, self.run["settings"]["vectors"])

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The claims with their verdicts, the readings behind them, and the figures."""
        return view.blocks(self.claims, self.run, _pictures(self.folder))

    def page_title(self) -> str:
        """What a browser calls the page."""
        return view.title(self.run)

    def brief(self) -> list[str]:
        """What was run, how the claims came out, and which do not simply agree."""
        return [*brief_lines("Reproduction", self.blocks()), *view.named(self.claims), f"Files: {self.folder}"]

    def calls(self) -> Sequence[str]:
        return (".summary()", ".claims", ".tables", ".plot.names", ".plot.figure(name)", ".show()")

    def write(self, folder: Path) -> None:
        """Copy everything to a folder that is locked already."""
        folders.copy_run(self.folder, folder)

    @classmethod
    @refuses_after_fork
    def load(cls, folder: str | Path) -> Reproduction:
        """Read a reproduction that was written before."""
        path = Path(folder)
        try:
            measured, run = read_tables(path)
            claims = json.loads((path / "claims.json").read_text("utf-8"))["claims"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"
            raise OutputError(
                f"{str(path)!r} is not a readable reproduction ({reason}); reproduce with the same settings and "
                f"out={str(path)!r} measures again"
            ) from error
        drawn = sorted(file for file in (path / FIGURES).glob("*.*") if file.suffix != ".json")
        figures = {file.name: str(file) for file in drawn}
        return cls(measured, claims, run, path, figures, reused=True)

    def page(self) -> str:
        """The page of the claims, their readings and the figures, as it was saved."""
        saved = self.folder / PAGE
        return saved.read_text("utf-8") if saved.is_file() else super().page()

    def _page_file(self) -> Path:
        saved = self.folder / PAGE
        return saved.resolve() if saved.is_file() else super()._page_file()


def _pictures(folder: Path) -> list[tuple[str, Path]]:
    """Caption and SVG of every figure that was drawn."""
    try:
        captions = json.loads((folder / FIGURES / "captions.json").read_text("utf-8"))
        pictures = [(str(caption), folder / FIGURES / f"{name}.svg") for name, caption in captions.items()]
    except (OSError, ValueError, AttributeError):
        return []
    return [(caption, file) for caption, file in pictures if file.is_file()]


@refuses_after_fork
def reproduce(
    model: str | Path | None = None,
    text: str | Path | Text | Corpus | None = None,
    *,
    out: str | Path,
    length: int | None = None,
    windows: int = 8,
    vectors: str | Sequence[str] = ("value",),
    first_key: FirstKey = "kept",
    seed: int = 0,
    bos: bool = False,
    figure_width: FigureWidth = "two-column",
    figure_titles: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    trust_remote_code: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
    progress: Progress = None,
    notice: Callable[[str], None] | None = None,
) -> Reproduction:
    """Run the paper's experiments on a model, draw its figures, and evaluate its claims.

    >>> result = attnscope.reproduce("openai-community/gpt2", out="runs/gpt2")  # doctest: +SKIP
    >>> [claim["id"] for claim in result.claims if claim["verdict"] == "disagrees"]  # doctest: +SKIP

    Everything is written to `out`; a later call with the same settings draws from the tables there, and continues an
    interrupted run.

    Parameters
    ----------
    model
        A hub id, a folder, a `.gguf` file, or nothing for the embedded sample.
    text
        The text itself (`str`), a file (`pathlib.Path`), a `Text` (`attnscope.capture.corpus("war-and-peace")`), a
        `Corpus`, or nothing for the sample text.
    out
        Folder for tables, figures and claims.
    length, windows, vectors, first_key, seed, bos, figure_width, figure_titles
        What is measured and drawn, as in `attnscope reproduce --help`: see
        `attnscope.studies.paper.verb.ReproductionOptions`.
    device, dtype, revision, device_map, trust_remote_code, workers, ray, worker_cpus, worker_gpus, progress
        As in `attnscope.scan`. On Ray the model is given by its name.
    notice
        Called with messages. Default: they are printed to standard error.

    Returns
    -------
    Reproduction
        Tables, evaluated claims, figures.
    """
    from attnscope.engine import chosen_workers, opened
    from attnscope.engine.store import BlocksOnDisk
    from attnscope.show.figure_files import FigureStyle

    say = notice or (lambda message: print(f"attnscope: {message}", file=sys.stderr))
    style = FigureStyle(figure_width, figure_titles)
    name, book = None if model is None else str(model), given_source(text)
    asked: dict[str, Any] = {
        "length": plain(length), "windows": plain(windows), "vectors": tuple(listed_names("vectors", vectors)),
        "first_key": first_key, "seed": plain(seed), "bos": bos, "dtype": dtype,
    }  # fmt: skip
    on = chosen_workers(workers, ray, worker_cpus, worker_gpus)
    plan(None, **asked)  # refuse invalid settings before the model is loaded
    wanted = identity(name, revision, book.digest, asked)
    with folders.output_folder(folders.given_folder(out)) as folder, reporting(progress) as report:
        stored = load_tables(folder, wanted)
        if isinstance(stored, tuple):
            measured, run = stored
        else:
            if stored is not None:
                say(f"the tables in {folder} are not used: {stored}; measuring again")
            loading: dict[str, Any] = {
                "device": device, "dtype": dtype, "revision": revision, "device_map": device_map,
                "trust_remote_code": trust_remote_code,
            }  # fmt: skip
            started = time.perf_counter()
            with opened(name, on, **loading) as engine:
                work = ReproductionWork.planned(engine.facts, book, plan(engine.facts.positions, **asked), folder)
                loaded = time.perf_counter() - started
                names = {"kind": "reproduction", "model": engine.facts.name, "text": work.text.source}
                with BlocksOnDisk(folder, wanted, work.blocks, names) as parts:
                    measured, run = _measure(engine, work, parts, report)
                    run = {"identity": wanted, **run, "timings": {"load_seconds": round(loaded, 3), **run["timings"]}}
                    run = save_tables(folder, measured, run)
                    parts.done()
            if run["resumed_windows"]:
                say(f"{run['resumed_windows']} windows were finished by an earlier run that was interrupted")
        report(Step(0, None, "evaluating the claims"))
        claims, figures = _draw(folder, measured, run, style, report)
        if isinstance(stored, tuple):
            say(f"drawn from the tables of an earlier run in {folder}")
    return Reproduction(measured, claims, run, folder, figures, isinstance(stored, tuple))


def _measure(
    engine: Engine, work: ReproductionWork, parts: BlocksOnDisk, report: OnStep
) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    from attnscope.engine.record import model_record

    started = time.perf_counter()
    collected = collect(engine, work, parts, report)
    model = engine.call(model_record)
    run = {
        "kind": "reproduction",
        "attnscope": __version__,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            **{name: model[name] for name in ("name", "revision", "family", "parameters")},
            "layers": len(collected.heads),
            "heads": sum(collected.heads.values()),
        },
        "text": {"source": work.text.source, "sha256": work.text.digest, "tokens": collected.tokens},
        "settings": asdict(work.settings),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "transformers", "polars", "numpy", "altair")},
        },
        "timings": {"measure_seconds": round(time.perf_counter() - started, 3)},
        "resumed_windows": collected.resumed,
        "skipped_heads": [
            {"layer": layer, "head": head, "reason": reason} for (layer, head), reason in collected.skipped.items()
        ],
        **engine.described,
        "blocks": {"count": len(work.blocks), "windows": 1, "failed": collected.failed},
    }
    return collected.tables, run


def _draw(
    folder: Path, measured: dict[str, pl.DataFrame], run: dict[str, Any], style: FigureStyle, report: OnStep
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Evaluate the claims on the tables, and write them and the figures."""
    from attnscope.show import html
    from attnscope.show.figure_files import draw_into
    from attnscope.studies.paper.figures import draw

    claims = answer(measured, run["settings"]["first_key"])
    answers = {"model": run["model"], "text": run["text"], "claims": claims}
    report(Step(0, 1, "drawing"))
    target = folder / FIGURES
    target.mkdir(parents=True, exist_ok=True)
    files = {name: str(target / name) for name in draw_into(target, draw(measured), style)}
    table, page = view.claims_markdown(claims), html.page(view.title(run), view.blocks(claims, run, _pictures(folder)))
    write_all(
        folder,
        {
            "claims.json": as_file(answers),
            "claims.md": lambda path: path.write_text(table, encoding="utf-8"),
            PAGE: lambda path: path.write_text(page, encoding="utf-8"),
        },
    )
    return claims, files
