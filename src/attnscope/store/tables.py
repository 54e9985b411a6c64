"""The tables of a run: their schemas, writing and reading.

Column names are public API. A run folder holds `rows.parquet`, `topn.parquet`, `weights.parquet`, `patterns.parquet`,
`tokens.json`, `run.json`, `findings.json` (if diagnosed), and `report.html`. All but the report are written together
(`folders.py`), `run.json` last. The report is made from them afterwards: if it fails, nothing is lost. The folder of a
large run holds `rows` and `topn` in `parts`, a file for each block of windows (`manifest.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl

from attnscope import columns
from attnscope.errors import OutputError
from attnscope.store.folders import as_file, reason_of, write_all
from attnscope.store.manifest import FINISHED, MANIFEST, UNFINISHED, Manifest

SCHEMA_VERSION = 2
FINDINGS_VERSION = 2

# The normalizer of a row as the model runs it; any other label is a what-if on the same logits.
OWN = "own"

KEYS = {
    "window": pl.Int32,
    "layer": pl.Int32,
    "head": pl.Int32,
    "position": pl.Int32,
    "length": pl.Int32,
    "normalizer": pl.String,
}


def _schema(declared: Iterable[columns.Column]) -> dict[str, type[pl.DataType]]:
    return {column.name: pl.Int32 if column.integer else pl.Float64 for column in declared}


ROWS = pl.Schema(KEYS | _schema(columns.ROWS))
TOPN = pl.Schema(KEYS | {"n": pl.Int32} | _schema(columns.TOPN))
SEPARABILITY = tuple(name for name in columns.SET_NAMES if name.startswith("separability"))

# The largest weights of one row of each head, to be shown over the text.
WEIGHTS = pl.Schema(
    {
        "window": pl.Int32,
        "layer": pl.Int32,
        "head": pl.Int32,
        "position": pl.Int32,
        "key": pl.Int32,
        "weight": pl.Float64,
    }
)

# At most 64 rows of each head by at most 64 runs of keys (scanning/measuring.py). Cell i of `weights` is the total
# weight of the row on `keys_per_cell` keys from key first_key + i keys_per_cell on; null where the row sees none.
PATTERNS = pl.Schema(
    {
        "window": pl.Int32(),
        "layer": pl.Int32(),
        "head": pl.Int32(),
        "position": pl.Int32(),
        "first_key": pl.Int32(),  # the first key that any of the layer's rows sees
        "keys_per_cell": pl.Int32(),
        "first_key_weight": pl.Float32(),  # included in the first cell
        "weights": pl.List(pl.Float32),
    }
)


@dataclass(frozen=True)
class TokenWeights:
    """What the report shows over the text: the largest weights of one row of each head, and the tokens of that row.

    `tokens` are the tokenizer's names of the tokens, `texts` the text that each stands for. `patterns` are the weights
    of more rows, summed over runs of keys; runs of older versions have none.
    """

    weights: pl.DataFrame
    tokens: list[str]
    texts: list[str]
    patterns: pl.DataFrame | None = None


# The tables that a scan keeps of a finished window.
SCANNED = {"rows": ROWS, "topn": TOPN, "weights": WEIGHTS, "patterns": PATTERNS}

# Lines up to which `topn` is one table in one file; larger ones stay in parts, and are read as lazy frames.
MOST_LINES = 1_000_000


def save_run(
    folder: Path,
    tables: Mapping[str, pl.DataFrame] | Manifest,
    run: dict[str, Any],
    token_weights: TokenWeights | None = None,
    findings: dict[str, Any] | None = None,
) -> None:
    """Write a finished run without its report, replacing an older run in the same folder.

    `tables` are rows and topn, or the manifest of their parts: those in the run's own folder are moved, others copied.
    """
    files: dict[str, Callable[[Path], object]] = {}
    if not isinstance(tables, Manifest):
        files = {f"{name}.parquet": table.write_parquet for name, table in tables.items()}
    if token_weights is not None:
        tokens = json.dumps({"tokens": token_weights.tokens, "texts": token_weights.texts}) + "\n"
        files["weights.parquet"] = token_weights.weights.write_parquet
        files["tokens.json"] = lambda path: path.write_text(tokens, encoding="utf-8")
        if token_weights.patterns is not None:
            files["patterns.parquet"] = token_weights.patterns.write_parquet
    if findings is not None:
        files["findings.json"] = as_file(findings)
    files["run.json"] = as_file(run)
    if isinstance(tables, Manifest):
        _move_parts(folder, tables)
    write_all(folder, files)
    if not isinstance(tables, Manifest):
        _remove_parts(folder)
    for name in _OPTIONAL:  # those of an older run do not belong to these tables
        if name not in files:
            (folder / name).unlink(missing_ok=True)


# Files that not every run has.
_OPTIONAL = ("findings.json", "rows.parquet", "topn.parquet", "weights.parquet", "tokens.json", "patterns.parquet")


def _move_parts(folder: Path, parts: Manifest) -> None:
    """Put the parts of the tables in place of those of an older run, whose record goes first: it has no tables then."""
    target = folder / FINISHED
    if parts.folder == target:
        return
    try:
        (folder / "run.json").unlink(missing_ok=True)
        _remove_parts(folder)
        if parts.folder == folder / UNFINISHED:
            parts.folder.rename(target)
        else:
            shutil.copytree(parts.folder, target)
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {reason_of(error)}") from error


def _remove_parts(folder: Path) -> None:
    if (folder / FINISHED / MANIFEST).is_file():
        shutil.rmtree(folder / FINISHED)


def within_support(rows: pl.DataFrame, topn: pl.DataFrame) -> pl.DataFrame:
    """The table `topn` with separability removed where the top set is larger than the row's support.

    >>> result = attnscope.scan(length=64, top_n=[20], normalizers=["sparsemax"], progress=False)
    >>> topn = attnscope.store.tables.within_support(result.rows, result.topn)
    >>> topn["separability"].null_count() > result.topn["separability"].null_count()
    True

    Only position decides which keys of weight zero complete such a set. In eq. (10) they coincide with all keys left
    out, so none of them is nearer: separability is at most support / N, however well the row separates its keys.

    Parameters
    ----------
    rows, topn
        The tables of a scan, `result.rows` and `result.topn`.

    Returns
    -------
    DataFrame
        All lines of `topn`.
    """
    keys = list(KEYS)
    support = rows.select(*keys, "support").unique(keys)
    inside = pl.col("support") >= pl.col("n")
    joined = topn.join(support, on=keys, how="left", maintain_order="left")
    return joined.with_columns(pl.when(inside).then(pl.col(SEPARABILITY)).name.keep()).drop("support")


def save_report(folder: Path, report: str) -> None:
    """Write the report of a run."""
    write_all(folder, {"report.html": lambda path: path.write_text(report, encoding="utf-8")})


def load_findings(folder: Path) -> dict[str, Any] | None:
    """The findings of a run; None if it was not diagnosed."""
    try:
        loaded = json.loads((folder / "findings.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        loaded = None
    if not (isinstance(loaded, dict) and loaded.get("schema") == FINDINGS_VERSION and "verdict" in loaded):
        raise OutputError(f"findings.json in {str(folder)!r} is damaged, or of another version; diagnose again")
    return loaded


def part_frames(parts: Manifest) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables rows and topn of a large run: lazy frames, typed as what every other run has."""
    rows, topn = (parts.frame(name, SCANNED[name]) for name in ("rows", "topn"))
    return cast(pl.DataFrame, rows), cast(pl.DataFrame, topn)


