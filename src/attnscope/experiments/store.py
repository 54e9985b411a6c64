"""A reproduction on disk: its tables, the record of its settings, and whether they can be used again.

`run.json` names what decides the numbers (model, text, settings, version) and a digest of each table. A second run
with the same answers draws from the tables; another model, text or setting, or a table that does not match its
digest, measures anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl

from attnscope import __version__
from attnscope.tables import write_all

SCHEMA = 2
TABLES = "tables"
NAMES = ("rows", "topn", "drawn", "tests", "subsets", "gradient", "sharpness", "coverage", "circle")


def identity(model: str | None, revision: str | None, text_digest: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Whatever decides the numbers, told without loading the model."""
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
    """Name, size and time of change of a local model's files."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def save_tables(folder: Path, tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> dict[str, Any]:
    """Write the tables, then the record that vouches for them."""
    place = folder / TABLES
    place.mkdir(exist_ok=True)
    write_all(place, {f"{name}.parquet": table.write_parquet for name, table in tables.items()})
    run = run | {"tables": {name: _digest(place / f"{name}.parquet") for name in tables}}
    text = json.dumps(run, indent=1, allow_nan=False) + "\n"
    write_all(folder, {"run.json": lambda path: path.write_text(text, encoding="utf-8")})
    return run


def load_tables(folder: Path, wanted: dict[str, Any]) -> tuple[dict[str, pl.DataFrame], dict[str, Any]] | str | None:
    """The tables and record of an earlier run, a reason why they cannot be used, or None if there is none."""
    record = folder / "run.json"
    if not record.is_file():
        return None
    try:
        run = json.loads(record.read_text("utf-8"))
        if run["identity"] != json.loads(json.dumps(wanted)):
            changed = [key for key in wanted if run["identity"].get(key) != json.loads(json.dumps(wanted[key]))]
            return f"another {' and '.join(changed) or 'run'}"
        tables = {}
        for name, digest in run["tables"].items():
            path = folder / TABLES / f"{name}.parquet"
            if _digest(path) != digest:
                return f"{path.name} is damaged"
            tables[name] = pl.read_parquet(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return tables, run


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
