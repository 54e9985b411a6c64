"""The tables of a reproduction: measured window by window, written, and read back if they are those that are asked for.

`run.json` records what determines the numbers (model, text, settings, version) and a digest of each table. A later
run reuses the tables if all of these are equal and every table matches its digest; otherwise it measures again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from attnscope import __version__
from attnscope.capture.tokens import TokenizedText, tokenized, window_choice, window_tokens
from attnscope.engine.blocks import Blocks, Work
from attnscope.engine.run import WindowPlan, merge_notes, plan_windows, without_heads
from attnscope.engine.store import collect as collect_blocks
from attnscope.errors import OutputError
from attnscope.store.folders import as_file, write_all
from attnscope.studies.paper.measuring import ProtocolMeasurer
from attnscope.studies.paper.settings import TABLE_NAMES

if TYPE_CHECKING:
    from attnscope.capture.documents import Corpus
    from attnscope.capture.models import ModelFacts
    from attnscope.capture.text import Text
    from attnscope.engine.blocks import Engine
    from attnscope.engine.run import Head
    from attnscope.engine.store import PartStore
    from attnscope.progress import OnStep
    from attnscope.studies.paper.settings import Settings


SCHEMA = 4
TABLES = "tables"


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
    run = run | {"tables": {name: _digest(target / f"{name}.parquet") for name in tables}}
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
    for name, digest in run["tables"].items():
        path = folder / TABLES / f"{name}.parquet"
        if not path.is_file():
            raise DamagedTableError(f"{path.name} is missing")
        if _digest(path) != digest:
            raise DamagedTableError(f"{path.name} is damaged")
        tables[name] = pl.read_parquet(path)
    return tables, run


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
