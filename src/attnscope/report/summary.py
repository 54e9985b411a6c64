"""The summary of a scan in the terminal: the layer x head map and two short tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from attnscope.columns import label
from attnscope.report import overview
from attnscope.tables import OWN, within_support

if TYPE_CHECKING:
    import polars as pl

# From dark blue over grey to yellow (the cividis scale), readable with any color vision.
_SCALE = (
    "#00224e",
    "#123570",
    "#3b496c",
    "#575d6d",
    "#707173",
    "#8a8678",
    "#a59c74",
    "#c3b369",
    "#e1cc55",
    "#fee838",
)

_NOTE = "proved: the range the theory allows; printed: as the paper has it; random set: expected for N tokens at random"


def print_summary(console: Console, rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any]) -> None:
    """Print the heading, the map of heads and the tables of medians."""
    console.print(Group(_heading(run), Text()))
    if topn.is_empty():
        return
    topn = within_support(rows, topn)
    unmeasured = run["settings"].get("bounds", "paper") is None
    note = Text(_NOTE + ("; -: measured with --bounds paper" if unmeasured else ""), style="dim")
    console.print(Group(_map(rows, topn, run), Text(), _by_n(topn, run), note, Text(), _by_length(rows, run)))
    labels = sorted(topn["normalizer"].unique().to_list(), key=lambda name: (not name.startswith(OWN), name))
    if len(labels) > 1:
        console.print(Group(Text(), _what_if(rows, topn, run, labels)))


def _heading(run: dict[str, Any]) -> Text:
    model, text, settings = run["model"], run["text"], run["settings"]
    layers = model["heads"]
    heads = sorted({entry["heads"] for entry in layers})
    windows = f"{settings['windows']} window" + ("s" if settings["windows"] > 1 else "")
    return Text.assemble(
        (model["name"], "bold"),
        f"  {model['family']}, {len(layers)} layers x {'/'.join(map(str, heads))} heads, "
        f"{model['parameters'] / 1e6:,.1f} M parameters\n",
        f"text {text['source']}, {windows} of {settings['length']:,} tokens, {settings['vectors']} vectors",
        style="default",
    )


def _map(rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any]) -> Group:
    """Separability of every head: one cell each, in per cent."""
    n = overview.usual_n(topn)
    table = overview.heads(rows, topn, run)
    layers, heads = table["layer"].unique().sort().to_list(), table["head"].unique().sort().to_list()
    values = {(layer, head): value for layer, head, value in table.select("layer", "head", "separability").iter_rows()}
    wide = len(heads) <= 24
    lines = []
    if wide:
        lines.append(Text("      " + "".join(f"H{head:<4}" for head in heads), style="dim"))
    for layer in layers:
        line = Text(f"{'L' + str(layer):>4}  ", style="dim")
        for head in heads:
            line.append_text(_cell(values.get((layer, head)), wide))
        lines.append(line)
    title = Text.assemble(
        ("Separability", "bold"),
        f" in %: how many of the top {n} tokens stay nearer to the context than every other, "
        f"{overview.shown_rows(run)}",
    )
    legend = Text("      0% ")
    for color in _SCALE:
        legend.append("  ", style=f"on {color}")
    legend.append(" 100%")
    return Group(title, *lines, legend)


def _cell(value: float | None, wide: bool) -> Text:
    if value is None:
        return Text("  -  " if wide else "-", style="dim")
    level = min(int(value * len(_SCALE)), len(_SCALE) - 1)
    ink = "#ffffff" if level < len(_SCALE) // 2 else "#000000"
    return Text(f"{value * 100:4.0f} " if wide else " ", style=f"{ink} on {_SCALE[level]}")


def _by_n(topn: pl.DataFrame, run: dict[str, Any]) -> Table:
    title = f"By N {overview.shown_rows(run)}, median over heads"
    several = run["settings"]["windows"] > 1
    if several:
        title += ", +- spread over windows"
    table = _table(
        title,
        "N",
        label("top_mass"),
        label("distance"),
        "proved",
        "printed",
        "random set",
        "printed",
        label("separability"),
        "5-95%",
    )
    for line in overview.median_by_n(topn, run).iter_rows(named=True):
        over_windows = line["separability_spread"] if several else None
        spread = "" if over_windows is None else f"+-{over_windows * 100:.0f}"
        table.add_row(
            str(line["n"]),
            _formatted(line["top_mass"], ".3f"),
            _number(line["distance"]),
            f"{_number(line['distance_lower'])}-{_number(line['distance_upper'])}",
            _number(line["distance_bound_printed"]),
            f"{_number(line['expected_lower'])}-{_number(line['expected_upper'])}",
            _number(line["expected_printed"]),
            _formatted(line["separability"], ".0%") + spread,
            f"{_formatted(line['separability_q05'], '.0%')}-{_formatted(line['separability_q95'], '.0%')}",
        )
    return table


def _by_length(rows: pl.DataFrame, run: dict[str, Any]) -> Table:
    names = ("entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm")
    what = "" if run["settings"]["rows"] == "last" else " up to each power of two"
    table = _table(f"By length{what}, median over heads", "Length", *map(label, names))
    for line in overview.median_by_length(rows, run).iter_rows(named=True):
        table.add_row(
            f"{line['length']:,}",
            _formatted(line["entropy_ratio"], ".2f"),
            _formatted(line["max_weight"], ".3f"),
            _formatted(line["sink_weight"], ".3f"),
            _formatted(line["participation"], ".1f"),
            _formatted(line["jacobian_norm"], ".3f"),
        )
    return table


def _what_if(rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any], labels: list[str]) -> Table:
    """One line for each normalizer, on the same logits; a row has no top N to separate if fewer keys get weight."""
    n = overview.usual_n(topn)
    title = f"What if, {overview.shown_rows(run)}, median over heads"
    names = ("separability", "defined", "top_mass", "max_weight", "support", "jacobian_norm")
    table = _table(f"{title}, N = {n}", "Normalizer", *map(label, names))
    for normalizer in labels:
        line = overview.median_of_heads(rows, topn, run, normalizer)
        table.add_row(
            normalizer,
            _formatted(line["separability"], ".0%"),
            _formatted(line["defined"] or None, ".0%"),
            _formatted(line["top_mass"], ".3f"),
            _formatted(line["max_weight"], ".3f"),
            _formatted(line["support"], ",.0f"),
            _formatted(line["jacobian_norm"], ".3f"),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    """A table without lines, narrow enough for 80 columns."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _formatted(value: float | None, form: str) -> str:
    """A formatted number, or a dash for None."""
    return "-" if value is None else f"{value:{form}}"


def _number(value: float | None) -> str:
    """Three significant figures, without exponent up to large numbers."""
    return _formatted(value, ",.0f" if value is not None and abs(value) >= 100 else ".3g")
