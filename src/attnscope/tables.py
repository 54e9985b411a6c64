"""The tables of a run: their schemas, writing and reading.

Column names are public API. A run folder holds `rows.parquet`, `topn.parquet`, `run.json` and
`report.html`. All are written beside their places before the first is moved to its own, `run.json` last: a
reader never sees half a file, and a run that cannot be written leaves an older one as it was.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    created: list[Path] = []
    try:
        try:
            created += [p for p in (path, *path.parents) if not p.exists()]
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path, prefix=".attnscope-"):
                pass
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            shown = str(path) if len(str(path)) < 200 else f"{str(path)[:200]}..."
            raise OutputError(f"cannot write to the output folder {shown!r}: {reason}; choose another --out") from None
        yield path
    except BaseException:
        for folder in created:
            with suppress(OSError):  # not empty, or never made
                folder.rmdir()
        raise


def write_all(folder: Path, files: dict[str, Callable[[Path], object]]) -> None:
    """Write files beside their places, then move them there: all are written before the first is moved."""
    umask = os.umask(0)
    os.umask(umask)
    staged: dict[Path, Path] = {}
    try:
        for name, write_to in files.items():
            place = folder / name
            if place.is_dir():
                raise OutputError(f"cannot write {str(place)!r}: a folder is in the way")
            handle, beside = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
            os.close(handle)
            staged[place] = Path(beside)
            write_to(staged[place])
            staged[place].chmod(0o666 & ~umask)
        for place, beside_it in staged.items():
            beside_it.replace(place)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        reason = error.strerror or type(error).__name__
        raise OutputError(f"cannot write to {str(folder)!r}: {reason}") from error
    finally:
        for beside_it in staged.values():
            beside_it.unlink(missing_ok=True)


def save_run(folder: Path, rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any], report: str) -> None:
    """Write a finished run; an older one in the same folder is replaced."""
    record = json.dumps(run, indent=1, allow_nan=False) + "\n"
    write_all(
        folder,
        {
            "rows.parquet": rows.write_parquet,
            "topn.parquet": topn.write_parquet,
            "report.html": lambda path: path.write_text(report, encoding="utf-8"),
            "run.json": lambda path: path.write_text(record, encoding="utf-8"),
        },
    )


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
