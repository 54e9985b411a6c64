"""The words and charts of a comparison of normalizers."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import columns
from attnscope.errors import InputError, shown
from attnscope.report.terminal import short_path
from attnscope.results import html
from attnscope.results.words import counted, measured, shortened
from attnscope.store.tables import OWN, comparable, named

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.show.charts import OfflineChart
    from attnscope.studies.compare.comparing import Comparison

MEASURES = (
    "perplexity",
    "agreement",
    "kl",
    "separability",
    "distance_ratio",
    "entropy_ratio",
    "sink_weight",
    "support",
    "jacobian_norm",
    "time_ratio",
    "memory_ratio",
)
_RANKED = {"perplexity": False, "separability": True}  # in a repr: whether the largest comes first
_WORDS = {"swapped": "Swapped into every layer", "what-if": "On the model's own logits"}


def lines(result: Comparison) -> list[str]:
    """The repr: what was compared, perplexity and separability at the longest length, what to call next."""
    found = [f"Comparison: {_subject(result)}"]
    for mode in ("swapped", "what-if"):
        part = longest(result, mode)
        for measure, descending in _RANKED.items():
            known = (comparable(part) if measure == "separability" else part).filter(pl.col(measure).is_not_null())
            if known.height:
                ranked = known.sort(measure, descending=descending).select("name", measure).iter_rows()
                values = [f"{name} {measured(measure, value)}" for name, value in ranked]
                label = columns.label(measure, result.table["n"][0])
                found.append(f"{_WORDS[mode]}: {label} of {shortened(values, 6)}")
    charts = ".plot.capacity(), " if "swapped" in result.table["mode"] else ""
    return [*found, f'Next: .summary(), .table, {charts}.plot.curve("separability"), .show(), .save(folder)']


def body(result: Comparison) -> str:
    """The notebook output: one table for each mode, at the longest length."""
    parts = [html.heading("Comparison of normalizers", _subject(result))]
    for mode in ("swapped", "what-if"):
        part = longest(result, mode)
        if part.is_empty():
            continue
        kept = [name for name in MEASURES if part[name].is_not_null().any()]
        rows = [[line["name"], *(measured(name, line[name]) for name in kept)] for line in part.to_dicts()]
        parts.append(f"<h4>{_WORDS[mode]}, length {part['length'][0]:,}, N = {part['n'][0]}</h4>")
        parts.append(html.table(["Normalizer", *(columns.label(name) for name in kept)], rows))
    parts.append(html.calls(".summary()", ".table", ".plot.capacity()", '.plot.curve("separability")', ".show()"))
    return "".join(parts)


def print_summary(console: Console, result: Comparison, verbose: bool) -> None:
    """What `attnscope compare` prints."""
    from attnscope.studies.compare.printing import print_comparison

    print_comparison(console, result.table, result.run, verbose)


def pictures(result: Comparison) -> dict[str, Any]:
    """The charts of the page of `show`."""
    swapped = "swapped" in result.table["mode"]
    return {
        **({"Capacity against perplexity": result.plot.capacity()} if swapped else {}),
        "Separability": result.plot.curve("separability"),
    }


def longest(result: Comparison, mode: str) -> pl.DataFrame:
    """The lines of a mode at the longest length, with a column `name`."""
    return named(result.table).filter(pl.col("length") == pl.col("length").max(), mode=mode)


class ComparisonPlots:
    """The charts of a comparison."""

    def __init__(self, result: Comparison) -> None:
        self._result = result

    def capacity(self) -> Any:
        """Separability against perplexity at the longest length, one mark for each normalizer (mode `swapped`).

        >>> comparison = attnscope.compare(normalizers="sparsemax", lengths=[16], top_n=5, progress=False)
        >>> comparison.plot.capacity().save("capacity.svg")

        Returns
        -------
        Chart
            An Altair chart, which a notebook displays without a network.
        """
        from attnscope.show.charts import offline
        from attnscope.studies.compare import chart as capacity

        if "swapped" not in self._result.table["mode"]:
            raise InputError("capacity needs the mode swapped; compare with modes=['swapped'] or both")
        return offline(capacity.figure(self._result.table).chart(titles=True))

    def curve(self, measure: str = "separability", mode: str | None = None) -> OfflineChart:
        """A column against the length, one line for each normalizer.

        >>> options = {"lengths": [16, 32], "top_n": 5, "modes": "what-if", "progress": False}
        >>> attnscope.compare(normalizers="sparsemax", **options).plot.curve("entropy_ratio").save("curve.svg")

        Parameters
        ----------
        measure
            A column of `.table` with numbers.
        mode
            "swapped" or "what-if". Default: swapped if it was measured.

        Returns
        -------
        OfflineChart
            An Altair chart, which a notebook displays without a network.
        """
        import altair as alt

        from attnscope.show.charts import BLACK, PALETTE, axis, chart, data, legend, number_format

        table = named(self._result.table)
        modes = table["mode"].unique(maintain_order=True).to_list()
        mode = mode or ("swapped" if "swapped" in modes else modes[0])
        if measure not in MEASURES or mode not in modes:
            raise InputError(
                f"no curve of {shown(measure)} in mode {shown(mode)}; there are {', '.join(MEASURES)} in mode "
                f"{' and '.join(modes)}"
            )
        lines = table.filter(mode=mode).select("name", "length", value=pl.col(measure))
        label = columns.label(measure, table["n"][0])
        names = lines["name"].unique(maintain_order=True).to_list()
        others = [name for name in names if name != OWN]
        palette = dict(zip(others, cycle(PALETTE), strict=False)) | {OWN: BLACK}
        colors = alt.Scale(domain=names, range=[palette[name] for name in names])
        steps = axis(values=lines["length"].unique().sort().to_list(), format="~g")
        base = alt.Chart(data(lines)).encode(
            x=alt.X("length:Q", title="Length (tokens)", scale=alt.Scale(type="log", nice=False), axis=steps),
            y=alt.Y("value:Q", title=label, axis=axis(format=number_format(columns.COLUMNS[measure].style))),
            color=alt.Color("name:N", scale=colors, legend=legend(None)),
            tooltip=["name:N", "length:Q", alt.Tooltip("value:Q", title=label, format=".4~g")],
        )
        words = f"{short_path(self._result.run['model'])}; {_WORDS[mode][0].lower()}{_WORDS[mode][1:]}"
        # The model itself is dashed and on top: softmax gives the same line.
        own, rest = (base.transform_filter(f"datum.name {sign} '{OWN}'") for sign in ("===", "!=="))
        return chart(label, words, [rest.mark_line(point=True), own.mark_line(point=True, strokeDash=[5, 4])])


def _subject(result: Comparison) -> str:
    run, settings = result.run, result.run["settings"]
    model, text = short_path(run["model"]), short_path(run["text"]["source"])
    return (
        f"{model}, {counted(len(run['normalizers']), 'normalizer')} on {text}, "
        f"{counted(settings['windows'], 'window')} of {settings['length']:,} tokens"
    )
