"""The tables of every command on the embedded model, and digests of them that agree on every machine.

A digest has one line for each column: its type, its size, how many values are missing, and its numbers. Text and whole
numbers are hashed. Of other numbers it keeps the sum of the sizes and three weighted sums, which see the order of the
lines; two digests agree if these do within `TOLERANCE` of the sum of the sizes. The models run in float64, so that
machines with other instructions differ by much less. Files in JSON become columns, one for each path: items of a list
are the lines of a column. What depends on time, paths or versions is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import attnscope
from attnscope.cli import run

TOLERANCE = 1e-6
LEFT_OUT = re.compile(
    r"seconds|_time|time_|speed|memory|version|path|folder|file|created|started|finished|\bdate|\bout\b|peak"
)

Columns = dict[str, str]
Tables = dict[str, Columns]


@dataclass(frozen=True)
class Case:
    """A command, and the files of its folder that are digested; `PRINTED` is what it prints with `--json`."""

    arguments: str
    files: tuple[str, ...]
    quick: bool = False  # in `make test`; the others only with --all
    folder: bool = True  # whether the command writes one
    tolerance: float = TOLERANCE
    without: str = "^$"  # pattern of columns that depend on rounding


PRINTED = "printed"
SCAN = ("rows.parquet", "topn.parquet", "weights.parquet", "patterns.parquet")
PROTOCOL = tuple(
    f"tables/protocol_{name}.parquet" for name in ("critical", "distance", "gradient", "separability", "subsets")
)
EXACT = "--dtype float64"
ROUNDED = 1e-3  # of models in float32, where float64 would have many loops compiled
SEARCHED = "attacked|slack|tried|violations|rate|counterexample"  # where the steps of a search decide

CASES = {
    "scan": Case(f"scan --length 64 --windows 2 --top-n 1,5 {EXACT}", SCAN, quick=True),
    "scan-all-rows": Case(f"scan --length 48 --rows all --vectors output --top-n 1,5 {EXACT}", SCAN, quick=True),
    "scan-paper-bounds": Case(f"scan --length 48 --rows 6 --vectors hidden --bounds paper {EXACT}", SCAN),
    "scan-what-if": Case(
        f"scan --length 48 --lengths 16,48 --normalizer sparsemax,entmax:alpha=1.3 --temperature 0.5 {EXACT}",
        (*SCAN[:2], PRINTED),
        quick=True,
    ),
    "diagnose": Case(f"scan --length 64 --diagnose --windows 2 {EXACT}", (*SCAN, "findings.json", PRINTED), quick=True),
    "verify": Case(f"scan --length 32 --verify --windows 2 {EXACT}", ("findings.json",)),
    "horizon": Case(
        "horizon --length 64 --to 128 --windows 2 --rows 8 --check --check-windows 2 --normalizer ssmax,entmax15 "
        + EXACT,
        ("heads.parquet", "horizon.parquet", "horizon.json", PRINTED),
    ),
    "budget": Case(
        "budget --length 64 --windows 3 --calibration-windows 2",
        ("comparison.parquet", "budget.json", "config.json", "layers.json", PRINTED),
        tolerance=ROUNDED,
    ),
    "compare": Case(
        "compare --lengths 32,64 --normalizers softmax,ssmax,sparsemax --top-n 5 --calibrate global "
        "--calibration-windows 1",
        ("compare.parquet", "compare.json"),
        tolerance=ROUNDED,
    ),
    "guidelines": Case(
        "guidelines --lengths 32,64 --top-n 5", ("guidelines.json", PRINTED), quick=True, tolerance=ROUNDED
    ),
    "reproduce": Case(f"reproduce --length 64 --windows 2 {EXACT}", PROTOCOL),
    "recall": Case(
        "recall --normalizers softmax,ssmax --tasks max,mqar --budgets none,1.5 --seeds 2 --length-ratios 1,4 "
        "--examples 16 --effort 0.005 --learning-rates 0.01 --workers 1",
        ("recall.parquet", "summary.parquet"),
        tolerance=0.05,  # trained in float32
    ),
    "scorecard": Case("scorecard ssmax entmax15 --no-recall", ("scorecard.json",), tolerance=ROUNDED),
    "audit-lemma-1": Case("audit --claim lemma-1", (PRINTED,), quick=True, folder=False, without=SEARCHED),
    "audit-theorem-2-upper": Case("audit --claim theorem-2-upper", (PRINTED,), folder=False, without=SEARCHED),
    "doctor": Case("doctor --length 64", (PRINTED,), quick=True, folder=False, without="text"),
}


def digests(name: str, folder: Path) -> Tables:
    """What `name`, a case or the monitor, gives in a new folder: a digest of every column of every table."""
    if name == "monitor":
        return _monitored(folder)
    case = CASES[name]
    out = folder / name
    printed = io.StringIO()
    options = ["--out", str(out)] if case.folder else []
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run([*case.arguments.split(), *options, "--json"])
    if code:
        raise AssertionError(f"attnscope {case.arguments} ended with {code}: {errors.getvalue()}")
    found = {}
    for file in case.files:
        text = printed.getvalue() if file == PRINTED else ""
        columns = (
            _table(out / file) if file.endswith("parquet") else _json(text or (out / file).read_text("utf-8"), out)
        )
        found[file] = {column: digest for column, digest in columns.items() if not re.search(case.without, column)}
    return found


def _monitored(folder: Path) -> Tables:
    """Four steps of training of the embedded model, measured in every second one."""
    loaded = attnscope.load_model(dtype="float64")
    model = loaded.module.train()
    tokens = torch.arange(2 * 32).reshape(2, 32) * 7 % 200
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with attnscope.Monitor(model, every=2, out=folder / "monitor") as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss)
    result = attnscope.load_run(folder / "monitor")
    return {"heads": _columns(result.heads), "scalars": _columns(result.scalars), "alarms": _columns(result.alarms)}


def _table(path: Path) -> Columns:
    return _columns(pl.read_parquet(path))


def _columns(table: pl.DataFrame) -> Columns:
    return {name: digest(table[name].to_list(), str(table[name].dtype)) for name in table.columns if kept(name)}


def _json(text: str, out: Path) -> Columns:
    """One column for each path of a JSON file."""
    found: dict[str, list[Any]] = {}
    for path, value in _leaves(json.loads(text), ""):
        found.setdefault(path, []).append(value.replace(str(out), "OUT") if isinstance(value, str) else value)
    return {path: digest(values) for path, values in found.items()}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if kept(key):
                yield from _leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path, value


def kept(name: str) -> bool:
    """Whether what has this name depends on the model and the text alone."""
    return not LEFT_OUT.search(name)


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield len(value)
            yield from _flat(value)
        else:
            yield value


def digest(values: list[Any], kind: str = "") -> str:
    """A column as one short line of text."""
    items = list(_flat(values))
    numbers = [each for each in items if isinstance(each, int | float) and not isinstance(each, bool)]
    real = any(isinstance(each, float) for each in numbers) and all(
        each is None or (isinstance(each, int | float) and not isinstance(each, bool)) for each in items
    )
    size = f"{kind} {len(items)} values, {items.count(None)} missing".strip()
    if not real:
        return f"{size}, {hashlib.sha256(json.dumps(items, default=str).encode()).hexdigest()[:12]}"
    column = np.array(numbers, dtype=float)
    finite = np.where(np.isfinite(column), column, 0.0)
    places = np.arange(1, len(column) + 1)
    sums = [
        np.abs(finite).sum(),
        *(finite @ np.cos(rate * places) for rate in (0.7548776662, 0.5698402910, 2.2360679775)),
    ]
    undefined = f"{np.isnan(column).sum()} NaN, {np.isinf(column).sum()} infinite"
    return f"{size}, {undefined}: " + " ".join(f"{each:.9e}" for each in sums)


def agree(one: str, other: str, tolerance: float = TOLERANCE) -> bool:
    """Whether two digests are of the same column, up to rounding."""
    (size, _, sums), (other_size, _, other_sums) = one.partition(": "), other.partition(": ")
    if size != other_size or bool(sums) != bool(other_sums):
        return False
    if not sums:
        return True
    first, second = np.array(sums.split(), dtype=float), np.array(other_sums.split(), dtype=float)
    return bool((np.abs(first - second) <= tolerance * max(first[0], 1e-12)).all())


def differences(expected: Tables, found: Tables, tolerance: float = TOLERANCE) -> list[str]:
    """One line for each table or column that is missing, new or different."""
    said = [f"table {name} is missing" for name in expected.keys() - found.keys()]
    said += [f"table {name} is new" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        before, after = expected[name], found[name]
        said += [f"{name}: column {each} is missing" for each in before.keys() - after.keys()]
        said += [f"{name}: column {each} is new" for each in after.keys() - before.keys()]
        said += [
            f"{name}: column {each} was {before[each]}, is {after[each]}"
            for each in before.keys() & after.keys()
            if not agree(before[each], after[each], tolerance)
        ]
    return sorted(said)
