"""What a scan shows: the verdict, a map of the heads, key numbers; behind folds, all tables and findings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from attnscope.columns import COLUMNS, head_name, label
from attnscope.diagnosis import result as diagnosis
from attnscope.diagnosis.states import Thresholds, limit_words
from attnscope.errors import parameter
from attnscope.scanning import overview
from attnscope.scanning.overview import Overview
from attnscope.show import palette
from attnscope.show.blocks import Block, Cell, Details, Heading, HeadMap, Note, Table
from attnscope.show.numbers import counted, measured, model_name, number, short_path

_KEY_NUMBERS = ("separability", "participation", "sink_weight", "entropy_ratio", "jacobian_norm")
_DIAGNOSED = ("tokens_needed", "growth_exponent")

# From this share of the weight on, one token takes nearly all of it.
RESTING = 0.9
# Participation above this share of the length: the head averages over most of what it sees.
SPREAD = 0.5
# Below this Jacobian norm the gradient through the weights is less than a fiftieth of what softmax allows.
INSENSITIVE = 0.01


def blocks(view: Overview, findings: Mapping[str, Any] | None = None, verbose: bool = False) -> list[Block]:
    """A scan, the verdict first."""
    run = view.run
    found: list[Block] = [Heading(model_name(run), subject(run))]
    kinds = _layer_kinds(run["model"]["heads"])
    if kinds:
        found.append(Note(kinds, "soft"))
    if findings is not None:
        found += [*diagnosis.verdict_blocks(findings, verbose), diagnosis.state_map(findings)]
    if view.is_empty:
        return found
    if findings is None:
        found += [*_notable(view, verbose), separability_map(view)]
    else:
        found.append(Details(label("separability", view.n), [separability_map(view)]))
    found.append(_key_numbers(view, findings, verbose))
    if len(view.normalizers) > 1:
        found.append(_what_if(view))
    found.append(Details("By N and by length", [*_by_n(view), _by_length(view)]))
    return found if findings is None else [*found, *diagnosis.details(findings)]


def subject(run: Mapping[str, Any]) -> str:
    """What was run: family, layers and heads, size, windows, text."""
    model, settings = run["model"], run["settings"]
    heads = "/".join(str(count) for count in sorted({entry["heads"] for entry in model["heads"]}))
    return (
        f"{model['family']}, {counted(len(model['heads']), 'layer')} x {heads} heads, "
        f"{model['parameters'] / 1e6:,.1f}M parameters; {settings['windows']} x {settings['length']:,} tokens of "
        f"{short_path(run['text']['source'])}"
    )


def _layer_kinds(layers: list[dict[str, Any]]) -> str:
    """The layers by the modules that they belong to, where there are several kinds."""
    kinds: dict[str, list[str]] = {}
    for entry in layers:
        kinds.setdefault(re.sub(r"\d+", "*", entry["module"]), []).append(f"L{entry['layer']}")
    return "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items()) if len(kinds) > 1 else ""


def _notable(view: Overview, verbose: bool) -> list[Block]:
    """What stands out in a scan without a diagnosis."""
    found: list[Block] = [Heading("Measured, not diagnosed. What stands out:", level=2)]
    for note in notable_numbers(view.heads, view.run, view.n):
        found.append(Note(note["title"], mark="- ", indent=2))
        found += [Note(note["sentence"], "soft", indent=4)] if verbose else []
    return found


def separability_map(view: Overview) -> HeadMap:
    """Separability of every head in per cent."""
    n = view.n
    cells = {}
    for layer, head, value in view.heads.select("layer", "head", "separability").iter_rows():
        words = f"{head_name(layer, head)} {measured('separability', value)}"
        mark, wide = ("-", " -  ") if value is None else (str(min(int(value * 10), 9)), f"{value * 100:>3.0f} ")
        cells[layer, head] = Cell(palette.color_of(value), mark, words, wide)
    title = f"{label('separability', n)} in %, {overview.shown_rows(view.run)}"
    note = f"how much of the top {n} tokens lies nearer to their weighted sum than every other token"
    return HeadMap(title, cells, note, scale=("0%", "100%"), narrow="digits: tens of %")


def _key_numbers(view: Overview, findings: Mapping[str, Any] | None, verbose: bool) -> Table:
    """Medians over heads, and the range of the middle 80%; if `verbose`, also what each quantity means."""
    run, n = view.run, view.n
    diagnosed = [] if findings is None else [head["evidence"] for head in findings["heads"]]
    found = {name: view.heads[name].to_list() for name in _KEY_NUMBERS}
    found |= {name: [one[name] for one in diagnosed] for name in _DIAGNOSED}
    limits = limit_words(Thresholds().as_json() if findings is None else findings["thresholds"])
    where = f"Measured {overview.shown_rows(run)}, {counted(run['settings']['windows'], 'window')}"
    if findings is not None:
        where += f"; *: on the {counted(findings['windows'], 'window')} of the diagnosis"
    rows, meanings = [], []
    for name, values in found.items():
        known = [value for value in values if value is not None]
        if known:
            low, middle, high = (measured(name, float(value)) for value in np.quantile(known, (0.1, 0.5, 0.9)))
            rows.append([label(name, n) + (" *" if name in _DIAGNOSED else ""), middle, f"{low} to {high}"])
            meanings.append(f"{label(name)}: {COLUMNS[name].meaning.format_map(limits | {'n': n})}")
    notes = [where, *(meanings if verbose else ())]
    return Table(["Key number", "Median head", "Middle 80% of heads"], rows, notes=notes)


def _by_n(view: Overview) -> list[Block]:
    """Medians over heads for each N: distances with their bounds, and separability."""
    settings = view.run["settings"]
    where = f"{overview.shown_rows(view.run)}, median over heads"
    bounds = ("Proved range", "Printed bound", "Random set, proved", "Random set, printed")
    spreads = ["Over windows"] if settings["windows"] > 1 else []
    distances, shares = [], []
    for line in view.median_by_n().iter_rows(named=True):
        distances.append(
            [
                str(line["n"]),
                measured("top_mass", line["top_mass"]),
                number(line["distance"]),
                f"{number(line['distance_lower'])} to {number(line['distance_upper'])}",
                number(line["distance_bound_printed"]),
                f"{number(line['expected_lower'])} to {number(line['expected_upper'])}",
                number(line["expected_printed"]),
            ]
        )
        spread = line["separability_spread"]
        over = ["-" if spread is None else f"+-{spread:.0%}"] if spreads else []
        low, high = (measured("separability", line[f"separability_{end}"]) for end in ("q05", "q95"))
        shares.append([str(line["n"]), measured("separability", line["separability"]), *over, f"{low} to {high}"])
    note = (
        "proved: the range that the theory allows; printed: as the paper prints it; random set: expected distance for "
        "N tokens chosen at random"
    )
    if settings.get("bounds", "paper") is None:
        note += f"; -: measured with {parameter('bounds', 'paper')}"
    headings = ["N", label("top_mass"), label("distance"), *bounds]
    return [
        Table(headings, distances, f"Distance by N {where}", (), [note]),
        Table(["N", label("separability"), *spreads, "5% to 95% of heads"], shares, f"Separability by N {where}", ()),
    ]


def _by_length(view: Overview) -> Table:
    names = ("entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm")
    what = "" if view.run["settings"]["rows"] == "last" else " up to each power of two"
    rows = [
        [f"{line['length']:,}", *(measured(name, line[name]) for name in names)]
        for line in view.median_by_length().iter_rows(named=True)
    ]
    return Table(["Length", *map(label, names)], rows, f"By length{what}, median over heads", ())


def _what_if(view: Overview) -> Table:
    """One line for each normalizer, on the same logits; a row has no top N to separate if fewer keys get weight."""
    names = ("separability", "defined", "top_mass", "max_weight", "support", "jacobian_norm")
    rows = []
    for normalizer in view.normalizers:
        line = view.median_of_heads(normalizer)
        line["defined"] = line["defined"] or None
        rows.append([normalizer, *(measured(name, line[name]) for name in names)])
    title = f"What if, {overview.shown_rows(view.run)}, N = {view.n}, median over heads"
    note = f"{label('defined')}: {COLUMNS['defined'].meaning}"
    return Table(["Normalizer", *map(label, names)], rows, title, notes=[note], narrow=80)


def notable_numbers(heads: pl.DataFrame, run: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """The most notable numbers of a run without a diagnosis, in the form of findings.

    Each is a count of heads above or below a stated limit. They describe measurements and leave judging to the reader:
    whether a head can be spared is a question for an intervention.
    """
    length = run["settings"]["lengths"][-1]
    heads = heads.with_columns(pl.selectors.float().fill_nan(None))  # a missing number is neither large nor small
    resting = heads.filter(pl.col("sink_weight") > RESTING)
    sharp = heads.filter((pl.col("max_weight") > RESTING) & (pl.col("sink_weight") <= RESTING))
    broad = heads.filter(pl.col("participation") > SPREAD * length)
    numb = heads.filter(pl.col("jacobian_norm") < INSENSITIVE)
    use, separability = heads["participation"].drop_nulls(), heads["separability"].cast(pl.Float64).drop_nulls()
    notes = []
    if use.len():
        title = f"Participation: {_plain(use.median())} of {length:,} tokens in the median head"
        sentence = (
            f"One head in ten is below {_plain(use.quantile(0.1))}, one in ten above {_plain(use.quantile(0.9))}. It "
            "is the effective number of tokens that share the weight: the more, the less each one counts."
        )
        notes.append(_note("participation", title, sentence))
    if separability.len():
        middle: Any = separability.median()
        title = f"Separability: {middle:.0%} of the top {n} tokens in the median head"
        sentence = (
            f"The others lie farther from the weighted sum of the top {n} than some other token does. "
            f"The lowest tenth of the heads is below {separability.quantile(0.1, 'linear'):.0%}."
        )
        notes.append(_note("separability", title, sentence))
    for name, what, some, sentence in (
        (
            "first-token",
            f"Sink weight above {RESTING:.0%}",
            resting,
            "The first token takes nearly all the weight. That is common in trained models and no fault in itself; "
            "whether the head still passes on something of the text is what a diagnosis measures.",
        ),
        (
            "one-token",
            f"Max weight above {RESTING:.0%}, on a token that is not the first",
            sharp,
            "One token takes nearly all the weight; the others hardly count.",
        ),
        (
            "spread-out",
            f"Participation above half of {length:,} tokens",
            broad,
            "Such a head averages over so many tokens that a single one hardly counts, even less as the text gets "
            "longer.",
        ),
        (
            "insensitive",
            f"Jacobian norm below {INSENSITIVE:g}",
            numb,
            "The weights hardly react to the logits: little gradient passes through. The most that softmax allows is "
            "0.5.",
        ),
    ):
        if some.height:
            title = f"{what}: {some.height:,} of {heads.height:,} heads"
            notes.append(_note(name, title, sentence, some.select("layer", "head").rows()))
    return notes


def _note(name: str, title: str, sentence: str, heads: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    listed = [list(place) for place in heads]
    return {"id": name, "severity": "note", "title": title, "sentence": sentence, "heads": listed}


def _plain(value: Any) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
