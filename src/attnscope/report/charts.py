"""The charts. Each figure is one Altair chart object: static SVG and PNG and the live view come from it."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from attnscope.report import overview

MEASURED, PROVED, PRINTED, RANDOM = "#0072b2", "#56b4e9", "#d55e00", "#009e73"  # Okabe-Ito

# The page's element for the list of measures.
CONTROLS = "controls"
_CLICKED = "clicked_head"


def overview_chart(rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any]) -> alt.VConcatChart:
    """The layer x head map, and distance and separability against N for all heads or the one clicked."""
    head = alt.selection_point(name=_CLICKED, fields=["layer", "head"], empty=True)
    by_n = overview.by_n(topn, run)
    curves = alt.hconcat(distance_chart(by_n, head), separability_chart(by_n, head), spacing=40)
    curves = curves.resolve_scale(color="independent")
    return alt.vconcat(head_map(rows, topn, run, head), curves, spacing=30).resolve_scale(color="independent")


def head_map(rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any], head: alt.Parameter) -> alt.Chart:
    """Every head as a cell, colored by a measure chosen from a list."""
    table = overview.heads(rows, topn, run)
    n = overview.usual_n(topn)
    labels = list(overview.HEAD_MEASURES.values())
    menu = alt.binding_select(
        options=list(overview.HEAD_MEASURES), labels=labels, name="Color the map by ", element=f"#{CONTROLS}"
    )
    measure = alt.param(name="measure", value="separability", bind=menu)
    count = table["head"].n_unique()
    cell = max(8, min(34, 900 // count))
    return (
        alt.Chart(_data(table))
        .transform_calculate(shown="datum[measure]")
        .mark_rect(stroke="white", strokeWidth=0.5, cursor="pointer")
        .encode(
            x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("layer:O", title="layer"),
            color=alt.Color("shown:Q", title=None, scale=alt.Scale(scheme="cividis")),
            opacity=alt.condition(head, alt.value(1.0), alt.value(0.35)),
            tooltip=[
                "layer:O",
                "head:O",
                *(
                    alt.Tooltip(f"{name}:Q", title=label, format=".3~g")
                    for name, label in overview.HEAD_MEASURES.items()
                ),
            ],
        )
        .add_params(measure, head)
        .properties(
            title=alt.Title(
                "Every head at a glance",
                subtitle=f"{overview.shown_rows(run)}, top {n}; click a head for its curves, double-click for all",
            ),
            width=cell * count,
            height=alt.Step(min(cell, 26)),
        )
    )


def distance_chart(by_n: pl.DataFrame, head: alt.Parameter) -> alt.LayerChart | alt.FacetChart:
    """Distance against N with its proved range, the printed bound, and what random sets give."""
    series = {
        "measured": ("distance", MEASURED),
        "printed bound": ("distance_bound_printed", PRINTED),
        "random set, printed": ("expected_printed", "#e69f00"),
    }
    bands = {
        "proved range": ("distance_lower", "distance_upper", PROVED),
        "random set": ("expected_lower", "expected_upper", RANDOM),
    }
    return _curves(
        by_n,
        head,
        series,
        bands,
        "Distance of the rest to the context",
        "distance, median over heads",
        log=True,
    )


def separability_chart(by_n: pl.DataFrame, head: alt.Parameter) -> alt.LayerChart | alt.FacetChart:
    """Separability against N with the proved range and the printed bounds."""
    series = {
        "measured": ("separability", MEASURED),
        "printed upper bound": ("separability_upper_printed", PRINTED),
        "printed lower bound": ("separability_lower_printed", "#e69f00"),
    }
    bands = {"proved range": ("separability_lower", "separability_upper", PROVED)}
    return _curves(by_n, head, series, bands, "Separability of the top set", "share, median over heads", log=False)


def _curves(
    by_n: pl.DataFrame,
    head: alt.Parameter,
    series: dict[str, tuple[str, str]],
    bands: dict[str, tuple[str, str, str]],
    title: str,
    label: str,
    *,
    log: bool,
) -> alt.LayerChart | alt.FacetChart:
    """Lines and bands against N over the chosen heads, with one legend."""
    columns = [name for name, _ in series.values()] + [edge for low, high, _ in bands.values() for edge in (low, high)]
    base = alt.Chart(_data(by_n.select("layer", "head", "n", *columns))).transform_filter(head)
    names = [*series, *bands]
    colors = [color for _, color in series.values()] + [color for *_, color in bands.values()]
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(domain=[0, 1], clamp=True)
    x = alt.X("n:Q", title="N, size of the top set", scale=alt.Scale(type="log", nice=False), axis=_axis(by_n["n"]))
    legend = alt.Legend(orient="bottom", columns=3, symbolOpacity=1)
    color = alt.Color("series:N", title=None, scale=alt.Scale(domain=names, range=colors), legend=legend)
    # Each layer's aggregates keep the names of their columns: Vega-Lite merges layers whose names agree.
    layers: list[Any] = []
    for name, (low, high, _) in bands.items():
        layers.append(
            base.transform_aggregate([_median(low), _median(high)], groupby=["n"])
            .transform_calculate(series=f"'{name}'")
            .mark_area(opacity=0.3, line={"strokeWidth": 0.5})
            .encode(x=x, y=alt.Y(f"{low}:Q", title=label, scale=scale), y2=f"{high}:Q", color=color)
        )
    for name, (column, _) in series.items():
        layers.append(
            base.transform_aggregate([_median(column)], groupby=["n"])
            .transform_calculate(series=f"'{name}'")
            .transform_filter(f"datum.{column} > 0" if log else f"isValid(datum.{column})")
            .mark_line(point=True, strokeDash=[1, 0] if name == "measured" else [5, 3])
            .encode(
                x=x,
                y=alt.Y(f"{column}:Q", title=label, scale=scale),
                color=color,
                tooltip=["series:N", "n:Q", alt.Tooltip(f"{column}:Q", title=name, format=".4~g")],
            )
        )
    return alt.layer(*layers).properties(title=title, width=400, height=260)


def _median(column: str) -> alt.AggregatedFieldDef:
    return alt.AggregatedFieldDef.from_dict({"op": "median", "field": column, "as": column})


def _axis(values: pl.Series) -> alt.Axis:
    return alt.Axis(values=sorted(values.unique().to_list()), labelOverlap=True)


def _data(table: pl.DataFrame) -> alt.InlineData:
    """The table as CSV inside the chart, five significant figures: a fifth of the bytes of JSON records."""
    numbers = table.with_columns(pl.selectors.float().round_sig_figs(5))
    types = dict.fromkeys(table.columns, "number")
    return alt.InlineData(values=numbers.write_csv(), format=alt.CsvDataFormat(type="csv", parse=types))
