"""The words and charts of a prediction for longer inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import columns
from attnscope.errors import InputError, shown
from attnscope.report.terminal import short_path
from attnscope.results import html
from attnscope.results.heat_map import Cell, head_map
from attnscope.results.words import counted, measured
from attnscope.store.tables import OWN
from attnscope.studies.horizon.extended_row import MEASURES
from attnscope.studies.horizon.prediction import MEANINGS, VERDICTS, with_mass_kept
from attnscope.studies.horizon.printing import LOOKS, warnings

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.show.charts import OfflineChart
    from attnscope.studies.horizon.result import Horizon

_SHOWN = ("mass_kept", "half_length", "reach")


def lines(result: Horizon) -> list[str]:
    """The repr: what was predicted from what, the finding, the back-test, what to call next."""
    found = [f"Horizon: {_subject(result)}", f"Verdict: {result.run['finding']['title']}", _trust(result)]
    found += warnings(result.run)
    return [*found, "Next: .summary(), .heads, .table, .plot.map(), .plot.curve(layer, head), .show(), .save(folder)"]


def body(result: Horizon) -> str:
    """The notebook output: the finding, and the map of verdicts."""
    finding = result.run["finding"]
    own = _numbers(result).filter(normalizer=OWN)
    cells = {
        (line["layer"], line["head"]): Cell(
            LOOKS[line["verdict"]][1],
            f"{columns.head_name(line['layer'], line['head'])} {line['verdict']}: keeps "
            f"{measured('mass_kept', line['mass_kept'])}",
            LOOKS[line["verdict"]][0],
        )
        for line in own.iter_rows(named=True)
    }
    key = "".join(
        f'<div><span class="key" style="background:{LOOKS[name][1]}"></span>{name}: {MEANINGS[name]}</div>'
        for name in VERDICTS
        if (own["verdict"] == name).any()
    )
    drawn = head_map(cells, "Map of the heads: what becomes of their top-5 mass")
    parts = [
        html.heading("Horizon", _subject(result)),
        f'<p class="verdict">{html.escape(finding["title"])}.</p><p>{html.escape(finding["sentence"])}</p>',
        *(f"<p><b>{html.escape(warning)}</b></p>" for warning in warnings(result.run)),
        f'<div class="maps"><div>{drawn}<div>{key}</div></div></div>',
        f'<p class="soft">{html.escape(_trust(result))}</p>',
        html.calls(".summary()", ".heads", ".plot.map()", ".plot.curve(layer, head)", ".show()"),
    ]
    return "".join(parts)


def print_summary(console: Console, result: Horizon, verbose: bool) -> None:
    """What `attnscope horizon` prints."""
    from attnscope.studies.horizon.printing import print_horizon

    print_horizon(console, result.table, result.heads, result.run, verbose)


def pictures(result: Horizon) -> dict[str, Any]:
    """The charts of the page of `show`."""
    first = result.run["finding"]["heads"] or result.heads.select("layer", "head").head(1).rows()
    layer, head = first[0]
    return {"Mass kept": result.plot.map(), columns.head_name(layer, head): result.plot.curve(layer, head)}


class HorizonPlots:
    """The charts of a prediction."""

    def __init__(self, result: Horizon) -> None:
        self._result = result

    def map(self, measure: str = "mass_kept", normalizer: str = OWN) -> OfflineChart:
        """A cell for each head: "mass_kept", "half_length" or "reach"; gray where there is none.

        Parameters
        ----------
        measure
            Which number.
        normalizer
            The model's own ("own"), or one of the what-ifs.
        """
        import altair as alt

        from attnscope.show.charts import axis, chart, color_scale, data, legend, number_format

        if measure not in _SHOWN:
            raise InputError(f"no map of {shown(measure)}; there are {', '.join(_SHOWN)}")
        lines = self._of(normalizer).select("layer", "head", "verdict", value=pl.col(measure))
        declared = columns.COLUMNS[measure]
        scale = color_scale(domain=[0, 1], clamp=True) if declared.style == "share" else color_scale(type="log")
        cells = (
            alt.Chart(data(lines))
            .mark_rect()
            .encode(
                x=alt.X("head:O", title="Head", axis=axis(labelAngle=0)),
                y=alt.Y("layer:O", title="Layer", axis=axis()),
                color=alt.Color(
                    "value:Q",
                    scale=scale,
                    legend=legend(declared.label(), format=number_format(declared.style)),
                ),
                tooltip=[
                    "layer:O",
                    "head:O",
                    "verdict:N",
                    alt.Tooltip("value:Q", title=declared.label(), format=".4~g"),
                ],
            )
        )
        return chart(declared.label(), _subject(self._result), [cells])

    def curve(self, layer: int, head: int, measure: str = "top5") -> OfflineChart:
        """A measure of one head against the length, with its 90% interval; what-ifs as dashed lines.

        Parameters
        ----------
        layer, head
            Which head, both counted from 0.
        measure
            "top5", "participation", "entropy_ratio" or "max_weight".
        """
        import altair as alt

        from attnscope.show.charts import BAND, BOUND, LINE, PALETTE, axis, chart, data, legend

        table = self._result.table.filter(layer=layer, head=head, measure=measure)
        if measure not in MEASURES or table.is_empty():
            name = columns.head_name(layer, head) if isinstance(layer, int) and isinstance(head, int) else "that head"
            raise InputError(f"no curve of {shown(measure)} for {name}; measures are {', '.join(MEASURES)}")
        own, others = table.filter(normalizer=OWN), table.filter(pl.col("normalizer") != OWN)
        steps = axis(values=own["length"].to_list(), format="~g")
        x = alt.X("length:Q", title="Length (tokens)", scale=alt.Scale(type="log", nice=False), axis=steps)
        label = "Top-5 mass" if measure == "top5" else columns.label(measure)
        y = alt.Y("predicted:Q", title=label, axis=axis())
        base = alt.Chart(data(own)).encode(x=x)
        beyond = base.transform_filter(f"datum.length >= {self._result.run['settings']['length']}")
        layers = [
            base.mark_area(color=BAND, opacity=0.3).encode(y=alt.Y("lower:Q", title=label), y2="upper:Q"),
            base.mark_line(color=LINE, point=True).encode(y=y),
            beyond.mark_line(color="white", strokeDash=[4, 4]).encode(y=y),
        ]
        if others.height:
            names = others["normalizer"].unique(maintain_order=True).to_list()
            palette = [PALETTE[1 + i % (len(PALETTE) - 1)] for i in range(len(names))]
            color = alt.Color("normalizer:N", scale=alt.Scale(domain=names, range=palette), legend=legend("What if"))
            layers.append(alt.Chart(data(others)).mark_line(strokeDash=[2, 3]).encode(x=x, y=y, color=color))
        if "measured" in own.columns:
            checked = alt.Chart(data(own.filter(pl.col("measured").is_not_null())))
            layers.append(checked.mark_point(color=BOUND, filled=True, size=60).encode(x=x, y="measured:Q"))
        title = f"{columns.head_name(layer, head)}: {label}"
        return chart(title, _subject(self._result), layers)

    def _of(self, normalizer: str) -> pl.DataFrame:
        found = _numbers(self._result).filter(normalizer=normalizer)
        if found.is_empty():
            names = ", ".join(self._result.heads["normalizer"].unique(maintain_order=True))
            raise InputError(f"no prediction for {shown(normalizer)}; there are {names}")
        return found


def _numbers(result: Horizon) -> pl.DataFrame:
    return with_mass_kept(result.heads, result.table, result.run["settings"])


def _trust(result: Horizon) -> str:
    found = result.run["back_test"][OWN]
    error = found["errors"]["prediction"]["top5"]
    words = (
        f"Back-test, {found['to']:,} tokens from {found['from']:,}: error of the top-5 mass {error['median']:.3f} in "
        f"the median head, 90th percentile {error['p90']:.3f}"
    )
    checked = result.run["check"].get(OWN)
    if checked:
        last = checked["lengths"][-1]
        error = last["errors"]["prediction"]["top5"]
        words += f"; check at {last['length']:,}: {error['median']:.3f} and {error['p90']:.3f}"
    return words


def _subject(result: Horizon) -> str:
    run, settings = result.run, result.run["settings"]
    return (
        f"{short_path(run['model']['name'])} to {settings['to']:,} tokens, predicted from "
        f"{counted(settings['windows'], 'window')} of {settings['length']:,} of {short_path(run['text']['source'])}"
    )
