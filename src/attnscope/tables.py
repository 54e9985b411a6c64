"""The tables of a run: their schemas, writing and reading.

Column names are public API. A run folder holds `rows.parquet`, `topn.parquet`, `weights.parquet`, `patterns.parquet`,
`tokens.json`, `run.json`, `findings.json` (if diagnosed), and `report.html`. All but the report are first written to
temporary files and then moved into place, `run.json` last: a reader never sees half a file, and a run that cannot be
written leaves an older one unchanged. The report is made from them afterwards: if it fails, nothing is lost. The folder
of a large run holds `rows` and `topn` in `parts`, a file for each block of windows (`manifest.py`).
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl

from attnscope import columns
from attnscope.errors import InputError, OutputError, shown
from attnscope.manifest import FINISHED, MANIFEST, UNFINISHED, Manifest
from attnscope.parameters import parameter

SCHEMA_VERSION = 2
FINDINGS_VERSION = 2

_HALF_WRITTEN = ".attnscope-"  # prefix of unfinished files

_LONGEST_NAME = 200  # bytes; file systems allow 255

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
COMPARED = 0.95  # means over a smaller share of the rows are not compared: they would be about different rows

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

# At most 64 rows of each head by at most 64 runs of keys (scanning/patterns.py). Cell i of `weights` is the total
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


def folder_name(model: str | None) -> str:
    """The name of a model as a valid folder name, short enough to append a date and time."""
    name = re.sub(r"[^\w.-]+", "-", Path(model).name if model else "sample").strip("-.") or "run"
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")


def given_folder(folder: str | Path) -> Path:
    """The path of a folder given as an argument; InputError for an empty string, which would be the working folder."""
    if isinstance(folder, os.PathLike) or (isinstance(folder, str) and folder):
        return Path(folder)
    raise InputError(f"a folder is given as a string or a path; received {shown(folder)}")


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Create a folder and check that it is writable before any work; a new folder is removed if the work fails."""
    created: list[Path] = []
    try:
        with ExitStack() as stack:
            try:
                str(path).encode()  # polars cannot write to other paths
                created += [p for p in (path, *path.parents) if not p.exists()]
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(sole_writer(path))
                _remove_half_written(path)
                with tempfile.NamedTemporaryFile(dir=path, prefix=_HALF_WRITTEN):
                    pass
            except OutputError:
                raise
            except (OSError, ValueError) as error:
                named = str(path) if len(str(path)) < 200 else f"{str(path)[:200]}..."
                raise OutputError(
                    f"cannot write to the output folder {named!r}: {_reason(error)}; choose another {parameter('out')}"
                ) from None
            yield path
    except BaseException:
        for folder in created:
            with suppress(OSError, ValueError):  # not empty, or never made
                folder.rmdir()
        raise


