"""What a comparison of normalizers and a test of the guidelines show, and the charts of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope.columns import COLUMNS, label
from attnscope.errors import InputError, shown
from attnscope.show.blocks import Block, Chart, Heading, Note, Span, Table, Tone, Verdict
from attnscope.show.figures import Figure, Mark, Panel, linear_range, log_range
from attnscope.show.numbers import measured, number, short_path
from attnscope.show.palette import BLACK, BLUE, GREEN, RED, SERIES
from attnscope.store.tables import OWN
from attnscope.studies.compare.calibration import COMPARED, comparable, named

if TYPE_CHECKING:
    from attnscope.show.charts import OfflineChart

    Comparison = Any  # of comparing.py, which imports this file
    Guidelines = Any  # of guidelines.py, which imports this file

_MODEL = ("perplexity", "agreement", "kl", "time_ratio", "memory_ratio")
_HEADS = ("separability", "distance_ratio", "entropy_ratio", "sink_weight", "support", "jacobian_norm")
_COLUMNS = (*_MODEL[:3], *_HEADS, *_MODEL[3:])
_MODES = {"swapped": "Swapped into every layer", "what-if": "What if, on the model's own logits"}
_SAME = 1e-6  # KL divergence up to which a normalizer is the model's own
_PARTLY = "*: mean over the rows with N tokens of weight, too few to compare"
_UNDEFINED = "-: fewer than N tokens have weight in every row, so there is no top set of N to separate"


def blocks(result: Comparison, verbose: bool = False) -> list[Block]:
    """The verdict, then the tables of the longest length; if `verbose` those of all lengths, and the meanings."""
    lines = named(result.table)
    longest = lines.filter(pl.col("length") == pl.col("length").max())
    words = _verdict(longest)
    found: list[Block] = [_heading(result.run, f"{len(result.run['normalizers'])} normalizers"), Verdict(words)]
    for mode in _MODES:
        part = (lines if verbose else longest).filter(mode=mode)
        for (length,), some in part.group_by(["length"], maintain_order=True):
            found += _tables(some, f"{_MODES[mode]}, {length:,} tokens")
    if result.run["calibration"]:
        found.append(_calibration(result.run["calibration"]))
    known = result.table.filter(pl.col("separability").is_not_null()).height
    if known > comparable(result.table).height:
        found.append(Note(_PARTLY, "soft"))
    if known < result.table.height:
        found.append(Note(_UNDEFINED, "soft"))
    if verbose:
        found += [Note(f"{label(name)}: {COLUMNS[name].meaning}", "soft") for name in (*_MODEL, *_HEADS)]
    if "swapped" in result.table["mode"]:
        found.append(Chart("Capacity against perplexity", result.plot.capacity, "capacity.svg"))
    if result.table.height:
        found.append(Chart("Separability", lambda: result.plot.curve("separability")))
    return found


def _heading(run: dict[str, Any], what: str) -> Heading:
    settings = run["settings"]
    where = f"{settings['windows']} x {settings['length']:,} tokens of {short_path(run['text']['source'])}"
    return Heading(short_path(run["model"]), f"{what}; {where}")


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
        sentences.append(f"Without training, {'; '.join(parts)}.")
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
    return " ".join(sentences) or "Nothing differs from the model's own normalizer."


def _tables(part: pl.DataFrame, title: str) -> list[Table]:
    """What happens to the model, and what happens to its heads."""
    found = []
    for names in (_MODEL, _HEADS):
        kept = [name for name in names if part[name].is_not_null().any()]
        if kept:
            rows = [[line["name"], *(_cell(line, name) for name in kept)] for line in part.to_dicts()]
            of_heads = f", mean over heads, N = {part['n'][0]}" if names is _HEADS else ""
            found.append(Table(["Normalizer", *map(label, kept)], rows, f"{title}{of_heads}"))
    return found


def _cell(line: dict[str, Any], name: str) -> str:
    """A number of the table; separability of too few rows to be compared has an asterisk."""
    value = line[name]
    if value is None:
        return "-"
    return measured(name, value) + ("*" if name == "separability" and line["defined"] < COMPARED else "")


def _calibration(calibrated: Sequence[dict[str, Any]]) -> Table:
    rows = [
        (
            one["normalizer"],
            one["parameter"],
            "per head" if one["value"] is None else number(one["value"]),
            *(number(max(0.0, one[f"kl_{when}"])) for when in ("before", "after")),
        )
        for one in calibrated
    ]
    headings = ("Normalizer", "Setting", "Value", "KL before", "KL after")
    return Table(headings, rows, "Calibrated on windows that were not evaluated", texts=(0, 1))


_TONES: dict[str, Tone] = {"agrees": "good", "disagrees": "bad", "undecided": "warning"}
_COUNTED = {  # one, several
    "agrees": ("agrees with the model", "agree with the model"),
    "disagrees": ("disagrees", "disagree"),
    "undecided": ("is undecided", "are undecided"),
}
_SWEEPS = {"share": "Share of the keys", "length": "Length", "temperature": "Temperature"}
_LEGEND = (
    "agrees: the numbers move as predicted along the whole sweep; disagrees: the other way; undecided: by at most 2%, "
    "or both ways."
)
_NO_TOP_SET = "-: not defined, as fewer keys than the top set get weight."


def guidelines_blocks(result: Guidelines) -> list[Block]:
    """The verdicts, then each guideline with what it predicts and the numbers of its sweep."""
    counts = Counter(str(finding.verdict) for finding in result.findings)
    words = ", ".join(f"{counts[v]} {_COUNTED[v][counts[v] > 1]}" for v in _TONES if counts[v])
    found: list[Block] = [
        _heading(result.comparison.run, "the paper's guidelines"),
        Verdict(f"Of {len(result.findings)} guidelines, {words}."),
    ]
    for finding in result.findings:
        name = finding.guideline[0].upper() + finding.guideline[1:]
        found.append(Heading((f"{name}: ", Span(finding.verdict, _TONES[finding.verdict])), level=2))
        found.append(Note(finding.predicts, mark="Predicts  ", indent=2))
        names = [key for key in finding.table[0] if key != "defined"] if finding.table else []
        rows = [[_value(line, key) for key in names] for line in finding.table]
        found.append(Table([_SWEEPS.get(key) or label(key) for key in names], rows, texts=()))
    found.append(Note(_LEGEND, "soft"))
    if any(line[key] is None for finding in result.findings for line in finding.table for key in line):
        found.append(Note(_NO_TOP_SET, "soft"))
    return found


def _value(line: dict[str, Any], key: str) -> str:
    value = line[key]
    if key == "length":
        return f"{value:,}"
    return measured(key, value) if key in COLUMNS else number(value, "share" if key == "share" else "number")


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

        if "swapped" not in self._result.table["mode"]:
            raise InputError("capacity needs the mode swapped; compare with modes=['swapped'] or both")
        return offline(capacity_figure(self._result.table).chart(titles=True))

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

        from attnscope.show.charts import axis, chart, data, legend, number_format

        table = named(self._result.table)
        modes = table["mode"].unique(maintain_order=True).to_list()
        mode = mode or ("swapped" if "swapped" in modes else modes[0])
        if measure not in _COLUMNS or mode not in modes:
            raise InputError(
                f"no curve of {shown(measure)} in mode {shown(mode)}; there are {', '.join(_COLUMNS)} in mode "
                f"{' and '.join(modes)}"
            )
        lines = table.filter(mode=mode).select("name", "length", value=pl.col(measure))
        title = label(measure, table["n"][0])
        names = lines["name"].unique(maintain_order=True).to_list()
        others = [name for name in names if name != OWN]
        palette = dict(zip(others, cycle(SERIES), strict=False)) | {OWN: BLACK}
        colors = alt.Scale(domain=names, range=[palette[name] for name in names])
        steps = axis(values=lines["length"].unique().sort().to_list(), format="~g")
        base = alt.Chart(data(lines)).encode(
            x=alt.X("length:Q", title="Length (tokens)", scale=alt.Scale(type="log", nice=False), axis=steps),
            y=alt.Y("value:Q", title=title, axis=axis(format=number_format(COLUMNS[measure].style))),
            color=alt.Color("name:N", scale=colors, legend=legend(None)),
            tooltip=["name:N", "length:Q", alt.Tooltip("value:Q", title=title, format=".4~g")],
        )
        words = f"{short_path(self._result.run['model'])}; {_MODES[mode][0].lower()}{_MODES[mode][1:]}"
        # The model itself is dashed and on top: softmax gives the same line.
        own, rest = (base.transform_filter(f"datum.name {sign} '{OWN}'") for sign in ("===", "!=="))
        return chart(title, words, [rest.mark_line(point=True), own.mark_line(point=True, strokeDash=[5, 4])])


# Outlines of different shapes and sizes, so that all are visible if several normalizers give the same numbers.
_ITSELF = Mark("the model itself", BLACK, line=0, point="M-1,0L1,0M0,-1L0,1", size=160)
_MARKS = {
    "none": Mark("as given", BLUE, line=0, point="circle", size=80, fill="transparent"),
    "global": Mark("calibrated, one value for all heads", RED, line=0, point="square", size=44, fill="transparent"),
    "head": Mark("calibrated, one value per head", GREEN, line=0, point="diamond", size=30, fill="transparent"),
}


def capacity_figure(table: pl.DataFrame) -> Figure:
    """Separability against perplexity at the longest length, a point for each normalizer that can be compared."""
    longest = int(table["length"].to_numpy().max())
    points = (
        comparable(named(table))
        .filter(pl.col("separability").is_not_null(), pl.col("perplexity").is_finite(), mode="swapped", length=longest)
        .select("name", "normalizer", "calibration", "perplexity", "separability", "kl", "jacobian_norm")
    )
    is_own = pl.col("normalizer") == OWN
    placed = points.select("normalizer", "calibration", text="name", x="perplexity", value="separability")
    series = [
        *((mark, placed.filter(~is_own, calibration=kind)) for kind, mark in _MARKS.items()),
        (_ITSELF, placed.filter(is_own)),
    ]
    present = [one for one in series if not one[1].is_empty()] or series
    low, high = _ends(points["separability"])
    room = max(0.0, 0.02 - (high - low) / 2)
    panel = Panel(
        "",
        log_range("x", f"{label('perplexity')} (log scale)", *_ends(points["perplexity"])),
        linear_range("value", f"{label('separability')}, mean over heads", low - room, high + room),
        present,
        names=placed,
    )
    notes = [f"normalizer swapped in every layer, {longest:,} tokens"]
    return Figure("Separability against perplexity", notes, [[panel]], points)


def _ends(values: pl.Series) -> tuple[float, float]:
    """The smallest and largest value; 1 and 2 if there are none."""
    numbers = values.to_numpy()
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (1.0, 2.0)
