"""The most notable numbers of a run in plain words, for a report without findings.

Each is a count of heads above or below a stated limit. They describe measurements and leave judging to the reader:
whether a head can be spared is a question for an intervention.
"""

from __future__ import annotations

from typing import Any

import polars as pl

# A head counts as resting on the first token, or on one other token, from this share of the weight.
RESTING = 0.9
# A head spreads its weight when it uses more than this share of the tokens it sees.
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
            "Resting on the first token",
            resting,
            total,
            f"The first token takes more than {RESTING:.0%} of the weight: on this text such a head is as good as "
            "switched off. That is common in trained models and by itself no fault.",
        ),
        _counted(
            "one-token",
            "Looking at one token only",
            sharp,
            total,
            f"One token that is not the first takes more than {RESTING:.0%} of the weight; all others hardly count.",
        ),
        _counted(
            "spread-out",
            f"Using more than half of all {length:,} tokens",
            broad,
            total,
            "Such a head averages so much that a single token hardly counts, and counts less as the text gets longer.",
        ),
        _counted(
            "insensitive",
            "Hardly reacting to its scores",
            numb,
            total,
            f"The Jacobian norm is below {INSENSITIVE:g}, where 0.5 is possible: little gradient gets through.",
        ),
    ]
    return [note for note in notes if note is not None]


def _participation(use: pl.Series, length: int) -> dict[str, Any]:
    return _note(
        "participation",
        f"Half of the heads average fewer than {_plain(use.median())} of {length:,} tokens",
        f"One head in ten uses fewer than {_plain(use.quantile(0.1))}, one in ten more than "
        f"{_plain(use.quantile(0.9))}. The more tokens a head averages, the less each one counts.",
    )


def _separability(values: pl.Series, n: int) -> dict[str, Any]:
    middle: Any = values.median()
    return _note(
        "separability",
        f"The median head separates {middle:.0%} of its top {n} tokens from the rest",
        f"The others lie farther from the head's output than some token outside its top {n}. "
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
