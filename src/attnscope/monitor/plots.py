"""Charts of a training run: measures of heads against the step, maps of all heads at a step, the loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from attnscope import columns
from attnscope.columns import head_name
from attnscope.diagnosis.states import limit_words
from attnscope.errors import InputError, shown
from attnscope.intervals import evenly_spaced
from attnscope.monitor.page import measure_names, with_parameters
from attnscope.show.charts import (
    BAND,
    BOUND,
    LINE,
    PALETTE,
    OfflineChart,
    axis,
    chart,
    data,
    legend,
    map_of_heads,
    number_format,
)
from attnscope.show.numbers import counted, model_name

if TYPE_CHECKING:
    from attnscope.monitor.training_run import TrainingRun

_MOST_POINTS = 1_000  # of a line
_STEPS = axis(labelFlush=False, tickCount=6)


class TrainingPlots:
    """The charts of a training run. A head is given by layer and head, both counted from 0."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._table = with_parameters(run.heads, run.parameters)

    def curve(self, measure: str = "entropy_ratio", heads: Iterable[tuple[int, int]] = ()) -> OfflineChart:
        """A measure against the step: of some heads, before the range over all of them.

        Parameters
        ----------
        measure
            A column of `.heads` with numbers, or a parameter of the normalizers.
        heads
            Pairs of layer and head, e.g. `[(3, 5), (0, 1)]`; alarms of these heads are marked. Default: none, and the
            median over all heads.
        """
        self._check(measure)
        chosen = [self._known_head(head) for head in heads]
        value = pl.col(measure)
        over = (
            self._table.filter(value.is_finite())
            .group_by("step")
            .agg(value.median(), low=value.min(), high=value.max())
        )
        over = _thinned(over.sort("step"))
        x = alt.X("step:Q", title="Step", axis=_STEPS, scale=alt.Scale(nice=False))
        label = _label(measure, self._run)
        declared = columns.COLUMNS.get(measure)
        y_axis = axis(format=number_format(declared.style if declared else "number"))
        band = alt.Chart(data(over)).mark_area(color=BAND, opacity=0.3)
        layers = [band.encode(x=x, y=alt.Y("low:Q", title=label, axis=y_axis), y2="high:Q")]
        if not chosen:
            line = alt.Chart(data(over)).mark_line(color=LINE)
            layers.append(line.encode(x=x, y=alt.Y(f"{measure}:Q", title=label), tooltip=["step:Q", f"{measure}:Q"]))
            return chart(f"{label}, all heads", "median over heads; shaded: their whole range", layers)
        names = [head_name(*place) for place in chosen]
        lines = pl.concat(
            _thinned(self._table.filter(layer=layer, head=head).select("step", measure)).with_columns(
                name=pl.lit(head_name(layer, head))
            )
            for layer, head in chosen
        )
        color = alt.Color("name:N", scale=alt.Scale(domain=names, range=list(PALETTE)), legend=legend(None), sort=names)
        drawn = alt.Chart(data(lines)).mark_line()
        layers.append(
            drawn.encode(
                x=x, y=alt.Y(f"{measure}:Q", title=label), color=color, tooltip=["name:N", "step:Q", f"{measure}:Q"]
            )
        )
        alarms = self._run.alarms.join(
            pl.DataFrame(chosen, schema={"layer": pl.Int32, "head": pl.Int32}, orient="row"), on=["layer", "head"]
        )
        words = "shaded: the range over all heads"
        if not alarms.is_empty():
            words += "; dashed: an alarm of one of these heads"
            rules = alt.Chart(data(alarms.select("step", "kind", "value", "limit", "advice")))
            layers.append(
                rules.mark_rule(color=BOUND, strokeDash=[4, 3]).encode(x=x, tooltip=["step:Q", "kind:N", "advice:N"])
            )
        return chart(label, words, layers)

    def map(self, measure: str = "entropy_ratio", step: int | None = None) -> OfflineChart:
        """A cell for each head, colored by a measure at one step.

        Parameters
        ----------
        measure
            A column of `.heads` with numbers, or a parameter of the normalizers.
        step
            A measured step. Default: the last.
        """
        self._check(measure)
        steps = self._run.steps
        wanted = steps[-1] if step is None else step
        if wanted not in steps:
            near = min(steps, key=lambda one: abs(one - wanted)) if isinstance(wanted, int) else steps[-1]
            raise InputError(f"step {shown(step)} was not measured; the nearest is {near} (.steps has all)")
        table = self._table.filter(step=wanted).select("layer", "head", *measure_names(self._table))
        where = f"{model_name(self._run.run)}, step {wanted:,}"
        numbers = {"n": self._run.run["settings"].get("top_n"), **limit_words({})}
        return map_of_heads(table, measure, where, numbers)

    def scalar(self, name: str = "loss") -> OfflineChart:
        """A number of the whole model against the step, e.g. the loss.

        Parameters
        ----------
        name
            A name of `.scalars`.
        """
        known = self._run.scalars["name"].unique(maintain_order=True).to_list()
        if name not in known:
            raise InputError(f"no {shown(name)} was given to the monitor; there is {', '.join(known) or 'nothing'}")
        points = _thinned(self._run.scalars.filter(name=name))
        line = alt.Chart(data(points)).mark_line(color=LINE)
        y = alt.Y("value:Q", title=name.capitalize(), axis=axis(), scale=alt.Scale(zero=False))
        drawn = line.encode(x=alt.X("step:Q", title="Step", axis=_STEPS), y=y, tooltip=["step:Q", "value:Q"])
        return chart(name.capitalize(), counted(points.height, "value"), [drawn])

    def _check(self, measure: str) -> None:
        offered = measure_names(self._table)
        if self._table.is_empty():
            raise InputError("no step was measured yet")
        if measure not in offered:
            raise InputError(f"no measure {shown(measure)}; there are {', '.join(offered)}")

    def _known_head(self, head: tuple[int, int]) -> tuple[int, int]:
        try:
            layer, number = (int(part) for part in head)
        except (TypeError, ValueError):
            raise InputError(f"heads are pairs of layer and head, e.g. [(3, 5)]; received {shown(head)}") from None
        if self._table.filter(layer=layer, head=number).is_empty():
            layers, most = (int(self._table[name].sort()[-1]) for name in ("layer", "head"))
            raise InputError(f"no head {head_name(layer, number)}: layers go to {layers}, heads to {most}")
        return layer, number


def _label(measure: str, run: TrainingRun) -> str:
    return columns.label(measure, run.run["settings"].get("top_n")) if measure in columns.COLUMNS else measure


def _thinned(table: pl.DataFrame) -> pl.DataFrame:
    """At most as many lines as a chart can show."""
    return table[list(evenly_spaced(table.height, _MOST_POINTS))]
