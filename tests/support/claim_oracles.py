"""Every number that a claim is judged on, taken from the tables again: plain numpy and scipy, window by window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

ColumnBlock = dict[str, np.ndarray]
Values = list[float]


class Table:
    """ColumnBlock of one table under one reading, as arrays."""

    def __init__(self, tables: dict[str, pl.DataFrame], sink: str) -> None:
        self.tables, self.sink = tables, sink
        self.lengths = sorted(tables["rows"]["prefix"].unique())
        self.longest = self.lengths[-1]
        self.count = int(tables["rows"]["window"].n_unique())

    def __call__(self, name: str, **wanted: Any) -> ColumnBlock:
        table = self.tables[name].filter(sink=self.sink)
        columns = {column: table[column].to_numpy() for column in table.columns}
        kept = np.ones(len(table), dtype=bool)
        for column, value in wanted.items():
            near = columns[column] == value if isinstance(value, str) else np.isclose(columns[column], value, 1e-9)
            kept &= near
        return {column: values[kept] for column, values in columns.items()}

    def windows(self, statistic: Callable[[ColumnBlock], float], name: str, **wanted: Any) -> Values:
        return [statistic(self(name, window=window, **wanted)) for window in range(self.count)]

    def exponent(self, statistic: Callable[[ColumnBlock], float], name: str, **wanted: Any) -> float:
        """Slope of the logarithm of the median over windows."""
        middle = [np.median(self.windows(statistic, name, prefix=length, **wanted)) for length in self.lengths]
        return float(stats.linregress(np.log(self.lengths), np.log(middle)).slope)


def median_of(column: str) -> Callable[[ColumnBlock], float]:
    return lambda lines: float(np.median(lines[column]))


def critical(lines: ColumnBlock) -> float:
    accepted = sorted(n for n, p in zip(lines["n"], lines["p"], strict=True) if p >= 0.01)
    return float(accepted[0]) if accepted else float(lines["length"][0])


def at_share(lines: ColumnBlock, n: int) -> float:
    return float(lines["distance"][lines["n"] == n][0])


def largest(t: Table, direction: str, temperature: float, step: float) -> Values:
    return t.windows(
        lambda lines: lines[direction].max(), "gradient", reading="scaled", temperature=temperature, step=step
    )


def g_slope(t: Table, direction: str, step: float) -> Values:
    cold = [10 ** (k / 4) for k in range(-8, -3)]
    g = np.log([largest(t, direction, temperature, step) for temperature in cold])
    return [float(stats.linregress(np.log(cold), g[:, window]).slope) for window in range(t.count)]


STEPS = (1e-3, 0.1, 10.0)
GRID = [10 ** (k / 4) for k in range(-8, 5)]


def below(t: Table, bound: Callable[[float, float], float]) -> float:
    """Share of points of all windows where the worst direction stays below a bound."""
    found = [
        g <= bound(temperature, step) * (1 + 1e-9)
        for temperature in GRID
        for step in STEPS
        for g in largest(t, "worst", temperature, step)
    ]
    return float(np.mean(found))


def printed_bound(temperature: float, step: float) -> float:
    return min(1 / (4 * temperature), 2**0.5)


def exact_bound(temperature: float, step: float) -> float:
    return 2**0.5 / step * np.tanh(step / (2 * 2**0.5 * temperature))


def near(t: Table, direction: str, bound: Callable[[float, float], float]) -> list[Values]:
    cold = [temperature for temperature in GRID if temperature < 0.0999]
    found = []
    for step in STEPS:
        ratios = [np.array(largest(t, direction, one, step)) / bound(one, step) for one in cold]
        found.append(list(np.median(ratios, axis=0)))
    return found


def spearman(t: Table, early: bool) -> Values:
    found = []
    for window in range(t.count):
        at = {length: _heads(t, window, length) for length in (t.longest // 4, t.longest)}
        entropy, separability = at[t.longest]
        if early:
            entropy, separability = entropy - at[t.longest // 4][0], separability - at[t.longest // 4][1]
        found.append(float(stats.spearmanr(entropy, separability).statistic))
    return found


def _heads(t: Table, window: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    rows = t("rows", window=window, prefix=length)
    sets = t("topn", window=window, prefix=length, n=16)
    order = [np.lexsort((lines["head"], lines["layer"])) for lines in (rows, sets)]
    return rows["entropy_ratio"][order[0]], sets["separability"][order[1]]


def share_within(t: Table, printed: bool) -> Values:
    found = []
    for window in range(t.count):
        drawn, topn = t("drawn", window=window), t("topn", window=window)
        keys = ("prefix", "layer", "head", "n")
        places = zip(*(topn[k] for k in keys), strict=True)
        rest = dict(zip(places, topn["epsilon_printed"], strict=True))
        inside = []
        for i in range(len(drawn["n"])):
            key = tuple(drawn[k][i] for k in keys)
            if printed and key not in rest:
                continue
            low = drawn["expected_printed" if printed else "expected_lower"][i]
            high = low + rest[key] if printed else drawn["expected_upper"][i]
            slack = 5 * drawn["drawn_error"][i] + 1e-5 * drawn["drawn_mean"][i]
            inside.append(low - slack <= drawn["drawn_mean"][i] <= high + slack)
        found.append(float(np.mean(inside)))
    return found


def ratio(a: str, b: str, n: int, name: str = "drawn") -> Callable[[Table], list[Values]]:
    return lambda t: [t.windows(lambda lines: np.median(lines[a] / lines[b]), name, prefix=t.longest, n=n)]


def change(t: Table, statistic: Callable[[ColumnBlock], float], n: int, other: int, quotient: bool) -> Values:
    late = np.array(t.windows(statistic, "topn", prefix=t.longest, n=n))
    early = np.array(t.windows(statistic, "topn", prefix=t.longest, n=other))
    return list(late / early if quotient else late - early)


def held(t: Table, test: Callable[[ColumnBlock], np.ndarray], **wanted: Any) -> float:
    return float(np.mean(test(t("topn", **wanted))))


def sharper(t: Table, column: str, cold: float, warm: float) -> Values:
    at = [np.array(t.windows(lambda lines: lines[column].mean(), "sharpness", temperature=one)) for one in (cold, warm)]
    return list(at[0] - at[1])


def jacobian(t: Table, factor: float) -> list[Values]:
    found = []
    for temperature in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        norms = t.windows(lambda lines: lines["jacobian_norm"].max(), "sharpness", temperature=temperature)
        found.append([norm * factor * temperature for norm in norms])
    return found


def by_n(t: Table, statistic: Callable[[ColumnBlock], float], least: int) -> list[Values]:
    sizes = [2**k for k in range(10) if least <= 2**k < keys_of(t)]
    return [t.windows(statistic, "topn", prefix=t.longest, n=n) for n in sizes]


def steps(t: Table, direction: str, of: Callable[[Table, str, float], Any]) -> list[Any]:
    return [of(t, direction, step) for step in STEPS]


def quotients(t: Table, direction: str, pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> list[Values]:
    """g at one (T, eps) over g at another."""
    return [
        list(np.array(largest(t, direction, *one)) / np.array(largest(t, direction, *other))) for one, other in pairs
    ]


def spread_of_steps(t: Table, direction: str) -> list[Values]:
    found = []
    for temperature in (1.0, 10.0):
        g = np.array([largest(t, direction, temperature, step) for step in STEPS])
        found.append(list(g.max(0) / g.min(0)))
    return found


def criticals(t: Table, form: str, length: int | None = None) -> Values:
    return t.windows(critical, "tests", prefix=length or t.longest, form=form)


def critical_exponent(t: Table, form: str) -> float | None:
    lengths = [
        length
        for length in t.lengths
        if np.mean([(t("tests", window=w, prefix=length, form=form)["p"] < 0.01).all() for w in range(t.count)]) < 0.5
    ]
    if len(lengths) < 3:
        return None
    middle = [np.median(criticals(t, form, length)) for length in lengths]
    return float(stats.linregress(np.log(lengths), np.log(middle)).slope)


def keys_of(t: Table, length: int | None = None) -> int:
    return (length or t.longest) - (t.sink == "dropped")


def collapse(t: Table, per_token: bool) -> float:
    middle = []
    for length in t.lengths:
        keys = keys_of(t, length)
        n = keys // 8
        values = np.array(t.windows(lambda lines, n=n: at_share(lines, n), "tests", prefix=length, form="printed"))
        middle.append(np.median(values / (keys - n) if per_token else values))
    return float(stats.linregress(np.log(t.lengths), np.log(middle)).slope)


def per_row(upper: bool, column: str) -> Callable[[Table], list[float]]:
    sign = 1 if upper else -1
    return lambda t: [held(t, lambda lines: sign * (lines["separability"] - lines[column]) <= 1e-9, prefix=t.longest)]


def quantile(lines: ColumnBlock) -> float:
    """The value of the line nearest to 95%."""
    ordered = np.sort(lines["separability"])
    return float(ordered[int(np.floor(0.95 * (len(ordered) - 1) + 0.5))])


def gap(column: str) -> Callable[[Table], list[Values]]:
    return lambda t: by_n(t, lambda lines: lines[column].max() - lines["separability"].max(), 2)


# For each claim and form: the value of each measurement, as values of windows (their median is taken) or as one number.
ORACLES: dict[tuple[str, str], Callable[[Table], list[Any]]] = {
    ("vanishing-attention", "printed"): lambda t: [t.exponent(median_of("max_weight"), "rows")],
    ("vanishing-attention", "corrected"): lambda t: [t.exponent(median_of("max_weight"), "rows")],
    ("distance-linear", "printed"): lambda t: [t.exponent(median_of("distance"), "topn", n=5)],
    ("expectation-linear", "printed"): lambda t: [t.exponent(median_of("expected_printed"), "drawn", n=5)],
    ("expectation-linear", "corrected"): lambda t: [t.exponent(median_of("drawn_mean"), "drawn", n=5)],
    ("corollary-2i", "printed"): ratio("expected_printed", "scaled_sum", 5),
    ("corollary-2i", "corrected"): ratio("drawn_mean", "scaled_sum", 5),
    ("expectation-formula", "printed"): lambda t: [share_within(t, True)],
    ("expectation-formula", "corrected"): lambda t: [share_within(t, False)],
    ("bound-safe", "printed"): lambda t: [
        held(t, lambda lines: lines["distance"] <= lines["distance_bound_printed"] * (1 + 1e-6))
    ],
    ("bound-safe", "corrected"): lambda t: [
        held(t, lambda lines: lines["distance"] <= lines["distance_upper"] * (1 + 1e-6)),
        held(t, lambda lines: lines["distance"] >= lines["distance_lower"] * (1 - 1e-6)),
    ],
    ("plateau-beyond-20", "printed"): lambda t: [change(t, median_of("distance"), 100, 20, True)],
    ("bound-tightens", "printed"): lambda t: [
        change(t, lambda lines: np.median(lines["distance_bound_printed"] / lines["distance"]), 100, 5, True)
    ],
    ("bound-tightens", "corrected"): lambda t: [
        values
        for a, b in (("distance_upper", "distance"), ("distance", "distance_lower"))
        for n in (5, 100)
        for values in ratio(a, b, n, "topn")(t)
    ],
    ("converge-at-100", "printed"): ratio("distance", "expected_printed", 100),
    ("converge-at-100", "corrected"): ratio("distance", "drawn_mean", 100),
    ("critical-share", "printed"): lambda t: [np.array(criticals(t, "printed")) / keys_of(t)],
    ("critical-share", "corrected"): lambda t: [np.array(criticals(t, end)) / keys_of(t) for end in ("lower", "upper")],
    ("critical-sublinear", "printed"): lambda t: [critical_exponent(t, "printed")],
    ("critical-sublinear", "corrected"): lambda t: [critical_exponent(t, "lower"), critical_exponent(t, "upper")],
    ("uniform-selection", "printed"): lambda t: [
        float(np.mean(t.windows(lambda lines: lines["p"][0] >= 0.01, "tests", prefix=t.longest, n=100, form="printed")))
    ],
    ("uniform-selection", "corrected"): lambda t: [
        t.windows(lambda lines: np.mean(lines["drawn_p_high"] > 0.01), "drawn", prefix=t.longest, n=100),
        t.windows(lambda lines: np.median(lines["top_mass"]) * keys_of(t) / 100, "topn", prefix=t.longest, n=100),
    ],
    ("collapse-proportional", "printed"): lambda t: [collapse(t, False)],
    ("collapse-proportional", "corrected"): lambda t: [collapse(t, True)],
    ("separability-falls", "printed"): lambda t: [change(t, lambda lines: lines["separability"].mean(), 16, 2, False)],
    ("separability-plateau", "printed"): lambda t: by_n(t, median_of("separability"), 16),
    ("at-most-80-percent", "printed"): lambda t: by_n(t, quantile, 16),
    ("upper-bound-tracks", "printed"): gap("separability_upper_printed"),
    ("upper-bound-tracks", "corrected"): gap("separability_upper"),
    ("upper-bound-holds", "printed"): per_row(True, "separability_upper_printed"),
    ("upper-bound-holds", "corrected"): per_row(True, "separability_upper"),
    ("lower-bound-holds", "printed"): per_row(False, "separability_lower_printed"),
    ("lower-bound-holds", "corrected"): per_row(False, "separability_lower"),
    ("three-heads-99-percent", "printed"): lambda t: [
        t.windows(lambda lines: lines["independent"].mean(), "coverage", heads=3)
    ],
    ("three-heads-99-percent", "corrected"): lambda t: [
        t.windows(lambda lines: lines["coverage"].mean(), "coverage", heads=3)
    ],
    ("entropy-early-sign", "printed"): lambda t: [spearman(t, False)],
    ("entropy-early-sign", "corrected"): lambda t: [spearman(t, True)],
    ("sharper-separates", "printed"): lambda t: [sharper(t, "separability", 0.2, 1.0)],
    ("too-sharp", "printed"): lambda t: [sharper(t, "separability", 0.05, 0.1), sharper(t, "jacobian_norm", 0.05, 0.1)],
    ("one-over-t", "printed"): lambda t: steps(t, "random", g_slope),
    ("one-over-t", "corrected"): lambda t: steps(t, "worst", g_slope),
    ("smaller-step-larger", "printed"): lambda t: quotients(
        t, "random", [((0.01, 1e-3), (0.01, 0.1)), ((0.01, 0.1), (0.01, 10))]
    ),
    ("smaller-step-larger", "corrected"): lambda t: quotients(
        t, "worst", [((0.01, 1e-3), (0.01, 0.1)), ((0.01, 0.1), (0.01, 10))]
    ),
    ("collapse-above-one", "printed"): lambda t: spread_of_steps(t, "random"),
    ("collapse-above-one", "corrected"): lambda t: spread_of_steps(t, "worst"),
    ("two-orders", "printed"): lambda t: quotients(t, "random", [((0.01, step), (1, step)) for step in STEPS]),
    ("two-orders", "corrected"): lambda t: quotients(t, "worst", [((0.01, step), (1, step)) for step in STEPS]),
    ("dashed-bound-holds", "printed"): lambda t: [below(t, printed_bound)],
    ("dashed-bound-holds", "corrected"): lambda t: [below(t, exact_bound)],
    ("near-the-limit", "printed"): lambda t: near(t, "random", printed_bound),
    ("near-the-limit", "corrected"): lambda t: near(t, "worst", exact_bound),
    ("jacobian-law", "printed"): lambda t: jacobian(t, 4),
    ("jacobian-law", "corrected"): lambda t: jacobian(t, 2),
}
