"""Which quantities the page shows of every head, with their labels and meanings (`attnscope.columns`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from attnscope import columns
from attnscope.diagnosis.result import LABELS, diagnosed_heads
from attnscope.diagnosis.states import RULES, limit_words
from attnscope.intervals import evenly_spaced
from attnscope.show.numbers import counted
from attnscope.store.folders import write_all
from attnscope.store.tables import OWN, within_support

# In the order in which the page offers them.
HEAD_MEASURES = (
    "participation",
    "separability",
    "sink_weight",
    "max_weight",
    "top_mass",
    "entropy_ratio",
    "distance_ratio",
    "jacobian_norm",
    "logit_range",
    "support",
)
ROW_MEASURES = tuple(name for name in HEAD_MEASURES if name in columns.ROW_NAMES)
SET_MEASURES = tuple(name for name in HEAD_MEASURES if name not in columns.ROW_NAMES)

# What a diagnosis adds.
EVIDENCE = (
    "tokens_needed",
    "growth_exponent",
    "residual_change",
    "sink_contribution",
    "sureness",
    *(rule.error for rule in RULES),
)


def explained(n: int) -> dict[str, dict[str, Any]]:
    """The measures of a scan for the page, with the size of the top set filled in."""
    return {name: explained_measure(name, n, {"n": n}) for name in HEAD_MEASURES}


def explained_evidence(thresholds: Mapping[str, Any], n: int) -> dict[str, dict[str, Any]]:
    """The numbers of a diagnosis for the page, with its limits filled in."""
    return {name: explained_measure(name, n, limit_words(thresholds)) for name in EVIDENCE}


def explained_measure(name: str, n: int | None, numbers: Mapping[str, object]) -> dict[str, Any]:
    """Label, meaning, unit and style of a declared quantity, with the numbers of a run filled in."""
    column = columns.COLUMNS[name]
    return {
        "label": column.label(n),
        "sentence": column.sentence(numbers),
        "unit": column.unit,
        "style": column.style,
        "fixed": column.fixed,
    }


FIGURES = 2
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
_PENDING = 50_000  # lines that are held before they are merged


class Merged:
    """Lines with keys, of which those with equal keys are merged by some expressions."""

    def __init__(self, keys: Sequence[str], merge: Sequence[pl.Expr]) -> None:
        self._keys, self._merge = list(keys), list(merge)
        self._pending: list[pl.DataFrame] = []
        self._lines = 0

    def add(self, table: pl.DataFrame) -> None:
        """Add lines, whose keys may have lines already."""
        self._pending.append(table)
        self._lines += table.height
        if self._lines > max(_PENDING, 2 * self._pending[0].height):
            self._pending = [self.table()]
            self._lines = self._pending[0].height

    def table(self) -> pl.DataFrame:
        """All lines, merged and sorted by their keys."""
        return pl.concat(self._pending).group_by(self._keys).agg(self._merge).sort(self._keys)


class Moments:
    """Number, mean and standard deviation over windows of some columns, for each combination of keys."""

    def __init__(self, keys: Sequence[str], columns: Sequence[str]) -> None:
        self.keys, self.columns = list(keys), list(columns)
        self._merged = Merged(keys, [each for name in columns for each in _merged_moments(name)])

    def add(self, by_window: pl.DataFrame) -> None:
        """Add the lines of some windows, one for each window and combination of keys."""
        each = [expression for name in self.columns for expression in _moments(name)]
        self._merged.add(by_window.group_by(self.keys).agg(each))

    def table(self) -> pl.DataFrame:
        """The keys, each column's mean, and its standard deviation in `<column>_spread`."""
        spreads = [
            (pl.col(f"{name}|squares") / (pl.col(f"{name}|count") - 1)).sqrt().alias(f"{name}_spread")
            for name in self.columns
        ]
        several = [
            pl.when(pl.col(f"{name}|count") > 1).then(spread)
            for name, spread in zip(self.columns, spreads, strict=True)
        ]
        means = [pl.col(f"{name}|mean").alias(name) for name in self.columns]
        return self._merged.table().select(*self.keys, *means, *several)


def _moments(name: str) -> list[pl.Expr]:
    value = pl.col(name)
    squares = (value.var(ddof=0) * value.count()).fill_null(0.0)
    return [
        value.count().cast(pl.Float64).alias(f"{name}|count"),
        value.mean().alias(f"{name}|mean"),
        squares.alias(f"{name}|squares"),
    ]


