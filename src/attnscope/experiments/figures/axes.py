"""Axes of the figures: ticks that reach the first and the last point, and domains that end at ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, count

import altair as alt

from attnscope.experiments.figures.marks import Channel

PADDING = 7  # pixels between the first and last tick and the frame
_PLAIN = "format(datum.value, '~g')"
_EXPONENT = "replace(format(datum.value, '.0e'), '+', '')"


def log_axis(name: str, title: str, values: Iterable[float], most: int = 6) -> Channel:
    """A logarithmic channel with ticks at some of the values, always at the first and the last."""
    ticks = thinned(sorted(set(values)), most)
    return {
        "shorthand": f"{name}:Q",
        "title": title,
        "scale": alt.Scale(type="log", nice=False, domain=[ticks[0], ticks[-1]], padding=PADDING),
        "axis": alt.Axis(values=ticks, format="~g", labelFlush=False),
    }


def log_range(name: str, title: str, low: float, high: float) -> Channel:
    """A logarithmic channel from the last round number below `low` to the first above `high`, with ticks at both."""
    ticks = even_ticks(low, high) if high < 4 * low else round_ticks(low, high)
    return {
        "shorthand": f"{name}:Q",
        "title": title,
        "scale": alt.Scale(type="log", nice=False, domain=[ticks[0], ticks[-1]], padding=PADDING),
        "axis": alt.Axis(values=ticks, labelFlush=False, labelExpr=_EXPONENT if ticks[0] < 1e-3 else _PLAIN),
    }


def linear_range(name: str, title: str, low: float, high: float) -> Channel:
    """A linear channel from the last round number below `low` to the first above `high`, with ticks at both."""
    ticks = even_ticks(low, high)
    return {
        "shorthand": f"{name}:Q",
        "title": title,
        "scale": alt.Scale(nice=False, zero=False, domain=[ticks[0], ticks[-1]], padding=PADDING),
        "axis": alt.Axis(values=list(ticks), format="~g", labelFlush=False),
    }


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` of the increasing values, spread evenly on a log axis, including the first and the last."""
    first, last = values[0], values[-1]
    if len(values) <= most:
        return list(values)
    step = math.log(last / first) / (most - 1)
    chosen = [last]
    for value in reversed(values[1:-1]):
        if math.log(chosen[-1] / value) >= step * 0.999 and math.log(value / first) >= step * 0.8:
            chosen.append(value)
    return [first, *reversed(chosen)]


def even_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, the first at most `low` and the last at least `high`."""
    if high <= low:
        low, high = low - abs(low or 1.0) / 20, low + abs(low or 1.0) / 20
    smallest = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * smallest for factor in (1, 2, 5, 10, 20)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < most:
            break
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten, times 1, 2 and 5 where those fit; the first is at most `low` and the last at least `high`."""
    lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1
    for steps, skip in chain((((1, 2, 5), 1), ((1, 3), 1)), (((1,), skip) for skip in count(1))):
        powers = range(lowest - lowest % skip, highest + skip, skip)
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        first = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
        last = min(i for i, tick in enumerate(ticks) if i > first and tick >= high * (1 - 1e-9))
        if last - first < most:
            break
    return ticks[first : last + 1]