def _reason(error: Exception) -> str:
    """The system's reason for an error; polars embeds it in a longer message."""
    number = re.search(r"os error (\d+)", str(error))
    if number is not None:
        return os.strerror(int(number[1]))
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _remove_half_written(folder: Path) -> None:
    """Remove files left by a process that was killed while writing."""
    for file in folder.glob(f"{_HALF_WRITTEN}*"):
        with suppress(OSError):
            file.unlink()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes, if the system supports it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # perhaps by `is_being_written`, for a moment
            time.sleep(0.05)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OutputError(
            f"another attnscope process is writing to {str(folder)!r}; wait for it, or choose another folder"
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(handle)


def is_being_written(folder: Path) -> bool:
    """Whether some process has locked the folder."""
    try:
        with sole_writer(folder):
            return False
    except OutputError:
        return True


def write_all(folder: Path, files: dict[str, Callable[[Path], object]]) -> None:
    """Write files under temporary names, then move them into place: all are written before the first is moved.

    The folder is created if it is missing; it lies in a folder that `output_folder` has locked for this process.
    """
    umask = os.umask(0)
    os.umask(umask)
    staged: dict[Path, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_half_written(folder)
        for name, write_to in files.items():
            target = folder / name
            if target.is_dir():
                raise OutputError(f"cannot write {str(target)!r}: a folder is in the way")
            handle, unfinished = tempfile.mkstemp(dir=folder, prefix=f"{_HALF_WRITTEN}{name}-")
            os.close(handle)
            staged[target] = Path(unfinished)
            write_to(staged[target])
            staged[target].chmod(0o666 & ~umask)
        for target, staged_file in staged.items():
            staged_file.replace(target)
    except OutputError:
        raise
    except (OSError, pl.exceptions.PolarsError) as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {_reason(error)}") from error
    finally:
        for staged_file in staged.values():
            staged_file.unlink(missing_ok=True)


# What a prediction for longer inputs adds to a folder.
HORIZON_FILES = ("horizon.parquet", "heads.parquet", "horizon.json")

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
        raise OutputError(f"cannot write to {str(folder)!r}: {_reason(error)}") from error


def _remove_parts(folder: Path) -> None:
    if (folder / FINISHED / MANIFEST).is_file():
        shutil.rmtree(folder / FINISHED)


def copy_run(source: Path, target: Path) -> None:
    """Copy the files of a run, without what is unfinished, to another folder, which is locked already."""
    if source.resolve() == target.resolve():
        return
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot copy {str(source)!r} to {str(target)!r}: {error}") from error


def as_file(content: Any) -> Callable[[Path], object]:
    """What `write_all` needs to write JSON."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    return lambda path: path.write_text(text, encoding="utf-8")


def within_support(rows: pl.DataFrame, topn: pl.DataFrame) -> pl.DataFrame:
    """The table `topn` with separability removed where the top set is larger than the row's support.

    Only position decides which keys of weight zero complete such a set. In eq. (10) they coincide with all keys left
    out, so none of them is nearer: separability is at most support / N, however well the row separates its keys.
    """
    keys = list(KEYS)
    support = rows.select(*keys, "support").unique(keys)
    inside = pl.col("support") >= pl.col("n")
    joined = topn.join(support, on=keys, how="left", maintain_order="left")
    return joined.with_columns(pl.when(inside).then(pl.col(SEPARABILITY)).name.keep()).drop("support")


def comparable(table: pl.DataFrame) -> pl.DataFrame:
    """The lines of a comparison whose separability is defined in enough rows (the share `defined`) to be compared."""
    return table.filter(pl.col("defined") >= COMPARED)


def named(table: pl.DataFrame) -> pl.DataFrame:
    """A comparison with a column `name`: the normalizer with its calibrated setting, spelled as `-n` takes it."""
    columns = ("normalizer", "calibration", "parameter", "value")
    names = [_spelled(*line) for line in table.select(columns).iter_rows()]
    return table.with_columns(name=pl.Series(names, dtype=pl.String))


def _spelled(normalizer: str, calibration: str, parameter: str, value: float | None) -> str:
    if calibration == "none":
        return normalizer
    if value is None:
        return f"{normalizer}, {parameter} per head"
    name, *settings = normalizer.split(":")
    others = [setting for setting in settings if setting.partition("=")[0] != parameter]
    return ":".join([name, *others, f"{parameter}={value:.3g}"])


def save_report(folder: Path, report: str) -> None:
    """Write the report of a run."""
    write_all(folder, {"report.html": lambda path: path.write_text(report, encoding="utf-8")})


# Names in findings.json as older versions wrote them: of fields, of groups of heads, and of findings.
_OLDER_FIELDS = {
    "error_top_5_percent": "error_top_share",
    "tokens_in_use": "tokens_needed",
    "tokens_in_use_low": "tokens_needed_low",
    "tokens_in_use_high": "tokens_needed_high",
    "share_in_use": "share_needed",
    "first_weight": "sink_weight",
    "growth_low": "growth_exponent_low",
    "growth_high": "growth_exponent_high",
}
_OLDER_VALUES = {
    ("name", "worry"): "many-tokens",
    ("name", "spare"): "idle",
    ("name", "fine"): "few-tokens",
    ("id", "tokens-in-use"): "tokens-needed",
}


def _with_todays_names(stored: dict[str, Any]) -> dict[str, Any]:
    renamed = {_OLDER_FIELDS.get(name, name): value for name, value in stored.items()}
    for (name, old), new in _OLDER_VALUES.items():
        if renamed.get(name) == old:
            renamed[name] = new
    return renamed


def _with_missing_entries(found: dict[str, Any]) -> dict[str, Any]:
    """Findings of an older version with the entries that it did not have, empty."""
    verdict, heads = found.get("verdict"), found.get("heads")
    if isinstance(verdict, dict):
        empty: dict[str, Any] = {"withdrawn": [], "heads": [], "ranked_by": None, "warnings": [], "next": None}
        found["verdict"] = empty | verdict
    if isinstance(heads, list):
        missing = {"withdrawn": None, "explanation": None}
        found["heads"] = [missing | head if isinstance(head, dict) else head for head in heads]
    return found


def without_infinities(value: Any) -> Any:
    """The value with None in place of infinities and NaN, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def load_findings(folder: Path) -> dict[str, Any] | None:
    """The findings of a run; None if it was not diagnosed or they cannot be read."""
    try:
        loaded = json.loads((folder / "findings.json").read_text("utf-8"), object_hook=_with_todays_names)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(loaded, dict):
        return None
    return loaded if loaded.get("schema") == FINDINGS_VERSION else _with_missing_entries(loaded)


def _read(file: Path, schema: pl.Schema, version: int) -> pl.DataFrame:
    """A table in today's schema; the first one had no what-ifs."""
    if version >= 2:
        return pl.read_parquet(file, schema=schema)
    first = pl.Schema({name: kind for name, kind in schema.items() if name != "normalizer"})
    return pl.read_parquet(file, schema=first).with_columns(normalizer=pl.lit(OWN)).select(schema.names())


def part_frames(parts: Manifest) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables rows and topn of a large run: lazy frames, typed as what every other run has."""
    rows, topn = (parts.frame(name, SCANNED[name]) for name in ("rows", "topn"))
    return cast(pl.DataFrame, rows), cast(pl.DataFrame, topn)


def load_run(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """Read a finished run: the tables rows and topn, lazy frames if they are in parts, and its record."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        version = run["schema"]
        if version > SCHEMA_VERSION:
            raise OutputError(
                f"{str(folder)!r} was written by a newer attnscope (schema {version}, this one reads "
                f"{SCHEMA_VERSION}); upgrade attnscope"
            )
        parts = Manifest.read(folder / FINISHED)
        if parts is not None:
            return *part_frames(parts), run
        rows = _read(folder / "rows.parquet", ROWS, version)
        topn = _read(folder / "topn.parquet", TOPN, version)
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
