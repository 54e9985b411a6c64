"""The paper's three guidelines for designing attention, as experiments on any model.

Each states what the guideline predicts, measures it by swapping the model's normalizer, and computes a verdict from the
numbers: `agrees`, `disagrees`, or `undecided` where what was measured hardly moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from attnscope.capture.models import Model, resolve_model
from attnscope.experiments.compare import Comparison, compare
from attnscope.planning import plan
from attnscope.tables import OWN

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.text import Text

Verdict = Literal["agrees", "disagrees", "undecided"]
SHARES = (1 / 64, 1 / 16, 1 / 4, 1.0)
TEMPERATURES = (0.25, 0.5, 1.0, 2.0)
# A change below this share of the larger value is called none.
MARGIN = 0.02


@dataclass(frozen=True)
class Finding:
    """One guideline: what it predicts, what was measured, and the verdict on each prediction."""

    guideline: str
    predicts: str
    measured: str
    verdict: Verdict
    table: list[dict[str, Any]]


@dataclass(frozen=True)
class Guidelines:
    """The three findings and the comparison they were read from."""

    findings: list[Finding]
    comparison: Comparison

    def as_json(self) -> dict[str, Any]:
        """For `guidelines.json`."""
        return {"run": self.comparison.run, "findings": [asdict(finding) for finding in self.findings]}


def guidelines(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    *,
    lengths: Sequence[int] | None = None,
    windows: int = 1,
    top_n: int = 20,
    progress: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Guidelines:
    """Try the three guidelines on a causal model and a text."""
    model = resolve_model(model, **options)
    lengths = plan(model.positions, None, lengths, [top_n]).lengths
    length = max(lengths)
    counts = sorted({max(1, round(share * length)) for share in SHARES})
    active = {f"topk:k={count}": count / length for count in counts}
    sharp = {f"softmax:temperature={t:g}": t for t in TEMPERATURES}
    compared = compare(
        model,
        text,
        [*active, *sharp],
        lengths=lengths,
        windows=windows,
        top_n=top_n,
        modes=["swapped"],
        progress=progress,
    )
    longest = compared.table.filter(length=length)
    findings = [
        small_active_set(longest, active),
        entropy_with_length(compared.table),
        no_sharp_softmax(longest, sharp),
    ]
    return Guidelines(findings, compared)


def small_active_set(table: pl.DataFrame, shares: dict[str, float]) -> Finding:
    """Keep the active set small: top-k with k a share of the length."""
    lines = _select(table, shares, "share", ["perplexity", "separability", "support"])
    small, whole = lines[0], lines[-1]
    verdict = direction(small["separability"], whole["separability"])
    best = min(lines, key=lambda line: line["perplexity"])
    measured = (
        f"separability {small['separability']:.3f} at k/L = {small['share']:.3g} against {whole['separability']:.3f} "
        f"with all keys; perplexity {small['perplexity']:.4g} against {whole['perplexity']:.4g}, lowest at k/L = "
        f"{best['share']:.3g}"
    )
    return Finding(
        "keep the active set small",
        "the smaller the share of keys that get weight, the more separable the top tokens",
        measured,
        verdict,
        lines,
    )


def entropy_with_length(table: pl.DataFrame) -> Finding:
    """Watch the entropy: the model's own heads, from the shortest to the longest prefix."""
    columns = ["length", "entropy_ratio", "separability"]
    lines = table.filter(normalizer=OWN).sort("length").select(columns).to_dicts()
    first, last = lines[0], lines[-1]
    entropy = last["entropy_ratio"] - first["entropy_ratio"]
    capacity = last["separability"] - first["separability"]
    # The guideline takes entropy for a warning: where it moves, separability must move the other way.
    moved = abs(entropy) > MARGIN * max(abs(first["entropy_ratio"]), abs(last["entropy_ratio"]))
    same = abs(capacity) <= MARGIN * max(first["separability"], last["separability"])
    verdict: Verdict = "undecided" if not moved or same else "agrees" if entropy * capacity < 0 else "disagrees"
    measured = (
        f"from {first['length']} to {last['length']} tokens the entropy ratio goes from {first['entropy_ratio']:.3f} "
        f"to {last['entropy_ratio']:.3f}, separability from {first['separability']:.3f} to {last['separability']:.3f}"
    )
    return Finding(
        "watch the entropy",
        "where the entropy of the weights comes nearer to that of uniform ones, separability falls",
        measured,
        verdict,
        lines,
    )


def no_sharp_softmax(table: pl.DataFrame, temperatures: dict[str, float]) -> Finding:
    """Avoid overly sharp softmax: the temperature sweep."""
    lines = _select(table, temperatures, "temperature", ["perplexity", "separability", "jacobian_norm", "kl"])
    sharp, plain = lines[0], next(line for line in lines if line["temperature"] == 1.0)
    gradient = direction(sharp["jacobian_norm"], plain["jacobian_norm"])
    measured = (
        f"from T = 1 to T = {sharp['temperature']:g} the Jacobian norm goes from {plain['jacobian_norm']:.3f} to "
        f"{sharp['jacobian_norm']:.3f}, separability from {plain['separability']:.3f} to {sharp['separability']:.3f}, "
        f"perplexity from {plain['perplexity']:.4g} to {sharp['perplexity']:.4g}"
    )
    return Finding(
        "avoid overly sharp softmax",
        "the lower the temperature, the larger the Jacobian norm: gains in separability are paid in stability",
        measured,
        gradient,
        lines,
    )


def direction(higher: float, lower: float) -> Verdict:
    """Whether the first is larger than the second, as predicted, by more than the margin."""
    if abs(higher - lower) <= MARGIN * max(abs(higher), abs(lower)):
        return "undecided"
    return "agrees" if higher > lower else "disagrees"


def _select(table: pl.DataFrame, values: dict[str, float], name: str, columns: list[str]) -> list[dict[str, Any]]:
    """The lines of these normalizers with the value that each stands for, smallest first."""
    by_label = {line["normalizer"]: line for line in table.to_dicts()}
    lines = [{name: value} | {c: by_label[label][c] for c in columns} for label, value in values.items()]
    return sorted(lines, key=lambda line: line[name])
