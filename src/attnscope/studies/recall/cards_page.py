"""A scorecard as one HTML page: tables with a column for each normalizer, and charts against length and budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from attnscope.columns import label
from attnscope.normalizers.specs import is_file
from attnscope.results.html import document, escape, fragment, heading, table
from attnscope.show.figure_files import render
from attnscope.show.figures import Figure, Mark, Panel, linear_range, log_axis
from attnscope.studies.recall.summary import budget_figure, normalizer_marks

_FACTS = {
    "sums_to_one": "Weights sum to one",
    "at_most_one": "The sum is at most one",
    "non_negative": "No negative weight",
    "sparse": "Exact zeros",
    "shift_invariant": "Invariant to a constant added to all logits",
    "length_aware": "Depends on the number of keys (declared, not tested)",
    "permutation_equivariant": "Permutation-equivariant",
}


def render_page(data: dict[str, Any], summary: pl.DataFrame | None) -> str:
    """The page of a scorecard; `summary` is that of `attnscope recall`, if models were trained."""
    cards = data["cards"]
    specs = [card["normalizer"] for card in cards]
    names = [_short(spec) for spec in specs]
    source = "" if data["recall_run"] is None else f" but recall, which is read from {data['recall_run']}"
    parts = [
        heading(
            "Scorecard of " + ", ".join(specs),
            f"attnscope {data['attnscope']}; every number was computed in this run{source}",
        ),
        "<h4>Facts</h4>",
        _soft("Declared by each normalizer. Tested: " + ", ".join(cards[0]["contracts"]) + "."),
        table(
            ["", *names], [[words, *(_yes(card["facts"][fact]) for card in cards)] for fact, words in _FACTS.items()]
        ),
        "<h4>Bounds</h4>",
        _soft("The most weight of a key among n logits in [-2, 2] (Lemma 1 and its analogues); Lipschitz constant."),
        table(["", *names], _bounds(cards)),
        "<h4>Selectivity and stability</h4>",
        _soft(
            "Mean over rows of standard Gaussian logits, of such rows with one key 2 above the others, and of the last "
            "row of every head of the sample model. Share of the limit: top weight over the largest that Theorem S "
            "allows any permutation-equivariant rule with the same Lipschitz constant, on the same logits; - where "
            "there is none."
        ),
        *_selectivity(cards),
        "<h4>Capacity on real logits</h4>",
        _soft("What if the sample model's own logits had each normalizer: medians over heads, by length."),
        *(_capacity(data["capacity"], column) for column in ("separability", "max_weight", "participation")),
        "<h4>Speed</h4>",
        _soft("Time over that of torch.softmax on 8,192 rows of 1,024 logits."),
        table(
            ["", *names],
            [
                [words, *(f"{card['speed'][key]:.2f}" for card in cards)]
                for key, words in (("forward_ratio", "Forward"), ("total_ratio", "Forward and backward"))
            ],
        ),
    ]
    charts = {}
    if summary is not None and summary.height:
        parts += ["<h4>Recall</h4>", _soft(_RECALL), *_recall(summary)]
        charts["Accuracy against length, without a budget"] = _svg(length_figure(summary))
        budgets = budget_figure(summary)
        if budgets is not None:
            charts["Accuracy and weight of the answer against the Jacobian budget"] = _svg(budgets)
    return document("Scorecard of " + ", ".join(specs), fragment("".join(parts)), charts)


_RECALL = (
    "Percent right, mean over seeds with half its 95% interval, of small models trained at the first length. *: the "
    "difference to the best, seed by seed, has an interval that contains 0."
)


def _short(spec: str) -> str:
    """A class from a file by its own name, which no other normalizer of the page has."""
    return spec.rpartition(":")[2] if is_file(spec) else spec


def _soft(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _bounds(cards: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for index, line in enumerate(cards[0]["bounds"]):
        for key, words in (("upper", "most weight"), ("lipschitz", "Lipschitz constant")):
            cells = [card["bounds"][index][key] for card in cards]
            missing = "none" if key == "lipschitz" else "-"
            rows.append([f"n = {line['length']:,}: {words}", *(missing if v is None else f"{v:.3g}" for v in cells)])
    return rows


def _selectivity(cards: Sequence[dict[str, Any]]) -> list[str]:
    columns = {
        "max_weight": label("max_weight"),
        "support": label("support"),
        "jacobian_norm": label("jacobian_norm"),
        "share_of_limit": "Share of the limit",
    }
    found = []
    for key, words in columns.items():
        rows = [
            [f"{line['logits']}, {line['length']:,}", *(_number(card["selectivity"][i][key]) for card in cards)]
            for i, line in enumerate(cards[0]["selectivity"])
        ]
        found.append(table([words, *(_short(card["normalizer"]) for card in cards)], rows))
    return found


def _capacity(lines: Sequence[dict[str, Any]], column: str) -> str:
    lengths = sorted({line["length"] for line in lines})
    names = list(dict.fromkeys(line["normalizer"] for line in lines))
    values = {(line["normalizer"], line["length"]): line[column] for line in lines}
    heads = [label(column, 20), *(f"{length:,}" for length in lengths)]
    return table(heads, [[_short(name), *(_number(values[name, length]) for length in lengths)] for name in names])


def _recall(summary: pl.DataFrame) -> list[str]:
    from attnscope.studies.recall.view import accuracy_words, setting_words

    found = []
    for keys, part in summary.group_by(("task", "position_encoding", "qk_norm", "budget"), maintain_order=True):
        lengths = part["length"].unique().sort().to_list()
        rows = [
            [_short(str(name)), *(accuracy_words(line) for line in lines.sort("length").to_dicts())]
            for (name,), lines in part.group_by(["normalizer"], maintain_order=True)
        ]
        found.append(table([setting_words(*keys), *(f"{length:,}" for length in lengths)], rows))
    return found


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


def _svg(figure: Figure) -> str:
    return render(json.dumps(figure.chart().to_dict(validate=False)))[0].decode()
