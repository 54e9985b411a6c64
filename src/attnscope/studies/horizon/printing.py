"""A prediction for longer inputs in the terminal: the finding, a map of verdicts, curves, back-test and check."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from attnscope.columns import HORIZON, head_name, label
from attnscope.report.maps import HeadMap, on_color
from attnscope.report.terminal import add_row, paragraph, short_path, table, titled
from attnscope.results.words import measured, number
from attnscope.scanning.overview import explained_measure
from attnscope.scanning.page_data import rounded_columns
from attnscope.store.tables import OWN
from attnscope.studies.horizon.extended_row import MEASURES
from attnscope.studies.horizon.prediction import MEANINGS, VERDICTS, with_mass_kept

LOOKS = {
    "holds": ("H", "#0072b2"),
    "thins": ("T", "#e69f00"),
    "diluted": ("D", "#d55e00"),
    "undecided": ("?", "#b8bec6"),
}
REPEATED = 0.05  # share of repeated runs of tokens from which on the run says so
_FIRST = 5  # heads that lose half first
_LABELS = {"top5": "Top-5 mass"}


def print_horizon(
    console: Console, curves: pl.DataFrame, heads: pl.DataFrame, run: dict[str, Any], verbose: bool = False
) -> None:
    """Print a prediction; if `verbose`, with the errors of all measures and normalizers."""
    settings, finding = run["settings"], run["finding"]
    heads = with_mass_kept(heads, curves, settings)
    console.print(
        Text.assemble(
            (short_path(run["model"]["name"]), "bold"),
            f": horizon to {settings['to']:,} tokens, predicted from {settings['windows']} x {settings['length']:,} "
            f"tokens of {short_path(run['text']['source'])}",
        )
    )
    console.print()
    console.print(paragraph(Text.assemble(("Verdict: ", "bold"), f"{finding['title']}.")))
    console.print(paragraph(finding["sentence"]))
    for warning in warnings(run):
        console.print(paragraph(Text(warning, style="bold")))
    console.print()
    own = heads.filter(normalizer=OWN)
    console.print(Group(_verdict_map(own), Text(), _by_length(curves.filter(normalizer=OWN), settings), Text()))
    losing = own.filter(pl.col("verdict").is_in(["thins", "diluted"])).sort("half_length")
    if losing.height:
        console.print(Group(_first_to_lose(losing.head(own.height if verbose else _FIRST), settings), Text()))
    if heads["normalizer"].n_unique() > 1:
        console.print(Group(_what_if(heads), Text()))
    labels = list(run["back_test"]) if verbose else [OWN]
    measures = MEASURES if verbose else MEASURES[:1]
    for name in labels:
        console.print(Group(_back_test(name, run["back_test"][name], measures), Text()))
        if name in run["check"]:
            console.print(Group(_check(name, run["check"][name], measures, settings), Text()))


def warnings(run: dict[str, Any]) -> list[str]:
    """What makes this prediction less certain than others."""
    repeated = run["repeated_share"]
    if repeated <= REPEATED:
        return []
    return [
        f"The text repeats itself: {repeated:.0%} of the runs of 16 tokens stand in the {run['settings']['to']:,} "
        "tokens before them already. Heads that look for copies find more of them in longer inputs than predicted."
    ]


def _verdict_map(own: pl.DataFrame) -> Group:
    verdicts = {(layer, head): verdict for layer, head, verdict in own.select("layer", "head", "verdict").iter_rows()}

    def letter(verdict: str | None, width: int) -> Text:
        if verdict is None:
            return Text(" " * width)
        mark, color = LOOKS[verdict]
        return Text(mark.center(width), style=on_color(color))

    title = Text.assemble(("Map", "bold"), ": what becomes of the top-5 mass")
    lines = [
        Text.assemble("     ", (f" {mark} ", on_color(color)), f" {name:10} {count:4}  {MEANINGS[name]}")
        for name, (mark, color) in zip(VERDICTS, LOOKS.values(), strict=True)
        if (count := sum(verdict == name for verdict in verdicts.values()))
    ]
    return Group(title, HeadMap(verdicts, letter, 4), *lines)


def _by_length(curves: pl.DataFrame, settings: dict[str, Any]) -> Group:
    made = table(["Length", *map(_label, MEASURES)], (0,))
    medians = curves.group_by("length", "measure").agg(pl.col("predicted").median())
    wide = medians.pivot("measure", index="length", values="predicted").sort("length")
    for line in wide.iter_rows(named=True):
        where = "measured" if line["length"] <= settings["length"] else "predicted"
        add_row(made, f"{line['length']:>7,} {where}", *(_value(name, line[name]) for name in MEASURES))
    return titled("By length, median over heads", made)


def _first_to_lose(losing: pl.DataFrame, settings: dict[str, Any]) -> Group:
    names = ("half_length", "mass_kept", "reach")
    made = table(["Head", "Verdict", label(names[0]), label(names[1]), "90% interval", label(names[2])], (0, 1))
    for line in losing.iter_rows(named=True):
        reach = f"> {settings['to']:,}" if line["reach"] is None else f"{line['reach']:,.0f}"
        low, high = (measured("mass_kept", line[f"mass_kept_{end}"]) for end in ("lower", "upper"))
        half = f"{line['half_length']:,.0f}"
        kept = measured("mass_kept", line["mass_kept"])
        add_row(made, head_name(line["layer"], line["head"]), line["verdict"], half, kept, f"{low} to {high}", reach)
    title = f"The first to lose half of their top-5 mass at {settings['base']:,} tokens"
    return titled(title, made)


def _what_if(heads: pl.DataFrame) -> Group:
    made = table(["Normalizer", *VERDICTS, "median of mass kept"])
    for (name,), part in heads.group_by(["normalizer"], maintain_order=True):
        counts = [str(int((part["verdict"] == verdict).sum())) for verdict in VERDICTS]
        kept: Any = part["mass_kept"].median()
        add_row(made, str(name), *counts, measured("mass_kept", kept))
    return titled("What if, on the model's own logits: heads by verdict", made)


def _back_test(name: str, found: dict[str, Any], measures: tuple[str, ...]) -> Group:
    title = f"Back-test{_of(name)}: {found['to']:,} tokens predicted from {found['from']:,}, on the same windows"
    made = _error_table([{"length": found["to"], "errors": found["errors"]}], measures)
    note = "median and 90th percentile over heads of |ln(predicted / measured)|; of the entropy ratio, the difference"
    return Group(titled(title, made), paragraph(note, style="dim"))


def _check(name: str, found: dict[str, Any], measures: tuple[str, ...], settings: dict[str, Any]) -> Group:
    count = settings["check_windows"]
    title = f"Check{_of(name)}: the model run on {count} fresh inputs of {settings['to']:,} tokens"
    verdicts = found["verdicts"]
    share = verdicts["decided"] / verdicts["heads"]
    right = f"; {verdicts['right'] / verdicts['decided']:.1%} of those are right" if verdicts["decided"] else ""
    words = f"Verdicts: {verdicts['decided']} of {verdicts['heads']} heads ({share:.0%}) are decided{right}."
    note = "covered: share of heads whose measured value lies in the 90% interval"
    return Group(titled(title, _error_table(found["lengths"], measures)), paragraph(note, style="dim"), words)


def _of(name: str) -> str:
    return "" if name == OWN else f" of {name}"


def _error_table(lengths: list[dict[str, Any]], measures: tuple[str, ...]) -> Table:
    """A line for each length and measure: errors of the prediction and of the baselines, and coverage."""
    covered = ["Covered"] if "coverage" in lengths[0] else []
    made = table(["Length", "Error of", "Prediction", "No change", "Power law", *covered], (1,))
    for at in lengths:
        for measure in measures:
            errors = (at["errors"][guess][measure] for guess in ("prediction", "no_change", "power_law"))
            cells = [f"{each['median']:.3f}  {each['p90']:.3f}" for each in errors]
            cells += [f"{at['coverage'][measure]:.0%}"] if covered else []
            add_row(made, f"{at['length']:,}", _label(measure), *cells)
    return made


def _label(measure: str) -> str:
    return _LABELS.get(measure) or label(measure)


def _value(measure: str, value: float | None) -> str:
    return number(value, "share") if measure == "top5" else measured(measure, value)


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
