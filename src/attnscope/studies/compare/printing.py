"""A comparison of normalizers in the terminal: a verdict, then tables that fit 80 columns."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from attnscope.columns import COLUMNS, label
from attnscope.report.terminal import add_row, paragraph, short_path, table, tables, titled
from attnscope.results.words import measured, number
from attnscope.store.tables import COMPARED, OWN, comparable, named

_MODEL = ("perplexity", "agreement", "kl", "time_ratio", "memory_ratio")
_HEADS = ("separability", "distance_ratio", "entropy_ratio", "sink_weight", "support", "jacobian_norm")
_MODES = {"swapped": "Swapped into every layer", "what-if": "What if, on the model's own logits"}
_SAME = 1e-6  # KL divergence up to which a normalizer is the model's own
_PARTLY = "*: mean over the rows with N tokens of weight, too few to compare"
_UNDEFINED = "-: fewer than N tokens have weight in every row, so there is no top set of N to separate"


def print_comparison(console: Console, compared: pl.DataFrame, run: dict[str, Any], verbose: bool = False) -> None:
    """Print the verdict, then the tables of the longest length; if `verbose` those of all lengths, and the meanings."""
    settings = run["settings"]
    console.print(
        Text.assemble(
            (short_path(run["model"]), "bold"),
            f": {len(run['normalizers'])} normalizers; {settings['windows']} x {settings['length']:,} tokens of "
            f"{short_path(run['text']['source'])}",
        )
    )
    console.print()
    lines = named(compared)
    longest = lines.filter(pl.col("length") == pl.col("length").max())
    console.print(paragraph(Text.assemble(("Verdict: ", "bold"), _verdict(longest))))
    console.print()
    blocks: list[RenderableType] = []
    for mode, words in _MODES.items():
        part = (lines if verbose else longest).filter(mode=mode)
        for (length,), some in part.group_by(["length"], maintain_order=True):
            blocks += _tables(some, f"{words}, {length:,} tokens", console.width)
    if run["calibration"]:
        blocks.append(_calibration(run["calibration"]))
    for position, block in enumerate(blocks):
        console.print(Group(Text(), block) if position else block)
    known = compared.filter(pl.col("separability").is_not_null()).height
    if known > comparable(compared).height:
        console.print(paragraph(_PARTLY, style="dim"))
    if known < compared.height:
        console.print(paragraph(_UNDEFINED, style="dim"))
    if verbose:
        for name in (*_MODEL, *_HEADS):
            console.print(paragraph(f"{label(name)}: {COLUMNS[name].meaning}", style="dim"))


def _verdict(lines: pl.DataFrame) -> str:
    """Which normalizer changes the model least, and which separates most, at the longest length."""
    swapped = lines.filter(mode="swapped")
    own, others = swapped.filter(normalizer=OWN), swapped.filter(pl.col("kl") > _SAME)
    same = swapped.filter(pl.col("kl") <= _SAME, pl.col("normalizer") != OWN)["name"].to_list()
    parts, sentences = [], []
    if same:
        parts.append(f"{' and '.join(same)} {'leaves' if len(same) == 1 else 'leave'} the model as it is")
    if own.height and others.height:
        best = others.sort("kl").row(0, named=True)
        before = measured("perplexity", own["perplexity"][0])
        parts.append(
            f"{'of the others ' if same else ''}{best['name']} changes {'it' if same else 'the model'} least: KL "
            f"{measured('kl', best['kl'])}, perplexity {measured('perplexity', best['perplexity'])} instead of {before}"
        )
    if parts:
        sentences.append(f"without training, {'; '.join(parts)}.")
    part = swapped if swapped.height else lines
    known = comparable(part).filter(pl.col("separability").is_not_null())
    base, rest = known.filter(normalizer=OWN), known.filter(pl.col("normalizer") != OWN)
    if base.height and rest.height:
        best = rest.sort("separability").row(-1, named=True)
        after, before = (
            measured("separability", best["separability"]),
            measured("separability", base["separability"][0]),
        )
        more = best["separability"] > base["separability"][0]
        words = f"{best['name']} separates most" if more else "None separates more than the model's own"
        ratio = (
            "" if best["perplexity"] is None else f", at a perplexity of {measured('perplexity', best['perplexity'])}"
        )
        sentences.append(
            f"{words}: separability {after}{ratio}, {before} with its own." if more else f"{words} ({before})."
        )
    return " ".join(sentences) or "nothing differs from the model's own normalizer."


def _tables(part: pl.DataFrame, title: str, width: int) -> list[RenderableType]:
    """What happens to the model, and what happens to its heads."""
    n = int(part["n"][0])
    found: list[RenderableType] = []
    for names in (_MODEL, _HEADS):
        kept = [name for name in names if part[name].is_not_null().any()]
        if kept:
            rows = [[line["name"], *(_cell(line, name) for name in kept)] for line in part.to_dicts()]
            of_heads = f", mean over heads, N = {n}" if names is _HEADS else ""
            made = tables(["Normalizer", *map(label, kept)], rows, width)
            found.append(titled(f"{title}{of_heads}", *made))
    return found


def _cell(line: dict[str, Any], name: str) -> str:
    """A number of the table; separability of too few rows to be compared has an asterisk."""
    value = line[name]
    if value is None:
        return "-"
    return measured(name, value) + ("*" if name == "separability" and line["defined"] < COMPARED else "")


def _calibration(calibrated: list[dict[str, Any]]) -> Group:
    made = table(["Normalizer", "Setting", "Value", "KL before", "KL after"], (0, 1))
    for one in calibrated:
        value = "per head" if one["value"] is None else f"{one['value']:.3g}"
        before, after = (number(max(0.0, one[f"kl_{when}"])) for when in ("before", "after"))
        add_row(made, one["normalizer"], one["parameter"], value, before, after)
    return titled("Calibrated on windows that were not evaluated", made)