def _merged_moments(name: str) -> list[pl.Expr]:
    """Chan, Golub, LeVeque: the deviations within the parts, and those of their means."""
    count, mean, squares = (pl.col(f"{name}|{part}") for part in ("count", "mean", "squares"))
    total = count.sum()
    middle = (count * mean).sum() / pl.when(total > 0).then(total)
    between = (count * (mean - middle).pow(2)).sum()
    return [count.sum(), middle.alias(f"{name}|mean"), (squares.sum() + between).alias(f"{name}|squares")]


class Ranges:
    """Quantiles over windows of the column `value`, to `FIGURES` significant figures, for each combination of keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._merged = Merged([*keys, "value"], [pl.col("count").sum()])

    def add(self, by_window: pl.DataFrame) -> None:
        """Add the lines of some windows, one for each window and combination of keys."""
        rounded = by_window.drop_nulls("value").with_columns(pl.col("value").round_sig_figs(FIGURES))
        self._merged.add(rounded.group_by(*self.keys, "value").agg(count=pl.len()))

    def table(self) -> pl.DataFrame:
        """The keys, the number of windows, and for each quantile the smallest value with at least that share below."""
        value, up_to = pl.col("value"), pl.col("count").cum_sum()
        total = pl.col("count").sum()
        quantiles = {name: value.filter(up_to >= share * total).first() for name, share in QUANTILES.items()}
        return self._merged.table().group_by(self.keys, maintain_order=True).agg(windows=total, **quantiles)


# The size of the top set where only one is shown; else the nearest measured size.
USUAL_N = 20

# What is drawn against N.
CURVES = (
    "top_mass",
    "distance",
    "distance_lower",
    "distance_upper",
    "distance_bound_printed",
    "expected_lower",
    "expected_upper",
    "expected_printed",
    "separability",
    "separability_lower",
    "separability_upper",
    "separability_lower_printed",
    "separability_upper_printed",
)

# Rows that are shown one by one: so many, or fewer where there are many heads.
ROW_COLUMNS = ("participation", "entropy_ratio", "max_weight", "sink_weight", "jacobian_norm", "jacobian_bound")
_ROW_NUMBERS = 250_000
_MOST_ROWS, _LEAST_ROWS = 256, 8

# Groups of lengths where a run measured many rows, each half as long as the one before.
_HALVINGS = 6

_HEAD = ["normalizer", "layer", "head", "group"]
_SET = [*_HEAD, "n"]
_FILES = ("rows", "topn", "lengths", "medians", "ranges", "shown")

Chunk = tuple[pl.DataFrame, ...]
"""The lines of some windows in both tables, rows and topn."""


@dataclass(frozen=True)
class Overview:
    """Means over windows, and how much windows differ.

    `rows` has one line for each normalizer, head and group of lengths (0 for the longest), `topn` one for each N as
    well, `lengths` one for each head and length; columns are those of the tables, with the standard deviation over
    windows in `<column>_spread`. `ranges` has quantiles over windows, `medians` the spread of the median over heads,
    `shown` some of the rows themselves.
    """

    run: dict[str, Any]
    windows: int
    row_count: int  # of which `shown` are some
    rows: pl.DataFrame
    topn: pl.DataFrame
    lengths: pl.DataFrame
    medians: pl.DataFrame
    ranges: pl.DataFrame
    shown: pl.DataFrame

    @classmethod
    def of(cls, rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any]) -> Overview:
        """The overview of tables in memory."""
        return summarize([(rows, topn)], run)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return self.rows.is_empty() or self.topn.is_empty()

    @property
    def n(self) -> int:
        """The measured N nearest to the usual one."""
        return min(self.topn["n"].unique().to_list(), key=lambda n: (abs(n - USUAL_N), n))

    @property
    def normalizers(self) -> list[str]:
        """The labels of all normalizers, the model's own first."""
        labels = self.rows["normalizer"].unique().to_list()
        return sorted(labels, key=lambda label: (label != OWN, not label.startswith(OWN), label))

    @cached_property
    def heads(self) -> pl.DataFrame:
        """One line for each layer and head: mean over rows and windows, and the spread over windows if there are some.

        The spread of a measure, its standard deviation over the windows' means, is in `<measure>_spread`.
        """
        spreads = [f"{name}_spread" for name in HEAD_MEASURES] if self.run["settings"]["windows"] > 1 else []
        return self.head_groups().filter(group=0).select("layer", "head", *HEAD_MEASURES, *spreads)

    def head_groups(self, normalizer: str = OWN) -> pl.DataFrame:
        """One line for each head and group of lengths."""
        rows = self.rows.filter(normalizer=normalizer).drop("normalizer")
        sets = self.topn.filter(normalizer=normalizer, n=self.n)
        chosen = [name for measure in SET_MEASURES for name in (measure, f"{measure}_spread")]
        keys = ["layer", "head", "group"]
        return rows.join(sets.select(*keys, *chosen), on=keys, how="left").sort(keys)

    def by_n(self) -> pl.DataFrame:
        """One line for each layer, head and N, at the longest lengths."""
        return self.topn.filter(normalizer=OWN, group=0).drop("normalizer", "group")

    def groups(self) -> list[str]:
        """The lengths of each group in words, the longest first."""
        return [
            f"{high:,}" if low == high or self.run["settings"]["rows"] == "last" else f"{low:,} to {high:,}"
            for low, high in self._spans().select("low", "high").iter_rows()
        ]

    def sources(self) -> list[str]:
        """The rows that the numbers of each group are means over, in words, the longest group first."""
        windows = counted(self.windows, "window")
        return [
            f"{counted(count, 'row')} that {'sees' if count == 1 else 'see'} {length} tokens, in {windows}"
            for length, count in zip(self.groups(), self._spans()["lines"], strict=True)
        ]

    def _spans(self) -> pl.DataFrame:
        spans = {"low": pl.min("low"), "high": pl.max("high"), "lines": pl.max("lines")}
        return self.rows.filter(normalizer=OWN).group_by("group").agg(**spans).sort("group")

    def median_of_heads(self, normalizer: str) -> dict[str, Any]:
        """Medians over heads of the measures under one normalizer, the model's own or a what-if.

        `defined` is the share of rows that have a separability.
        """
        lines = self.rows.filter(normalizer=normalizer, group=0).select("max_weight", "support", "jacobian_norm")
        sets = self.topn.filter(normalizer=normalizer, group=0, n=self.n)
        medians = [sets.select("separability", "top_mass").median(), lines.median()]
        found = {name: value for table in medians for name, value in table.row(0, named=True).items()}
        defined, all_lines = sets.select(pl.col("defined").sum(), pl.col("lines").sum()).row(0)
        return found | {"defined": defined / all_lines if all_lines else None}

    def median_by_n(self) -> pl.DataFrame:
        """Medians over heads for each N, with the 5% and 95% quantiles of the separability.

        With several windows, `separability_spread` is the standard deviation over windows of the median over heads.
        """
        separability = pl.col("separability")
        table = (
            self.by_n()
            .group_by("n")
            .agg(
                pl.col(CURVES).median(),
                separability.quantile(0.05).alias("separability_q05"),
                separability.quantile(0.95).alias("separability_q95"),
            )
        )
        return table.join(self.medians.select("n", "separability_spread"), on="n").sort("n")

    def median_by_length(self) -> pl.DataFrame:
        """Medians over heads for each length measured, or up to each power of two for many rows."""
        values = ["entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm"]
        return self.lengths.group_by("length").agg(pl.col(values).median()).sort("length")

    def over_windows(self) -> pl.DataFrame:
        """Mean, spread and quantiles over windows of every measure, for each head, length and N."""
        keys = ["layer", "head", "group"]
        tables = [
            self.rows.filter(normalizer=OWN).with_columns(n=pl.lit(None, pl.Int32)),
            self.topn.filter(normalizer=OWN),
        ]
        lines = [
            table.select(*keys, "n", measure=pl.lit(name), mean=name, spread=f"{name}_spread")
            for table, names in zip(tables, (ROW_MEASURES, SET_MEASURES), strict=True)
            for name in names
        ]
        lengths = self.rows.filter(normalizer=OWN).select(*keys, length="high")
        on = [*keys, "n", "measure"]
        joined = pl.concat(lines).join(self.ranges, on=on, how="left", nulls_equal=True).join(lengths, on=keys)
        quantiles = ["windows", "mean", "spread", *(name for name in self.ranges.columns if name.startswith("q"))]
        return joined.select("layer", "head", "length", "n", "measure", *quantiles).sort(
            "layer", "head", "length", "n", "measure"
        )

    def save(self, folder: Path) -> None:
        """Write the tables into a folder; `load` reads them."""
        facts = json.dumps({"windows": self.windows, "row_count": self.row_count})
        tables = {f"overview-{name}.parquet": getattr(self, name).write_parquet for name in _FILES}
        write_all(folder, {**tables, "overview.json": lambda path: path.write_text(facts, encoding="utf-8")})

    @classmethod
    def load(cls, folder: Path, run: dict[str, Any]) -> Overview:
        """Read what `save` has written."""
        facts = json.loads((folder / "overview.json").read_text("utf-8"))
        tables = [pl.read_parquet(folder / f"overview-{name}.parquet") for name in _FILES]
        return cls(run, facts["windows"], facts["row_count"], *tables)


