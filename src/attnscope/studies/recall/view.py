"""What a recall run and a scorecard show: tables for each task and budget, and charts against length and budget.

The lower row of the chart against budget has the weight of the answer, for tasks with one answer, and as frontier the
largest weight that Theorem S leaves to any permutation-equivariant rule with this budget on the same logits. No theorem
limits the accuracy itself, because a class can be read from a small weight if the others cancel: its upper line is the
best reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from attnscope.columns import label
from attnscope.normalizers.specs import is_file
from attnscope.show.blocks import Block, Chart, Heading, Note, Table, Verdict
from attnscope.show.figure_files import FigureStyle, draw_into
from attnscope.show.figures import Figure, Mark, Panel, linear_range, log_axis
from attnscope.show.numbers import counted, number
from attnscope.show.palette import BLACK, BLUE, GREEN, LIGHT_GRAY, ORANGE, PURPLE, RED, SKY

_GROUP = ("task", "position_encoding", "qk_norm", "budget")


def recall_blocks(summary: pl.DataFrame) -> list[Block]:
    """What was trained and tested, which normalizer is most often among the best, and the tables."""
    return [Heading(*heading(summary)), *_verdict(summary), *recall_tables(summary)]


def heading(summary: pl.DataFrame) -> tuple[str, str]:
    """What was trained, and how it was tested."""
    tasks = ", ".join(summary["task"].unique(maintain_order=True))
    ratios = ", ".join(f"{ratio:,}" for ratio in summary["length_ratio"].unique().sort())
    settings = f"{tasks}; {counted(summary['seeds'][0], 'seed')}, tested at {ratios} times the training length"
    return f"Recall with {counted(summary['normalizer'].n_unique(), 'normalizer')}", settings


def _verdict(summary: pl.DataFrame) -> list[Block]:
    """Who has most stars at the longest length; nothing if there is no one to compare with."""
    if summary["normalizer"].n_unique() == 1:
        return []
    longest = summary.filter(pl.col("length_ratio") == pl.col("length_ratio").max())
    counts = longest.group_by("normalizer", maintain_order=True).agg(pl.col("among_best").sum())
    most = int(counts["among_best"].to_numpy().max())
    names = [_short(name) for name in counts.filter(among_best=most)["normalizer"]]
    settings = counted(longest.select(_GROUP).n_unique(), "setting")
    words = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are each'} among the best in {most} of {settings}"
    ratio = longest["length_ratio"][0]
    return [Verdict(f"At {'' if ratio == 1 else f'{ratio} times '}the training length, {words}.")]


def recall_tables(summary: pl.DataFrame) -> list[Block]:
    """Accuracy by length for each normalizer, with half the 95% interval, and a star on the best ones."""
    found: list[Block] = [_table(_setting(*keys), part) for keys, part in summary.group_by(_GROUP, maintain_order=True)]
    reader = " Best reader: who knows the task and has the same examples." if _has_reader(summary) else ""
    found.append(
        Note(
            f"Percent right, mean over {summary['seeds'][0]} seeds, with half its 95% interval. *: the difference to "
            "the best, seed by seed, has an interval that contains 0. J: largest Jacobian norm that was measured."
            f"{reader}",
            "soft",
        )
    )
    return [*found, *_budget_chart(summary)]


def _has_reader(part: pl.DataFrame) -> bool:
    """Whether the best reader has a line: one who is always right has none."""
    return bool((part["ceiling"] < 1).any())


def _budget_chart(summary: pl.DataFrame) -> list[Block]:
    figure = budget_figure(summary)
    title = "Accuracy and weight of the answer against the Jacobian budget"
    return [] if figure is None else [Chart(title, lambda: figure, PICTURE)]


def _setting(task: object, encoding: object, qk_norm: object, budget: object) -> str:
    """The setting of a table: "needle: Jacobian norm at most 3, rope positions"."""
    words = "no budget" if budget is None else f"Jacobian norm at most {budget:g}"
    details = [] if encoding == "none" else [f"{encoding} positions"]
    details += [] if qk_norm else ["no QK-norm"]
    return ", ".join([f"{task}: {words}", *details])


def _table(title: str, part: pl.DataFrame) -> Table:
    lengths = part.select("length", "length_ratio", "ceiling").unique(maintain_order=True).sort("length").to_dicts()
    headings = ["Normalizer", *(f"{one['length']:,} (x{one['length_ratio']})" for one in lengths), "J"]
    rows = []
    for (name,), lines in part.group_by(["normalizer"], maintain_order=True):
        cells = [_accuracy_words(line) for line in lines.sort("length").to_dicts()]
        norms = [line["jacobian_norm"] for line in lines.to_dicts()]
        rows.append([_short(str(name)), *cells, f"{max(norms):.2g}"])
    if _has_reader(part):
        rows.append(["best reader", *(f"{100 * one['ceiling']:.1f}       " for one in lengths), ""])
    return Table(headings, rows, title)


def _accuracy_words(line: dict[str, float]) -> str:
    """An accuracy with half its interval, in percent, and a star if it is among the best."""
    half = line["accuracy_high"] - line["accuracy"]
    return f"{100 * line['accuracy']:.1f} ± {100 * half:4.1f}{'*' if line['among_best'] else ' '}"


def _short(spec: str) -> str:
    """A class from a file by its own name, which no other normalizer of the page has."""
    return spec.rpartition(":")[2] if is_file(spec) else spec


_FACTS = {
    "sums_to_one": "Weights sum to one",
    "at_most_one": "The sum is at most one",
    "non_negative": "No negative weight",
    "sparse": "Exact zeros",
    "shift_invariant": "Invariant to a constant added to all logits",
    "length_aware": "Depends on the number of keys (declared, not tested)",
    "permutation_equivariant": "Permutation-equivariant",
}


def scorecard_blocks(data: dict[str, Any], verbose: bool) -> list[Block]:
    """The most important lines, a row for each normalizer; if `verbose` everything, a column for each."""
    lines = data["recall"]
    summary = pl.DataFrame(lines, infer_schema_length=None) if lines else None
    recall = [] if summary is None else recall_tables(summary)
    if not verbose:
        return [_summary(data["cards"]), *recall]
    cards = data["cards"]
    names = ["", *(_short(card["normalizer"]) for card in cards)]
    source = "" if data["recall_run"] is None else f" but recall, which is read from {data['recall_run']}"
    speed = {"forward_ratio": "Forward", "total_ratio": "Forward and backward"}
    found: list[Block] = [
        Heading(
            "Scorecard of " + ", ".join(card["normalizer"] for card in cards),
            f"attnscope {data['attnscope']}; every number was computed in this run{source}",
        ),
        Table(
            names,
            [[words, *("yes" if card["facts"][fact] else "no" for card in cards)] for fact, words in _FACTS.items()],
            "Facts",
            notes=(f"Declared by each normalizer. Tested: {', '.join(cards[0]['contracts'])}.",),
        ),
        Table(names, _bounds(cards), "Bounds", notes=(_OF_BOUNDS,)),
        Heading("Selectivity and stability", level=2),
        Note(_OF_SELECTIVITY, "soft"),
        *_selectivity(cards),
        Heading("Capacity on real logits", level=2),
        Note(
            "What if the sample model's own logits had each normalizer: medians over heads, by length.",
            "soft",
        ),
        *(_capacity(data["capacity"], column) for column in ("separability", "max_weight", "participation")),
        Table(
            names,
            [[words, *(f"{card['speed'][key]:.2f}" for card in cards)] for key, words in speed.items()],
            "Speed",
            notes=("Time over that of torch.softmax on 8,192 rows of 1,024 logits.",),
        ),
    ]
    if summary is not None:
        against = Chart("Accuracy against length, without a budget", lambda: length_figure(summary))
        found += [Heading("Recall", level=2), against, *recall]
    return found


_OF_BOUNDS = "The most weight of a key among n logits in [-2, 2] (Lemma 1 and its analogues); Lipschitz constant."
_OF_SELECTIVITY = (
    "Mean over rows of standard Gaussian logits, of such rows with one key 2 above the others, and of the last row of "
    "every head of the sample model. Share of the limit: top weight over the largest that Theorem S allows any "
    "permutation-equivariant rule with the same Lipschitz constant, on the same logits; - where there is none."
)


def _summary(cards: Sequence[dict[str, Any]]) -> Table:
    headings = ["Normalizer", "Lipschitz at 64", "at 16,384"]
    first = [line for line in cards[0]["selectivity"] if line["logits"] in ("gapped", "real")]
    wanted = [(line["logits"], line["length"]) for line in (first[1], first[-1])]
    for kind, length in wanted:
        headings += [f"Top weight {kind} {length:,}", f"Share of limit {kind} {length:,}"]
    headings += ["Forward / softmax", "Both / softmax"]
    rows = []
    for card in cards:
        by_rows = {(line["logits"], line["length"]): line for line in card["selectivity"]}
        cells = [_number(card["bounds"][i]["lipschitz"], "none") for i in (0, -1)]
        for key in wanted:
            cells += [number(by_rows[key]["max_weight"]), number(by_rows[key]["share_of_limit"])]
        speed = card["speed"]
        rows.append([card["normalizer"], *cells, f"{speed['forward_ratio']:.2f}", f"{speed['total_ratio']:.2f}"])
    note = (
        "Share of limit: top weight over the largest that Theorem S allows at the same Lipschitz constant, on the "
        "same logits. gapped: one key 2 above Gaussian logits; real: the sample model's own."
    )
    return Table(headings, rows, "Scorecard", notes=(note,))


def _number(value: float | None, missing: str) -> str:
    return missing if value is None else number(value)


def _bounds(cards: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for index, line in enumerate(cards[0]["bounds"]):
        for key, words in (("upper", "most weight"), ("lipschitz", "Lipschitz constant")):
            cells = [card["bounds"][index][key] for card in cards]
            missing = "none" if key == "lipschitz" else "-"
            rows.append([f"n = {line['length']:,}: {words}", *(_number(v, missing) for v in cells)])
    return rows


def _selectivity(cards: Sequence[dict[str, Any]]) -> list[Table]:
    columns = {name: label(name) for name in ("max_weight", "support", "jacobian_norm")}
    found = []
    for key, words in (columns | {"share_of_limit": "Share of the limit"}).items():
        rows = [
            [f"{line['logits']}, {line['length']:,}", *(number(card["selectivity"][i][key]) for card in cards)]
            for i, line in enumerate(cards[0]["selectivity"])
        ]
        found.append(Table([words, *(_short(card["normalizer"]) for card in cards)], rows))
    return found


def _capacity(lines: Sequence[dict[str, Any]], column: str) -> Table:
    lengths = sorted({line["length"] for line in lines})
    names = list(dict.fromkeys(line["normalizer"] for line in lines))
    values = {(line["normalizer"], line["length"]): line[column] for line in lines}
    heads = [label(column, 20), *(f"{length:,}" for length in lengths)]
    return Table(heads, [[_short(name), *(number(values[name, length]) for length in lengths)] for name in names])


RATIO = 16
NAME = "budget"
PICTURE = f"{NAME}.svg"
_COLORS = (BLUE, SKY, PURPLE, GREEN, LIGHT_GRAY, ORANGE, RED, "#6b4226")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
_BEST = Mark("best reader", BLACK, line=1, dash=(2, 2))
_FRONTIER = Mark("limit of Theorem S", BLACK, line=1.2, dash=(5, 3))


def draw_picture(folder: Path, summary: pl.DataFrame) -> list[str]:
    """Write the picture as SVG, PDF, PNG and its data; nothing if fewer than two budgets were run at 16 times."""
    figure = budget_figure(summary)
    return [] if figure is None else draw_into(folder, {NAME: figure}, FigureStyle())


def budget_figure(summary: pl.DataFrame) -> Figure | None:
    """The figure; None if fewer than two budgets were run at 16 times the training length."""
    points = summary.filter(pl.col("budget").is_not_null(), length_ratio=RATIO, qk_norm=True).sort("budget")
    budgets = points["budget"].unique().to_list()
    if len(budgets) < 2:
        return None
    marks = normalizer_marks(points["normalizer"].unique(maintain_order=True).to_list())
    tasks = points.select("task", "position_encoding").unique(maintain_order=True).to_dicts()
    upper = [_accuracy(points.filter(**task), marks, task["task"]) for task in tasks]
    lower = [_weight(part, marks) for task in tasks if _has_limit(part := points.filter(**task))]
    notes = [
        "mean over seeds with 95% intervals",
        "the frontier is the largest mean weight of the answer that Theorem S allows on the logits of any model",
    ]
    title = f"Accuracy at {RATIO} times the training length against the Jacobian budget"
    return Figure(title, notes, [upper, lower] if lower else [upper], points)


def normalizer_marks(names: Sequence[str]) -> dict[str, Mark]:
    """A color and shape for each normalizer."""
    return {
        name: Mark(name, _COLORS[i % len(_COLORS)], point=_SHAPES[i % len(_SHAPES)], bar=1)
        for i, name in enumerate(names)
    }


def _has_limit(part: pl.DataFrame) -> bool:
    return part["answer_weight_limit"].is_not_null().any()


def _accuracy(part: pl.DataFrame, marks: dict[str, Mark], task: str) -> Panel:
    columns = part.select("normalizer", x="budget", value="accuracy", low="accuracy_low", high="accuracy_high")
    clipped = columns.with_columns(pl.col("low", "high").clip(0, 1))
    series = [(mark, clipped.filter(normalizer=name)) for name, mark in marks.items()]
    best = part.group_by("budget", maintain_order=True).agg(value=pl.col("ceiling").max()).rename({"budget": "x"})
    return Panel(task, _budgets(part), linear_range("value", "Accuracy", 0, 1), [*series, (_BEST, best)])


def _weight(part: pl.DataFrame, marks: dict[str, Mark]) -> Panel:
    columns = part.select("normalizer", x="budget", value="answer_weight", low="answer_weight", high="answer_weight")
    series = [(mark, columns.filter(normalizer=name)) for name, mark in marks.items()]
    limit = part.group_by("budget", maintain_order=True).agg(value=pl.col("answer_weight_limit").max())
    return Panel(
        f"{part['task'][0]}: weight of the answer",
        _budgets(part),
        linear_range("value", "Answer weight", 0, 1),
        [*series, (_FRONTIER, limit.rename({"budget": "x"}))],
    )


def _budgets(part: pl.DataFrame) -> dict[str, object]:
    return log_axis("x", "Jacobian budget K", part["budget"].to_list())


def length_figure(summary: pl.DataFrame) -> Figure:
    """Accuracy against length without a budget, a panel for each task."""
    points = summary.filter(pl.col("budget").is_null()).sort("length")
    marks = normalizer_marks(points["normalizer"].unique(maintain_order=True).to_list())
    panels = [_length_panel(part, marks, str(task)) for (task,), part in points.group_by(["task"], maintain_order=True)]
    return Figure("Accuracy against length", ["mean over seeds with 95% intervals"], [panels], points)


def _length_panel(part: pl.DataFrame, marks: dict[str, Mark], task: str) -> Panel:
    columns = part.select("normalizer", x="length", value="accuracy", low="accuracy_low", high="accuracy_high")
    columns = columns.with_columns(pl.col("low", "high").clip(0, 1))
    series = [(mark, columns.filter(normalizer=name)) for name, mark in marks.items()]
    return Panel(
        task,
        log_axis("x", "Length (log scale)", part["length"].to_list()),
        linear_range("value", "Accuracy", 0, 1),
        series,
    )