def load_run(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """Read a finished run: the tables rows and topn, lazy frames if they are in parts, and its record."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        version = run["schema"]
        if version != SCHEMA_VERSION:
            which, advice = ("a newer", "upgrade attnscope") if version > SCHEMA_VERSION else ("an older", "scan again")
            raise OutputError(
                f"{str(folder)!r} was written by {which} attnscope (schema {version}, this one reads "
                f"{SCHEMA_VERSION}); {advice}"
            )
        parts = Manifest.read(folder / FINISHED)
        if parts is not None:
            return *part_frames(parts), run
        rows, topn = (pl.read_parquet(folder / f"{name}.parquet", schema=SCANNED[name]) for name in ("rows", "topn"))
    except FileNotFoundError:
        names = ("run.json", "rows.parquet", "topn.parquet")
        missing = " and ".join(name for name in names if not (folder / name).is_file())
        raise OutputError(f"{str(folder)!r} holds no finished run: {missing or 'a file'} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pl.exceptions.PolarsError) as error:
        if isinstance(error, OutputError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OutputError(f"{str(folder)!r} is not a readable run: {reason}; scan again") from error
    return rows, topn, run


def load_token_weights(folder: Path) -> TokenWeights | None:
    """The token weights of a run; None if they are missing, as in older runs, or cannot be read."""
    try:
        tokens = json.loads((folder / "tokens.json").read_text("utf-8"))
        weights = pl.read_parquet(folder / "weights.parquet", schema=WEIGHTS)
        names, texts = ([str(each) for each in tokens[kind]] for kind in ("tokens", "texts"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pl.exceptions.PolarsError):
        return None
    return TokenWeights(weights, names, texts, _load_patterns(folder))


def _load_patterns(folder: Path) -> pl.DataFrame | None:
    """The attention patterns of a run; None if they are missing or cannot be read."""
    try:
        return pl.read_parquet(folder / "patterns.parquet", schema=PATTERNS)
    except (OSError, pl.exceptions.PolarsError):
        return None