def summarize(chunks: Iterable[Chunk], run: dict[str, Any], windows: Sequence[int] = ()) -> Overview:
    """The overview of tables that come in chunks of whole windows.

    `windows` are the numbers of all windows, if there are several chunks: each of them has the same positions.
    """
    lines = pl.col("lines").sum()
    row_lines = Merged(_HEAD, [lines, pl.col("low").min(), pl.col("high").max()])
    set_lines = Merged(_SET, [lines, pl.col("defined").sum()])
    set_columns = [*columns.SET_NAMES, "distance_ratio"]
    row_moments, set_moments = Moments(_HEAD, columns.ROW_NAMES), Moments(_SET, set_columns)
    lengths = Moments(["layer", "head", "length"], columns.ROW_NAMES)
    medians, ranges = Moments(["n"], ["separability"]), Ranges(["layer", "head", "group", "n", "measure"])
    sample = _Sample(windows)
    for rows, topn in chunks:
        topn = within_support(rows, topn)
        in_rows, in_sets = by_group(rows, run), by_group(_with_ratio(topn), run)
        seen = pl.col("length")
        row_lines.add(in_rows.group_by(_HEAD).agg(lines=pl.len(), low=seen.min(), high=seen.max()))
        set_lines.add(in_sets.group_by(_SET).agg(lines=pl.len(), defined=pl.col("separability").count()))
        row_means = in_rows.group_by("window", *_HEAD).agg(pl.col(columns.ROW_NAMES).mean())
        set_means = in_sets.group_by("window", *_SET).agg(pl.col(set_columns).mean())
        row_moments.add(row_means)
        set_moments.add(set_means)
        by_length = with_length(rows.filter(normalizer=OWN), run).group_by("window", "layer", "head", "length")
        lengths.add(by_length.agg(pl.col(columns.ROW_NAMES).mean()))
        by_window = set_means.filter(normalizer=OWN, group=0).group_by("window", "n")
        medians.add(by_window.agg(pl.col("separability").median()))
        ranges.add(_long(row_means.with_columns(n=pl.lit(None, pl.Int32)), ROW_MEASURES))
        ranges.add(_long(set_means, SET_MEASURES))
        sample.add(rows)
    return Overview(
        run,
        sample.window_count,
        sample.row_count,
        row_lines.table().join(row_moments.table(), on=_HEAD, maintain_order="left"),
        set_lines.table().join(set_moments.table(), on=_SET, maintain_order="left"),
        lengths.table(),
        medians.table(),
        ranges.table(),
        sample.table(),
    )


