"""What a prediction for longer inputs shows: the finding, a map of verdicts, curves, back-test and check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope.columns import COLUMNS, HORIZON, head_name, label
from attnscope.errors import InputError, shown
from attnscope.scanning.overview import explained_measure
from attnscope.scanning.page_data import rounded_columns
from attnscope.show.blocks import Block, Cell, Chart, Heading, HeadMap, Key, Note, Table, Verdict
from attnscope.show.numbers import measured, number, number_range, short_path
from attnscope.show.palette import BLUE, ORANGE, RED, UNKNOWN
from attnscope.store.tables import OWN
from attnscope.studies.horizon.extended_row import MEASURES
from attnscope.studies.horizon.prediction import MEANINGS, VERDICTS, with_mass_kept

if TYPE_CHECKING:
    from attnscope.show.charts import OfflineChart

    Horizon = Any  # of result.py, which imports this file

_LOOKS = {"holds": ("H", BLUE), "thins": ("T", ORANGE), "diluted": ("D", RED), "undecided": ("?", UNKNOWN)}
_REPEATED = 0.05  # share of repeated runs of tokens from which on the run says so
_FIRST = 5  # heads that lose half first
_MAPPED = ("mass_kept", "half_length", "reach")
_ERRORS = "median and 90th percentile over heads of |ln(predicted / measured)|; of the entropy ratio, the difference"


def blocks(result: Horizon, verbose: bool = False) -> list[Block]:
    """The finding, the map and the tables; if `verbose`, errors of all measures and normalizers, and all heads."""
    run, settings, finding = result.run, result.run["settings"], result.run["finding"]
    heads = with_mass_kept(result.heads, result.table, settings)
    own = heads.filter(normalizer=OWN)
    found: list[Block] = [
        Heading(short_path(run["model"]["name"]), f"horizon to {_where(run)}"),
        Verdict(f"{finding['title']}."),
        *(Note(warning, "strong") for warning in _warnings(run)),
        Note(finding["sentence"]),
        _verdict_map(own),
        _by_length(result.table.filter(normalizer=OWN), settings),
    ]
    losing = own.filter(pl.col("verdict").is_in(["thins", "diluted"])).sort("half_length")
    if losing.height:
        found.append(_first_to_lose(losing.head(own.height if verbose else _FIRST), settings))
    if heads["normalizer"].n_unique() > 1:
        found.append(_what_if(heads))
    measures = MEASURES if verbose else MEASURES[:1]
    for name in run["back_test"] if verbose else [OWN]:
        found.append(_back_test(name, run["back_test"][name], measures))
        if name in run["check"]:
            found += _check(name, run["check"][name], measures, settings)
    layer, head = next(iter(finding["heads"] or own.select("layer", "head").rows()))
    found.append(Chart("Mass kept", result.plot.map))
    found.append(Chart(head_name(layer, head), lambda: result.plot.curve(layer, head)))
    return found


def _where(run: Mapping[str, Any]) -> str:
    settings = run["settings"]
    windows = f"{settings['windows']} x {settings['length']:,} tokens of {short_path(run['text']['source'])}"
    return f"{settings['to']:,} tokens, predicted from {windows}"


def _warnings(run: dict[str, Any]) -> list[str]:
    """What makes this prediction less certain than others."""
    repeated = run["repeated_share"]
    if repeated <= _REPEATED:
        return []
    return [
        f"The text repeats itself: {repeated:.0%} of the runs of 16 tokens stand in the {run['settings']['to']:,} "
        "tokens before them already. Heads that look for copies find more of them in longer inputs than predicted."
    ]


def _verdict_map(own: pl.DataFrame) -> HeadMap:
    cells = {}
    for line in own.iter_rows(named=True):
        mark, color = _LOOKS[line["verdict"]]
        words = f"{head_name(line['layer'], line['head'])} {line['verdict']}: keeps "
        cells[line["layer"], line["head"]] = Cell(color, mark, words + measured("mass_kept", line["mass_kept"]))
    counts = {name: int((own["verdict"] == name).sum()) for name in VERDICTS}
    keys = [Key(_LOOKS[name][1], _LOOKS[name][0], name, MEANINGS[name], n) for name, n in counts.items() if n]
    return HeadMap("Map", cells, "what becomes of the top-5 mass", keys)


def _by_length(curves: pl.DataFrame, settings: dict[str, Any]) -> Table:
    medians = curves.group_by("length", "measure").agg(pl.col("predicted").median())
    wide = medians.pivot("measure", index="length", values="predicted").sort("length")
    rows = []
    for line in wide.iter_rows(named=True):
        where = "measured" if line["length"] <= settings["length"] else "predicted"
        rows.append([f"{line['length']:>7,} {where}", *(_value(name, line[name]) for name in MEASURES)])
    return Table(["Length", *map(_label, MEASURES)], rows, "By length, median over heads")


def _first_to_lose(losing: pl.DataFrame, settings: dict[str, Any]) -> Table:
    half, kept, reach = "half_length", "mass_kept", "reach"
    rows = [
        [
            head_name(line["layer"], line["head"]),
            line["verdict"],
            f"{line[half]:,.0f}",
            measured(kept, line[kept]),
            number_range(line[f"{kept}_lower"], line[f"{kept}_upper"], "share"),
            f"> {settings['to']:,}" if line[reach] is None else f"{line[reach]:,.0f}",
        ]
        for line in losing.iter_rows(named=True)
    ]
    headings = ["Head", "Verdict", label(half), label(kept), "90% interval", label(reach)]
    title = f"The first to lose half of their top-5 mass at {settings['base']:,} tokens"
    return Table(headings, rows, title, texts=(0, 1))


def _what_if(heads: pl.DataFrame) -> Table:
    rows = []
    for (name,), part in heads.group_by(["normalizer"], maintain_order=True):
        counts = [str(int((part["verdict"] == verdict).sum())) for verdict in VERDICTS]
        kept: Any = part["mass_kept"].median()
        rows.append([str(name), *counts, measured("mass_kept", kept)])
    title = "What if, on the model's own logits: heads by verdict"
    return Table(["Normalizer", *VERDICTS, "median of mass kept"], rows, title)


def _back_test(name: str, found: dict[str, Any], measures: Sequence[str]) -> Table:
    title = f"Back-test{_of(name)}: {found['to']:,} tokens predicted from {found['from']:,}, on the same windows"
    return _error_table([{"length": found["to"], "errors": found["errors"]}], measures, title, _ERRORS)


def _check(name: str, found: dict[str, Any], measures: Sequence[str], settings: dict[str, Any]) -> list[Block]:
    title = f"Check{_of(name)}: the model run on {settings['check_windows']} fresh inputs of {settings['to']:,} tokens"
    verdicts = found["verdicts"]
    share = number(verdicts["decided"] / verdicts["heads"], "share")
    right = f"; {verdicts['right'] / verdicts['decided']:.1%} of those are right" if verdicts["decided"] else ""
    words = f"Verdicts: {verdicts['decided']} of {verdicts['heads']} heads ({share}) are decided{right}."
    note = "covered: share of heads whose measured value lies in the 90% interval"
    return [_error_table(found["lengths"], measures, title, note), Note(words)]


def _of(name: str) -> str:
    return "" if name == OWN else f" of {name}"


def _error_table(lengths: list[dict[str, Any]], measures: Sequence[str], title: str, note: str) -> Table:
    """A line for each length and measure: errors of the prediction and of the baselines, and coverage."""
    covered = ["Covered"] if "coverage" in lengths[0] else []
    rows = []
    for at in lengths:
        for measure in measures:
            errors = (at["errors"][guess][measure] for guess in ("prediction", "no_change", "power_law"))
            cells = [f"{each['median']:.3f}  {each['p90']:.3f}" for each in errors]
            cells += [number(at["coverage"][measure], "share")] if covered else []
            rows.append([f"{at['length']:,}", _label(measure), *cells])
    headings = ["Length", "Error of", "Prediction", "No change", "Power law", *covered]
    return Table(headings, rows, title, texts=(1,), notes=(note,))


def _label(measure: str) -> str:
    return "Top-5 mass" if measure == "top5" else label(measure)


def _value(measure: str, value: float | None) -> str:
    return number(value, "share") if measure == "top5" else measured(measure, value)


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

        if measure not in _MAPPED:
            raise InputError(f"no map of {shown(measure)}; there are {', '.join(_MAPPED)}")
        lines = self._of(normalizer).select("layer", "head", "verdict", value=pl.col(measure))
        declared = COLUMNS[measure]
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
        return chart(declared.label(), _where(self._result.run), [cells])

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
            name = head_name(layer, head) if isinstance(layer, int) and isinstance(head, int) else "that head"
            raise InputError(f"no curve of {shown(measure)} for {name}; measures are {', '.join(MEASURES)}")
        own, others = table.filter(normalizer=OWN), table.filter(pl.col("normalizer") != OWN)
        steps = axis(values=own["length"].to_list(), format="~g")
        x = alt.X("length:Q", title="Length (tokens)", scale=alt.Scale(type="log", nice=False), axis=steps)
        label = _label(measure)
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
        title = f"{head_name(layer, head)}: {label}"
        return chart(title, _where(self._result.run), layers)

    def _of(self, normalizer: str) -> pl.DataFrame:
        result = self._result
        heads = with_mass_kept(result.heads, result.table, result.run["settings"])
        found = heads.filter(normalizer=normalizer)
        if found.is_empty():
            names = ", ".join(self._result.heads["normalizer"].unique(maintain_order=True))
            raise InputError(f"no prediction for {shown(normalizer)}; there are {names}")
        return found


_CURVE_NUMBERS = 150_000  # that a page can hold


def horizon_data(table: pl.DataFrame, heads: pl.DataFrame, run: dict[str, Any]) -> dict[str, Any]:
    """The horizon of every head for the page; curves of what-ifs as far as there is room."""
    settings = run["settings"]
    names = [column.name for column in HORIZON]
    own = with_mass_kept(heads, table, settings).filter(normalizer=OWN)
    numbers = {"to": f"{settings['to']:,}", "base": f"{settings['base']:,}"}
    curves = table.filter(measure="top5").with_columns(
        measured=pl.col("measured") if "measured" in table.columns else pl.lit(None, pl.Float64)
    )
    lengths = curves["length"].unique().sort().to_list()
    room = max(1, _CURVE_NUMBERS // (own.height * len(lengths) * 4))
    labels = [OWN, *(label for label in heads["normalizer"].unique(maintain_order=True) if label != OWN)][:room]
    windows = f"{settings['windows']} windows of {settings['length']:,} tokens spread over the text"
    return {
        "heads": rounded_columns(own.select("layer", "head", "verdict", *names)),
        "measures": {name: explained_measure(name, None, numbers) for name in names},
        "source": f"prediction up to {settings['to']:,} tokens from {windows}",
        "settings": settings,
        "lengths": lengths,
        "curves": {
            label: rounded_columns(
                curves.filter(normalizer=label)
                .sort("layer", "head", "length")
                .select("predicted", "lower", "upper", "measured")
            )
            for label in labels
        },
        "finding": run["finding"],
    }
