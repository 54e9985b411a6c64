"""The most notable numbers of a run in plain words, for a report without findings.

Each is a count of heads above or below a stated limit. They describe measurements and leave judging to the reader:
whether a head can be spared is a question for an intervention.
"""

from __future__ import annotations

from typing import Any

import polars as pl

# From this share of the weight on, one token takes nearly all of it.
RESTING = 0.9
# Participation above this share of the length: the head averages over most of what it sees.
SPREAD = 0.5
# Below this Jacobian norm the gradient through the weights is less than a fiftieth of what softmax allows.
INSENSITIVE = 0.01


def notable_numbers(heads: pl.DataFrame, run: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Notes with a title, a sentence and the heads they are about, in the form of findings."""
    length = run["settings"]["lengths"][-1]
    total = heads.height
    heads = heads.with_columns(pl.selectors.float().fill_nan(None))  # a missing number is neither large nor small
    resting = heads.filter(pl.col("sink_weight") > RESTING)
    sharp = heads.filter((pl.col("max_weight") > RESTING) & (pl.col("sink_weight") <= RESTING))
    broad = heads.filter(pl.col("participation") > SPREAD * length)
    numb = heads.filter(pl.col("jacobian_norm") < INSENSITIVE)
    use, separability = heads["participation"].drop_nulls(), heads["separability"].cast(pl.Float64).drop_nulls()
    notes = [
        _participation(use, length) if use.len() else None,
        _separability(separability, n) if separability.len() else None,
        _counted(
            "first-token",
            f"Sink weight above {RESTING:.0%}",
            resting,
            total,
            "The first token takes nearly all the weight. That is common in trained models and no fault in itself; "
            "whether the head still passes on something of the text is what a diagnosis measures.",
        ),
        _counted(
            "one-token",
            f"Max weight above {RESTING:.0%}, on a token that is not the first",
            sharp,
            total,
            "One token takes nearly all the weight; the others hardly count.",
        ),
        _counted(
            "spread-out",
            f"Participation above half of {length:,} tokens",
            broad,
            total,
            "Such a head averages over so many tokens that a single one hardly counts, even less as the text gets "
            "longer.",
        ),
        _counted(
            "insensitive",
            f"Jacobian norm below {INSENSITIVE:g}",
            numb,
            total,
            "The weights hardly react to the logits: little gradient passes through. The most that softmax allows is "
            "0.5.",
        ),
    ]
    return [note for note in notes if note is not None]


def _participation(use: pl.Series, length: int) -> dict[str, Any]:
    return _note(
        "participation",
        f"Participation: {_plain(use.median())} of {length:,} tokens in the median head",
        f"One head in ten is below {_plain(use.quantile(0.1))}, one in ten above {_plain(use.quantile(0.9))}. It is "
        "the effective number of tokens that share the weight: the more, the less each one counts.",
    )


def _separability(values: pl.Series, n: int) -> dict[str, Any]:
    middle: Any = values.median()
    return _note(
        "separability",
        f"Separability: {middle:.0%} of the top {n} tokens in the median head",
        f"The others lie farther from the weighted sum of the top {n} than some other token does. "
        f"The lowest tenth of the heads is below {values.quantile(0.1, 'linear'):.0%}.",
    )


def _counted(name: str, what: str, heads: pl.DataFrame, total: int, sentence: str) -> dict[str, Any] | None:
    if heads.is_empty():
        return None
    return _note(name, f"{what}: {heads.height:,} of {total:,} heads", sentence, heads)


def _note(name: str, title: str, sentence: str, heads: pl.DataFrame | None = None) -> dict[str, Any]:
    listed = [] if heads is None else [list(pair) for pair in heads.select("layer", "head").iter_rows()]
    return {"id": name, "severity": "note", "title": title, "sentence": sentence, "heads": listed}


def _plain(value: Any) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