def by_group(table: pl.DataFrame, run: dict[str, Any]) -> pl.DataFrame:
    """The lines with a column `group`: lines of about the same length, 0 for the longest."""
    settings = run["settings"]
    if settings["rows"] == "last":
        # Items of a batch and layers of a module may differ in their last position: each has its own order.
        order = pl.col("position").rank("dense", descending=True).over("window", "layer")
        return table.with_columns(group=order.cast(pl.Int32) - 1)
    if len(settings["lengths"]) > 1:  # an encoder, run once for each length
        return table.with_columns(group=pl.col("length").rank("dense", descending=True).cast(pl.Int32) - 1)
    length = pl.col("position") + 1
    halvings = (length.max().over("window", "layer") / length).log(2).floor().cast(pl.Int32)
    return table.with_columns(group=halvings.clip(upper_bound=_HALVINGS - 1))


def with_length(rows: pl.DataFrame, run: dict[str, Any]) -> pl.DataFrame:
    """The rows with the `length` that they stand for: a measured one, or for many rows the next power of two."""
    length = pl.col("position").cast(pl.Int64) + 1  # a row sees fewer keys where a window of attention hides some
    if run["settings"]["rows"] != "last":
        length = 2 ** pl.col("length").log(2).ceil().cast(pl.Int64)
    return rows.with_columns(length=length)


