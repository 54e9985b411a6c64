"""Charts of heads: maps of all of them, curves against N and length, the weights and the pattern of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from attnscope import columns
from attnscope.diagnosis.result import state_chart
from attnscope.errors import InputError, shown, whole_number
from attnscope.scanning import overview
from attnscope.scanning.page_data import pattern_cells
from attnscope.show.charts import BAND, BOUND, LINE, OfflineChart, axis, chart, color_scale, data, legend, number_format
from attnscope.show.numbers import model_name, visible_token

if TYPE_CHECKING:
    HeadResult = Any  # of result.py, which imports this file
    ScanResult = Any

_PATTERN = 360  # pixels of a pattern, about
_BAR = 16  # pixels of a weight


class ScanPlots:
    """The charts of a scan. A head is given by layer and head, both counted from 0."""

    def __init__(self, result: ScanResult) -> None:
        self._result = result

    def map(self, measure: str = "separability") -> OfflineChart:
        """A cell for each head, colored by a column of `.heads`.

        >>> attnscope.scan(length=64, progress=False).plot.map("separability").save("map.svg")

        Parameters
        ----------
        measure
            A column of `.heads` with numbers, or "state" of a scan with a diagnosis.

        Returns
        -------
        OfflineChart
            An Altair chart, which a notebook displays without a network.
        """
        result = self._result
        n = None if result.overview.is_empty else result.overview.n
        return state_chart(result.heads, measure, result.findings, model_name(result.run), n)

    def curve(self, measure: str = "separability", layer: int | None = None, head: int | None = None) -> OfflineChart:
        """A column against the size N of the top set, or against the length for columns that have no N.

        >>> result = attnscope.scan(length=64, progress=False)
        >>> (result.plot.curve("separability") | result.plot.curve("participation", 3, 5)).save("curves.svg")

        Parameters
        ----------
        measure
            A column of `.topn` (against N, at the longest length) or of `.rows` (against the length).
        layer, head
            One head, with the proved bounds where there are some. Default: the median over all heads, with the range
            from 5% to 95% of them.

        Returns
        -------
        OfflineChart
            An Altair chart, which a notebook displays without a network.
        """
        result = self._result
        if (layer is None) != (head is None):
            raise InputError("curve takes a layer and a head, or neither")
        one = None if layer is None or head is None else result.head(layer, head)
        place = None if one is None else one.place
        name = "all heads" if one is None else one.name
        if measure in columns.SET_NAMES:
            where = f", {overview.shown_rows(result.run)}"
            return _curve(against_n(result, measure, place), "n", "N", measure, name, where)
        if measure in columns.ROW_NAMES:
            return _curve(against_length(result, measure, place), "length", "Length (tokens)", measure, name)
        names = ", ".join((*columns.SET_NAMES, *columns.ROW_NAMES))
        raise InputError(f"no curve of {shown(measure)}; there are {names}")

    def weights(self, layer: int, head: int, top: int = 20) -> OfflineChart:
        """The largest weights of the last row of a head, with the tokens that they fall on.

        >>> attnscope.scan(length=64, progress=False).plot.weights(3, 5, top=10).save("weights.svg")

        Parameters
        ----------
        layer, head
            The head.
        top
            How many weights, at most 64.

        Returns
        -------
        OfflineChart
            An Altair chart, which a notebook displays without a network.
        """
        one = self._result.head(layer, head)
        table = one.weights.head(whole_number("top", top))
        if table.is_empty():
            raise InputError("this run has no weights over the text; scan again")
        names = [f"{key}: {visible_token(text)}" for key, text in table.select("key", "token").iter_rows()]
        bars = alt.Chart(data(table.with_columns(name=pl.Series(names)))).mark_bar(color=LINE)
        bars = bars.encode(
            x=alt.X("weight:Q", title="Weight", axis=axis(format="~%")),
            y=alt.Y("name:N", title="Key and token", sort=None, axis=axis(labelLimit=220)),
            tooltip=["key:Q", "token:N", alt.Tooltip("weight:Q", format=".4~g")],
        )
        title = f"{one.name}: the largest weights of row {table['position'][0]:,}"
        share = f"together {table['weight'].sum():.1%} of the weight; key 0 is the first token"
        return chart(title, share, [bars], height=_BAR * table.height)

    def pattern(self, layer: int, head: int, hide_first: bool = False) -> OfflineChart:
        """The attention pattern of a head: rows from top to bottom, runs of keys from left to right.

        >>> attnscope.scan(length=64, progress=False).plot.pattern(3, 5, hide_first=True).save("pattern.svg")

        Parameters
        ----------
        layer, head
            The head.
        hide_first
            Leave the first key out, and show what is left as shares of the remaining weight.

        Returns
        -------
        OfflineChart
            An Altair chart, which a notebook displays without a network.
        """
        one = self._result.head(layer, head)
        pattern = one.pattern
        keys, start, runs = pattern["keys_per_cell"][0], pattern["first_key"][0], len(pattern["weights"][0])
        rows = pattern["position"].to_list()
        label = "Share of the rest" if hide_first else "Weight"
        across = alt.Scale(nice=False, domain=[start, start + keys * runs])
        down = alt.Scale(nice=False, domain=[-1, max(rows)], reverse=True)
        marks = alt.Chart(data(pattern_cells(pattern, hide_first))).mark_rect()
        marks = marks.encode(
            x=alt.X("first:Q", title="Key", axis=axis(grid=False), scale=across),
            x2="end:Q",
            y=alt.Y("above:Q", title="Row", axis=axis(grid=False), scale=down),
            y2="position:Q",
            # The square root shows what is weak beside the few strong cells.
            color=alt.Color("weight:Q", scale=color_scale(type="sqrt", domainMin=0), legend=legend(label, format="~%")),
            tooltip=["position:Q", "first:Q", "end:Q", alt.Tooltip("weight:Q", format=".3~g")],
        )
        what = "without the first key" if hide_first else "the first key included"
        words = f"a cell is one row and {keys} key{'' if keys == 1 else 's'}, {what}"
        # Whole pixels for a cell: fractions leave seams.
        width, height = (count * max(1, round(_PATTERN / count)) for count in (runs, len(rows)))
        return chart(f"{one.name}: attention pattern", words, [marks], width, height)


class HeadPlots:
    """The charts of one head, those of `ScanResult.plot` without layer and head.

    >>> attnscope.scan(length=64, progress=False).head(3, 5).plot.pattern().save("pattern.svg")
    """

    def __init__(self, head: HeadResult) -> None:
        self._plots, self._place = head.result.plot, head.place

    def curve(self, measure: str = "separability") -> OfflineChart:
        """A column against N or length; see `ScanResult.plot.curve`."""
        return self._plots.curve(measure, *self._place)

    def weights(self, top: int = 20) -> OfflineChart:
        """The largest weights of its last row; see `ScanResult.plot.weights`."""
        return self._plots.weights(*self._place, top)

    def pattern(self, hide_first: bool = False) -> OfflineChart:
        """Its attention pattern; see `ScanResult.plot.pattern`."""
        return self._plots.pattern(*self._place, hide_first)


def _curve(table: pl.DataFrame, x: str, x_title: str, measure: str, name: str, where: str = "") -> OfflineChart:
    """A line with the range over heads, or of one head with its bounds."""
    label = columns.label(measure)
    steps = axis(values=table[x].to_list(), format="~g")
    base = alt.Chart(data(table)).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(type="log", nice=False), axis=steps)
    )
    height = alt.Y("value:Q", title=label, axis=axis(format=number_format(columns.COLUMNS[measure].style)))
    line = base.mark_line(color=LINE, point=alt.OverlayMarkDef(color=LINE)).encode(
        y=height, tooltip=[f"{x}:Q", alt.Tooltip("value:Q", title=label, format=".4~g")]
    )
    layers: list[alt.Chart] = []
    bounds = [bound for bound in BOUNDS.get(measure, ()) if bound in table.columns]
    bounds = [bound for bound in bounds if table[bound].is_not_null().any()]
    for bound in bounds:
        hint = [alt.Tooltip(f"{bound}:Q", format=".4~g")]
        dashed = base.mark_line(color=BOUND, strokeDash=[4, 3])
        layers.append(dashed.encode(y=alt.Y(f"{bound}:Q", title=label), tooltip=hint))
    words = "dashed: proved bounds" if bounds else "mean over windows"
    if "low" in table.columns:
        words = "median over heads; shaded: 5% to 95% of them"
        layers.append(base.mark_area(color=BAND, opacity=0.35).encode(y=alt.Y("low:Q", title=label), y2="high:Q"))
    return chart(f"{label}, {name}", words + where, [*layers, line])


Place = tuple[int, int]
"""Layer and head."""

BOUNDS = {name: (f"{name}_lower", f"{name}_upper") for name in ("separability", "distance")}
"""Proved bounds on a column."""

_KEYS = ["layer", "head"]


def against_n(result: ScanResult, measure: str, place: Place | None) -> pl.DataFrame:
    """`n` and `value`: of one head with its bounds, or the median over heads with `low` and `high` (5% and 95%).

    A head's value is its mean over the rows that represent it, at the longest length.
    """
    heads = result.overview.by_n().select(*_KEYS, "n", measure, *BOUNDS.get(measure, ()))
    return _over_heads(heads, "n", measure, place)


def against_length(result: ScanResult, measure: str, place: Place | None) -> pl.DataFrame:
    """The same with `length`, in tokens: the lengths that were measured, or for many rows the next power of two."""
    heads = result.overview.lengths.select(*_KEYS, "length", measure)
    return _over_heads(heads, "length", measure, place)


def _over_heads(heads: pl.DataFrame, by: str, measure: str, place: Place | None) -> pl.DataFrame:
    if place is not None:
        layer, head = place
        return heads.filter(layer=layer, head=head).drop(_KEYS).rename({measure: "value"}).sort(by)
    value = pl.col(measure)
    spread = {"value": value.median(), "low": value.quantile(0.05, "linear"), "high": value.quantile(0.95, "linear")}
    return heads.group_by(by).agg(**spread).sort(by)
