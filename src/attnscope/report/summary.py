"""A scan in the terminal: heading, verdict, map, key numbers; on request all tables and findings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group
from rich.text import Text

from attnscope.columns import COLUMNS, label
from attnscope.diagnosis.states import Thresholds, limit_words
from attnscope.errors import parameter
from attnscope.report.diagnosis import print_details, print_state_map, print_verdict
from attnscope.report.maps import separability_map
from attnscope.report.notes import notable_numbers
from attnscope.report.terminal import add_row, paragraph, short_path, table, tables, titled
from attnscope.results.words import counted, measured, number
from attnscope.scanning import overview

if TYPE_CHECKING:
    import polars as pl

    from attnscope.scanning.overview import Overview

_MEASURED = ("separability", "participation", "sink_weight", "entropy_ratio", "jacobian_norm")
_DIAGNOSED = ("tokens_needed", "growth_exponent")


def print_summary(
    console: Console,
    view: Overview,
    findings: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> None:
    """Print a scan, the verdict first; if `verbose` also the tables by N and by length, and all findings."""
    run = view.run
    console.print(_heading(run))
    kinds = _layer_kinds(run["model"]["heads"])
    if kinds:
        console.print(paragraph(kinds, style="dim"))
    console.print()
    if findings is not None:
        print_verdict(console, findings, verbose)
        print_state_map(console, findings)
    if view.is_empty:
        return
    if findings is None:
        _print_notes(console, view.heads, run, view.n, verbose)
    if findings is None or verbose:
        console.print(Group(separability_map(view), Text()))
    console.print(_key_numbers(view.heads, run, view.n, findings, verbose))
    if len(view.normalizers) > 1:
        console.print(Group(Text(), _what_if(view, console.width)))
    if verbose:
        console.print(Group(Text(), _by_n(view), Text(), _by_length(view)))
        if findings is not None:
            console.print()
            print_details(console, findings)


def _heading(run: dict[str, Any]) -> Text:
    model, text, settings = run["model"], run["text"], run["settings"]
    heads = "/".join(str(count) for count in sorted({entry["heads"] for entry in model["heads"]}))
    return Text.assemble(
        (short_path(model["name"]), "bold"),
        f": {model['family']}, {counted(len(model['heads']), 'layer')} x {heads} heads, "
        f"{model['parameters'] / 1e6:,.1f}M parameters; {settings['windows']} x {settings['length']:,} tokens of "
        f"{short_path(text['source'])}",
    )


def _layer_kinds(layers: list[dict[str, Any]]) -> str:
    """The layers by the modules that they belong to, where there are several kinds."""
    kinds: dict[str, list[str]] = {}
    for entry in layers:
        kinds.setdefault(re.sub(r"\d+", "*", entry["module"]), []).append(f"L{entry['layer']}")
    return "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items()) if len(kinds) > 1 else ""


def _print_notes(console: Console, heads: pl.DataFrame, run: dict[str, Any], n: int, verbose: bool) -> None:
    """What stands out in a scan without a diagnosis."""
    console.print(Text("Measured, not diagnosed. What stands out:", style="bold"))
    for note in notable_numbers(heads, run, n):
        console.print(paragraph(note["title"], 2, "- "))
        if verbose:
            console.print(paragraph(note["sentence"], 4, style="dim"))
    console.print()


def _key_numbers(
    heads: pl.DataFrame, run: dict[str, Any], n: int, findings: Mapping[str, Any] | None, verbose: bool
) -> Group:
    """Medians over heads, and the range of the middle 80%; if `verbose`, also what each quantity means."""
    diagnosed = [] if findings is None else [head["evidence"] for head in findings["heads"]]
    found = {name: heads[name].to_list() for name in _MEASURED}
    found |= {name: [one[name] for one in diagnosed] for name in _DIAGNOSED}
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    made = table(["Key number", "Median head", "Middle 80% of heads"])
    limits = limit_words(Thresholds().as_json() if findings is None else findings["thresholds"])
    meanings = []
    for name, values in known.items():
        if values:
            low, middle, high = (measured(name, float(value)) for value in np.quantile(values, (0.1, 0.5, 0.9)))
            add_row(made, label(name, n) + (" *" if name in _DIAGNOSED else ""), middle, f"{low} to {high}")
            meaning = COLUMNS[name].meaning.format_map(limits | {"n": n})
            meanings.append(paragraph(f"{label(name)}: {meaning}", 2, style="dim"))
    where = f"Measured {overview.shown_rows(run)}, {counted(run['settings']['windows'], 'window')}"
    if findings is not None:
        where += f"; *: on the {counted(findings['windows'], 'window')} of the diagnosis"
    return Group(made, paragraph(where, style="dim"), *(meanings if verbose else ()))


def _by_n(view: Overview) -> Group:
    """Medians over heads for each N: distances with their bounds, and separability."""
    run = view.run
    several = run["settings"]["windows"] > 1
    where = f"{overview.shown_rows(run)}, median over heads"
    lines = list(view.median_by_n().iter_rows(named=True))
    bounds = ("Proved range", "Printed bound", "Random set, proved", "Random set, printed")
    distances = table(["N", label("top_mass"), label("distance"), *bounds], ())
    spreads = ["Over windows"] if several else []
    shares = table(["N", label("separability"), *spreads, "5% to 95% of heads"], ())
    for line in lines:
        add_row(
            distances,
            str(line["n"]),
            measured("top_mass", line["top_mass"]),
            number(line["distance"]),
            f"{number(line['distance_lower'])} to {number(line['distance_upper'])}",
            number(line["distance_bound_printed"]),
            f"{number(line['expected_lower'])} to {number(line['expected_upper'])}",
            number(line["expected_printed"]),
        )
        low, high = (
            measured("separability", line["separability_q05"]),
            measured("separability", line["separability_q95"]),
        )
        spread = line["separability_spread"]
        over = ["-" if spread is None else f"+-{spread:.0%}"] if several else []
        add_row(shares, str(line["n"]), measured("separability", line["separability"]), *over, f"{low} to {high}")
    note = (
        "proved: the range that the theory allows; printed: as the paper prints it; random set: expected distance for "
        "N tokens chosen at random"
    )
    if run["settings"].get("bounds", "paper") is None:
        note += f"; -: measured with {parameter('bounds', 'paper')}"
    distances_by_n = titled(f"Distance by N {where}", distances)
    return Group(distances_by_n, paragraph(note, style="dim"), Text(), titled(f"Separability by N {where}", shares))


def _by_length(view: Overview) -> Group:
    names = ("entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm")
    what = "" if view.run["settings"]["rows"] == "last" else " up to each power of two"
    made = table(["Length", *map(label, names)], ())
    for line in view.median_by_length().iter_rows(named=True):
        add_row(made, f"{line['length']:,}", *(measured(name, line[name]) for name in names))
    return titled(f"By length{what}, median over heads", made)


def _what_if(view: Overview, width: int) -> Group:
    """One line for each normalizer, on the same logits; a row has no top N to separate if fewer keys get weight."""
    names = ("separability", "defined", "top_mass", "max_weight", "support", "jacobian_norm")
    title = f"What if, {overview.shown_rows(view.run)}, N = {view.n}, median over heads"
    lines = []
    for normalizer in view.normalizers:
        line = view.median_of_heads(normalizer)
        line["defined"] = line["defined"] or None
        lines.append([normalizer, *(measured(name, line[name]) for name in names)])
    made = titled(title, *tables(["Normalizer", *map(label, names)], lines, width))
    return Group(made, paragraph(f"{label('defined')}: {COLUMNS['defined'].meaning}", style="dim"))
