"""The common style of charts, and their display without a network.

A chart is an Altair chart like any other: `chart.properties(width=400)`, `chart.save("map.svg")`, `chart_1 | chart_2`.
In a notebook Altair's own display loads its script from the network; these charts are displayed as SVG, drawn by
vl-convert, or by the notebook's own Vega-Lite where it has one. `alt.renderers.enable(...)` decides if it was called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import altair as alt
import polars as pl

from attnscope import columns
from attnscope.errors import InputError, shown
from attnscope.show import palette

LABEL, TITLE = 11, 12  # pixels
_CELL = 22  # pixels of a head in a map
LINE, BAND, BOUND = palette.BLUE, palette.SKY, palette.RED
PALETTE, BLACK = palette.SERIES, palette.BLACK
_MIME_TYPE = "application/vnd.vegalite.v6+json"


class _Offline(alt.TopLevelMixin):
    """A chart that a notebook displays without a network."""

    def _repr_mimebundle_(self, *args: Any, **options: Any) -> Any:
        if alt.renderers.active != "default":
            return super()._repr_mimebundle_(*args, **options)
        import vl_convert

        content = self.to_dict()
        return {_MIME_TYPE: content, "image/svg+xml": vl_convert.vegalite_to_svg(content), "text/plain": repr(self)}

    def __or__(self, other: Any) -> Any:
        return offline(super().__or__(other))

    def __and__(self, other: Any) -> Any:
        return offline(super().__and__(other))

    def __add__(self, other: Any) -> Any:
        return offline(super().__add__(other))

    def __repr__(self) -> str:
        title = self.to_dict(validate=False).get("title", "")
        text = title["text"] if isinstance(title, dict) else title
        return f"Altair chart{f' {text!r}' if text else ''}; .save('chart.svg') writes it to a file"


class OfflineChart(_Offline, alt.LayerChart):
    """A layered chart that a notebook displays without a network."""


@cache
def _offline_kind(kind: Any) -> Any:
    return kind if issubclass(kind, _Offline) else type(f"Offline{kind.__name__}", (_Offline, kind), {})


def offline(made: Any) -> Any:
    """The same chart, of any kind, displayed without a network."""
    copied = made.copy(deep=False)
    kind: Any = type(made)
    object.__setattr__(copied, "__class__", _offline_kind(kind))  # altair takes attributes for properties of the chart
    return copied


def chart(title: str, subtitle: str, layers: Iterable[alt.Chart], width: int = 420, height: int = 280) -> OfflineChart:
    """Layers with a title and a line below it."""
    heading = alt.Title(title, subtitle=subtitle, fontSize=14, subtitleFontSize=LABEL, anchor="start")
    return OfflineChart(layer=list(layers)).properties(title=heading, width=width, height=height)


def axis(**options: Any) -> alt.Axis:
    """An axis with text of a readable size."""
    return alt.Axis(**{"labelFontSize": LABEL, "titleFontSize": TITLE, "labelOverlap": True} | options)


def legend(title: str | None, **options: Any) -> alt.Legend:
    """A legend with text of a readable size."""
    return alt.Legend(**{"title": title, "labelFontSize": LABEL, "titleFontSize": TITLE, "labelLimit": 300} | options)


def color_scale(**options: Any) -> alt.Scale:
    """The color scale of numbers: cividis, readable with any color vision."""
    return alt.Scale(scheme="cividis", **options)


def number_format(style: str) -> str:
    """How numbers of a kind are written on axes and legends."""
    return "%" if style == "share" else ",.3~r"


def data(table: pl.DataFrame) -> alt.InlineData:
    """The lines of a table; numbers that are not finite are missing."""
    finite = pl.when(pl.selectors.float().is_finite()).then(pl.selectors.float())
    return alt.InlineData(values=table.with_columns(finite.name.keep()).to_dicts())


def map_of_heads(
    heads: pl.DataFrame, measure: str, words: str, numbers: Mapping[str, Any], states: Mapping[str, str] | None = None
) -> OfflineChart:
    """A cell for each line of `heads`, colored by a column with numbers, or by its `state`.

    Parameters
    ----------
    heads
        One line for each head: `layer`, `head`, and columns with numbers.
    measure
        The column.
    words
        What the heads are of.
    numbers
        What the meaning of a column names, e.g. the size `n` of the top set.
    states
        The color of each state, if there are states.
    """
    offered = [] if states is None else ["state"]
    offered += [name for name, kind in heads.schema.items() if kind.is_float()]
    if measure not in offered:
        why = " without a diagnosis" if measure == "state" else ""
        raise InputError(f"no map of {shown(measure)}{why}; there are {', '.join(offered)}")
    names = [columns.head_name(layer, head) for layer, head in heads.select("layer", "head").iter_rows()]
    table = heads.select("layer", "head", measure).with_columns(name=pl.Series(names, dtype=pl.String))
    declared = columns.COLUMNS.get(measure)
    hint = f"{measure}:N" if measure == "state" else alt.Tooltip(f"{measure}:Q", format=".4~g")
    if states is not None and measure == "state":
        scale = alt.Scale(domain=list(states), range=list(states.values()))
        color = alt.Color("state:N", scale=scale, legend=legend(None))
    else:
        # What lies between 0 and 1 by nature has the same colors in every model.
        domain: Any = [0, 1] if declared and declared.fixed else alt.Undefined
        key = legend(None, format=number_format(declared.style if declared else "number"))
        color = alt.Color(f"{measure}:Q", scale=color_scale(domain=domain), legend=key)
    cells = alt.Chart(data(table)).mark_rect(stroke="white", strokeWidth=1)
    cells = cells.encode(
        x=alt.X("head:O", title="Head", axis=axis(labelAngle=0)),
        y=alt.Y("layer:O", title="Layer", axis=axis()),
        color=color,
        tooltip=["name:N", hint],
    )
    width, height = (_CELL * max(4, heads[way].n_unique()) for way in ("head", "layer"))
    meaning = declared.meaning.format_map(numbers) if declared else ""
    title = columns.label(measure, numbers.get("n")) if declared else measure.replace("_", " ").capitalize()
    return chart(title, "; ".join(filter(None, (words, meaning))), [cells], width, height)
