"""Tables of a reproduction on disk, and the check whether a later run can reuse them.

`run.json` records what determines the numbers (model, text, settings, version) and a digest of each table. A later
run reuses the tables if all of these are equal and every table matches its digest; otherwise it measures again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl

from attnscope import __version__
from attnscope.errors import OutputError
from attnscope.store.folders import as_file, write_all

SCHEMA = 4
TABLES = "tables"
TABLE_NAMES = (
    *(f"protocol_{name}" for name in ("distance", "separability", "rows", "gradient", "critical", "tests", "subsets")),
    *("sharpness", "coverage", "circle"),
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
