"""Sums over rows as lines of the tables `protocol_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from attnscope.experiments.reduce import FORMS, REPEATS, SUBSETS
from attnscope.studies.paper.every_n import COLUMNS as PROFILE
from attnscope.studies.paper.ks_over_heads import LEVELS, critical_n, p_values, subset_p_values
from attnscope.studies.paper.responses import DIRECTIONS
from attnscope.studies.paper.sets import COLUMNS
from attnscope.studies.paper.settings import PAPER_N, READINGS, SEPARABILITY_N, STEPS, TEMPERATURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from attnscope.studies.paper.sets import SetSums

_DISTANCE = ("distance", "bound_printed", "expected_printed", "expected_lower", "expected_upper")
_SEPARABILITY = ("separability", "lower_printed", "upper_printed", "separability_closed")


class Sample(NamedTuple):
    """The reading, vectors and length at which all heads are tested together."""

    reading: str
    vectors: str
    length: int


def sets(
    keys: Mapping[str, Any], kind: str, lengths: Sequence[int], heads: Sequence[int], sizes: Sequence[int],
    of_heads: Sequence[SetSums],
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """Lines of `protocol_distance` and `protocol_separability`: means over the rows of each head."""
    rows = np.stack([sums.rows for sums in of_heads], 2)  # (readings, lengths, heads, sizes)
    with np.errstate(invalid="ignore"):
        means = np.stack([sums.sums for sums in of_heads], 2) / rows[:, :, :, None]
    axes = {
        "window": [keys["window"]], "reading": READINGS, "vectors": [kind], "length": lengths,
        "layer": [keys["layer"]], "head": heads, "n": sizes,
    }  # fmt: skip
    names = list(COLUMNS)
    tables = {}
    for table, columns, wanted in (
        ("protocol_distance", _DISTANCE, PAPER_N),
        ("protocol_separability", _SEPARABILITY, SEPARABILITY_N),
    ):
        values = {name: means[:, :, :, names.index(name)] for name in columns}
        lines = _lines(axes, values | {"rows": rows})
        tables[table] = lines.filter(pl.col("n").is_in(wanted), pl.col("rows") > 0)
    return tables


def gradient(
    keys: Mapping[str, Any], logits: Sequence[str], heads: Sequence[int], g: NDArray[np.float64]
) -> pl.DataFrame:
    """Lines of `protocol_gradient`; g: (readings, logits, directions, temperatures, steps, heads)."""
    axes = {
        "window": [keys["window"]], "reading": READINGS, "logits": logits, "direction": DIRECTIONS,
        "temperature": TEMPERATURES, "step": STEPS, "layer": [keys["layer"]], "head": heads,
    }  # fmt: skip
    return _lines(axes, {"g": g})


def critical(
    window: int, sample: Sample, heads: Sequence[NDArray[np.float64]], seed: int, subsets: bool
) -> dict[str, pl.DataFrame]:
    """Lines of `protocol_critical` and, with `subsets`, of `protocol_subsets`, from each head's profile (columns, n).

    Layers that see fewer keys (a sliding window) have rows for fewer N: the heads with the most are tested.
    """
    most = max(int(np.isfinite(profile).all(0).sum()) for profile in heads)
    profile = np.stack([each[:, :most] for each in heads if np.isfinite(each).all(0).sum() == most])
    n, count = np.arange(1, most + 1), len(profile)
    distance = np.ascontiguousarray(profile[:, PROFILE.index("distance")].T)
    whole: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for form in FORMS:
        expected = np.ascontiguousarray(profile[:, PROFILE.index(f"expected_{form}")].T)
        by_size = {count: [p_values(distance, expected)]}
        for size in SUBSETS if subsets else ():
            if size < count:
                by_size[size] = subset_p_values(distance, expected, size, REPEATS, seed)
        for level in LEVELS:
            keys = {"window": window} | sample._asdict() | {"expectation": form, "significance": level}
            whole.append(keys | critical_n(by_size[count][0], n, level)._asdict() | {"heads": count})
            for size in sorted(by_size):
                for repeat, p in enumerate(by_size[size]):
                    parts.append(keys | {"heads": size, "repeat": repeat} | critical_n(p, n, level)._asdict())
    integers = {"first": pl.Int64, "persistent": pl.Int64}
    tables = {"protocol_critical": pl.DataFrame(whole, schema_overrides=integers)}
    return tables | ({"protocol_subsets": pl.DataFrame(parts, schema_overrides=integers)} if subsets else {})


def _lines(axes: Mapping[str, Sequence[Any]], columns: Mapping[str, NDArray[Any]]) -> pl.DataFrame:
    """One line for each combination of axis values; columns have the shape of the axes with more than one value."""
    shape = tuple(len(values) for values in axes.values())
    index = np.indices(shape).reshape(len(shape), -1)
    keys = {name: np.array(values)[at] for (name, values), at in zip(axes.items(), index, strict=True)}
    return pl.DataFrame(keys | {name: values.reshape(-1) for name, values in columns.items()}, nan_to_null=True)