def _with_ratio(topn: pl.DataFrame) -> pl.DataFrame:
    """The distance relative to the expected one."""
    expected = (pl.col("expected_lower") + pl.col("expected_upper")) / 2
    return topn.with_columns(distance_ratio=pl.col("distance") / expected)


def _long(means: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """One line for each measure."""
    own = means.filter(normalizer=OWN)
    return own.unpivot(names, index=["layer", "head", "group", "n"], variable_name="measure").cast(
        {"value": pl.Float64}
    )


class _Sample:
    """Rows to be shown one by one: all of them, or some spread evenly over all windows and positions."""

    def __init__(self, windows: Sequence[int]) -> None:
        self._windows = list(windows)
        self._chosen: pl.DataFrame | None = None
        self._found: list[pl.DataFrame] = []
        self.row_count = self.window_count = 0

    def add(self, rows: pl.DataFrame) -> None:
        self.window_count += rows["window"].n_unique()
        if self._chosen is None:
            places = rows.select("window", "position").unique().sort("window", "position")
            if self._windows:
                first = places.filter(window=places["window"].min()).select("position")
                every = pl.DataFrame({"window": self._windows}, schema={"window": pl.Int32})
                places = every.join(first, how="cross", maintain_order="left_right")
            heads = max(1, rows.select("layer", "head").n_unique())
            room = _ROW_NUMBERS // (heads * len(ROW_COLUMNS))
            self._chosen = places[list(evenly_spaced(places.height, max(_LEAST_ROWS, min(_MOST_ROWS, room))))]
            self.row_count = places.height
        # Inputs of different lengths share positions in an encoder; the longest stands for the row.
        keys = ["layer", "head", "window", "position"]
        own = rows.filter(normalizer=OWN).join(self._chosen, on=["window", "position"], how="semi")
        self._found.append(own.sort("length").unique(keys, keep="last").select(*keys, "length", *ROW_COLUMNS))

    def table(self) -> pl.DataFrame:
        return pl.concat(self._found).sort("window", "position", "layer", "head")


def diagnosis_source(findings: dict[str, Any] | None) -> str | None:
    """The rows that the numbers of a diagnosis are means over, in words."""
    if not findings or not findings.get("windows"):
        return None
    windows, length, rows = findings["windows"], findings["length"], findings.get("rows")
    where = f"{counted(windows, 'window')} of {length:,} tokens spread over the text"
    if rows is None:  # findings of an older version
        return where
    # The rows lie in the second half of a causal window.
    return f"{'' if rows <= length // 2 else 'up to '}{counted(rows, 'row')} in each of {where}"


def shown_rows(run: dict[str, Any]) -> str:
    """The rows that represent a head, in words."""
    settings = run["settings"]
    length = f"{settings['lengths'][-1]:,}"
    if settings["rows"] == "last" or len(settings["lengths"]) > 1:
        return f"at length {length}"
    return f"in the second half of {length} tokens"


def heads_table(view: Overview, findings: Mapping[str, Any] | None) -> pl.DataFrame:
    """One line for each head of a scan, in the order of layers and heads; see `ScanResult.heads`."""
    place: dict[str, pl.DataType] = {"layer": pl.Int32(), "head": pl.Int32()}
    empty = pl.DataFrame(schema=place | dict.fromkeys(HEAD_MEASURES, pl.Float64()))
    scanned, diagnosed = empty if view.is_empty else view.heads, diagnosed_heads(findings)
    joined = scanned.join(diagnosed, on=["layer", "head"], how="left", maintain_order="left")
    first = ["layer", "head", *LABELS, "separability", "separability_diagnosed", "null_uniform", "null_random"]
    first += ["participation", "tokens_needed", "growth_exponent", "sink_weight", "jacobian_norm"]
    return joined.select(*first, pl.selectors.exclude(first))
