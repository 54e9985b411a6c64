"""The tables of a run: their schemas, writing and reading.

Column names are public API. A run folder holds `rows.parquet`, `topn.parquet`, `run.json` and
`report.html`; `run.json` is written last, so a folder with one is complete. Every file is written beside
its place and moved there in one step: a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from attnscope.errors import OutputError

SCHEMA_VERSION = 1

KEYS = {"window": pl.Int32, "layer": pl.Int32, "head": pl.Int32, "position": pl.Int32, "length": pl.Int32}

ROWS = pl.Schema(
    KEYS
    | {
        "entropy": pl.Float64,
        "entropy_ratio": pl.Float64,
        "max_weight": pl.Float64,
        "sink_weight": pl.Float64,
        "participation": pl.Float64,
        "support": pl.Int32,
        "weight_sum": pl.Float64,
        "logit_range": pl.Float64,
        "jacobian_norm": pl.Float64,
        "jacobian_bound": pl.Float64,
    }
)

TOPN = pl.Schema(
    KEYS
    | {
        "n": pl.Int32,
        "top_mass": pl.Float64,
        "distance": pl.Float64,
        "distance_bound_printed": pl.Float64,
        "distance_lower": pl.Float64,
        "distance_upper": pl.Float64,
        "expected_printed": pl.Float64,
        "expected_lower": pl.Float64,
        "expected_upper": pl.Float64,
        "epsilon_printed": pl.Float64,
        "separability": pl.Float64,
        "radius": pl.Float64,
        "delta": pl.Float64,
        "separability_lower_printed": pl.Float64,
        "separability_upper_printed": pl.Float64,
        "separability_lower": pl.Float64,
        "separability_upper": pl.Float64,
    }
)


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """A folder that can be written, checked before any work; taken back if the work fails and it is new."""
    created = [p for p in (path, *path.parents) if not p.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".attnscope-"):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"cannot write to the output folder {str(path)!r}: {reason}; choose another --out") from None
    try:
        yield path
    except BaseException:
        for folder in created:
            try:
                folder.rmdir()
            except OSError:
                break
        raise


def write(path: Path, write_to: Callable[[Path], object]) -> None:
    """Write a file beside its place and move it there in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(handle)
    try:
        write_to(Path(name))
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"cannot write {str(path)!r}: {reason}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def save_run(folder: Path, rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any], report: str) -> None:
    """Write a finished run; an older one in the same folder is replaced."""
    (folder / "run.json").unlink(missing_ok=True)
    write(folder / "rows.parquet", rows.write_parquet)
    write(folder / "topn.parquet", topn.write_parquet)
    write(folder / "report.html", lambda path: path.write_text(report, encoding="utf-8"))
    text = json.dumps(run, indent=1, allow_nan=False) + "\n"
    write(folder / "run.json", lambda path: path.write_text(text, encoding="utf-8"))


def load_run(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """Read a finished run: rows, topn and what was run."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        version = run["schema"]
        if version > SCHEMA_VERSION:
            raise OutputError(
                f"{str(folder)!r} was written by a newer attnscope (schema {version}, this one reads "
                f"{SCHEMA_VERSION}); upgrade attnscope"
            )
        rows = pl.read_parquet(folder / "rows.parquet", schema=ROWS)
        topn = pl.read_parquet(folder / "topn.parquet", schema=TOPN)
    except FileNotFoundError as error:
        raise OutputError(
            f"{str(folder)!r} holds no finished run: {Path(error.filename or '').name} is missing"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        if isinstance(error, OutputError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OutputError(f"{str(folder)!r} is not a readable run: {reason}; scan again") from error
    return rows, topn, run
