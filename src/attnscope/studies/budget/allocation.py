"""Budgets with the smallest total error for a number of keys, and their forms for other programs.

First the error of every key-value head when rows attend to some of their keys only, by kind and number of kept keys:
rows are those after a context, and keys are chosen as in `selection.LayerChoice`. The error of a row is the change of
what the head adds to the residual stream, relative to the stream, squared; heads that share keys count as the most
demanding of them. Rows and windows are averaged.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from attnscope.diagnosis.observing import HeadOutputs, context_of
from attnscope.engine.run import Forward, Window, WindowRecord, run_windows
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import softmax
from attnscope.studies.budget.selection import FIRST, KINDS, Allocation, LayerChoice, observed_scores, with_total
from attnscope.swapping.key_budget import HeadBudget, KeyBudget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.models import Model
    from attnscope.columns import VectorKind
    from attnscope.engine.run import LayerCall, Positions
    from attnscope.progress import OnStep
    from attnscope.studies.budget.selection import BudgetSettings

_SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
_ROWS = 16  # of each window


def measured_sizes(length: int) -> list[int]:
    """The numbers of kept keys to measure: 1, some shares of the length, all."""
    return sorted({1, length, *(max(1, round(share * length)) for share in _SHARES)})


@dataclass
class _Errors(WindowRecord):
    """The errors of each layer, (kv_heads, kinds, sizes)."""

    layers_errors: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class NeedsMeasurer:
    """Measures the errors of every layer."""

    settings: BudgetSettings

    @property
    def vectors(self) -> Sequence[VectorKind | Literal["effects"]]:
        """What heads add to the residual stream, and the stream."""
        return ("value", "hidden", "effects")

    def start(self, number: int) -> _Errors:
        """The empty record of a window."""
        return _Errors(number)

    def measure(self, record: _Errors, layer: LayerCall, positions: Positions) -> None:
        """Measure the rows after the context."""
        call = layer.call
        (rows,) = positions.values()
        visible = call.visible(rows)
        outputs = HeadOutputs.of(softmax(call.logits(rows), visible), layer.vectors["value"].double())
        stream = layer.vectors["hidden"][0, list(rows)].double()
        assert layer.effects is not None
        effects = layer.effects.rows(call, rows, outputs.context, stream)
        outputs = outputs.times(effects.factor)
        square = stream.square().sum(-1)
        scores = observed_scores(call, self.settings)
        shared = call.heads // len(scores)
        sizes = measured_sizes(self.settings.length)
        errors = torch.empty(len(scores), len(KINDS), len(sizes), dtype=torch.float64)
        for column, size in enumerate(sizes):
            counts = torch.full((len(scores),), size)
            for line in range(len(KINDS)):
                choice = LayerChoice(counts, torch.full_like(counts, line), scores, self.settings.observed)
                kept = choice.kept(torch.tensor(rows), call.keys).repeat_interleave(shared, 0)
                change = effects.added(outputs.context - context_of(outputs, kept & visible))
                squares = change.square().sum(-1) / square
                errors[:, line, column] = squares.mean(-1).unflatten(0, (-1, shared)).amax(-1).cpu()
        if not errors.isfinite().all():
            raise ModelError(f"{layer.name} has logits or values that are not finite; no budget can be made for it")
        record.layers_errors[layer.number] = errors

    def finish(self, record: _Errors) -> list[Tensor]:
        """The errors by layer."""
        return [record.layers_errors[number] for number in sorted(record.layers_errors)]


def measure_needs(
    model: Model, windows: Sequence[list[int]], settings: BudgetSettings, report: OnStep
) -> list[Float[Tensor, "kv_heads kinds sizes"]]:
    """The mean error over windows of each layer's key-value heads, by kind and number of kept keys."""
    step = max(1, settings.observed // _ROWS)
    rows = tuple(range(settings.length, settings.length + settings.observed, step))
    plan = [Window(number, [Forward(ids, {len(ids): rows})]) for number, ids in enumerate(windows)]
    parts = list(run_windows(model, plan, NeedsMeasurer(settings), progress=report))
    return [torch.stack(layer).mean(0) for layer in zip(*parts, strict=True)]


_POINTS = 96  # numbers of keys to choose from, in equal ratios
_STEPS = 200  # halvings of the price of a key


def allocate(needs: Sequence[Float[Tensor, "kv_heads kinds sizes"]], settings: BudgetSettings) -> Allocation:
    """The kind and number of keys of each head with the smallest sum of errors, for `keep` of all keys.

    For a price of a key, each head takes the kind and number with the smallest error plus cost; the price is the
    lowest at which all heads together keep no more than their share. Errors between measured numbers are interpolated.
    """
    length = settings.length
    errors = torch.cat(list(needs)).numpy()  # (heads, kinds, sizes)
    total = round(settings.keep * length * len(errors))
    sizes = np.unique(np.geomspace(1, length, _POINTS).round().astype(np.int64))
    curves = np.array([[_curve(line, sizes, length) for line in head] for head in errors])

    def at(price: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        best = (curves + price * sizes).reshape(len(curves), -1).argmin(-1)
        return sizes[best % len(sizes)], best // len(sizes)

    low, high = 1e-30, max(1.0, 2 * float(curves.max()))  # at the high price one key is the best
    for _ in range(_STEPS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if at(middle)[0].sum() > total else (low, middle)
    counts, kinds = at(high)
    return Allocation(with_total(counts.astype(np.float64), total, length), kinds)


def _curve(errors: NDArray[np.float64], sizes: NDArray[np.int64], length: int) -> NDArray[np.float64]:
    """Errors at these sizes, never larger for more keys."""
    return np.interp(np.log(sizes), np.log(measured_sizes(length)), np.minimum.accumulate(errors))


def key_budget(
    allocation: Allocation, kv_heads: Sequence[int], settings: BudgetSettings, about: Mapping[str, Any]
) -> KeyBudget:
    """An allocation as a budget to apply."""
    places = [(layer, head) for layer, count in enumerate(kv_heads) for head in range(count)]
    numbers = zip(places, allocation.counts.tolist(), allocation.kinds.tolist(), strict=True)
    heads = tuple(_head(layer, head, count, KINDS[kind], settings.length) for (layer, head), count, kind in numbers)
    return KeyBudget(heads, settings.length, about)


def _head(layer: int, head: int, count: int, kind: str, length: int) -> HeadBudget:
    if count == length:
        return HeadBudget(layer, head, "all")
    if kind == "top":
        return HeadBudget(layer, head, "top", share=count / length)
    first = min(FIRST, count - 1)
    return HeadBudget(layer, head, "first_recent", first=first, recent=count - first)


def beyond_window(budget: KeyBudget, reach: pl.DataFrame, source: str) -> list[dict[str, Any]]:
    """The first_recent heads whose reach, as `attnscope horizon` predicts it, is longer than their window.

    `reach` has one line for each `layer` and `head`; its `reach` is null if it is longer than what was predicted.
    """
    found = {(line["layer"], line["head"]): line["reach"] for line in reach.to_dicts()}
    kv_heads = Counter(head.layer for head in budget.heads)
    if {layer for layer, _ in found} != set(kv_heads):
        raise InputError(f"{source} is not a prediction for the same model: it has other layers; predict again")
    lines = []
    for head in budget.heads:
        shared = sum(layer == head.layer for layer, _ in found) // kv_heads[head.layer]
        members = [found.get((head.layer, head.kv_head * shared + each)) for each in range(shared)]
        longest = max((each if each is not None else math.inf for each in members), default=math.inf)
        if head.kind == "first_recent" and longest > head.recent:
            place = {"layer": head.layer, "kv_head": head.kv_head, "recent": head.recent}
            lines.append(place | {"reach": None if longest == math.inf else longest})
    return lines


def layer_budgets(budget: KeyBudget) -> list[dict[str, Any]]:
    """For engines that set one number per layer: keys of its heads at the measured length, mean and largest."""
    lines = []
    for layer in sorted({head.layer for head in budget.heads}):
        kept = [head.kept(budget.length) for head in budget.heads if head.layer == layer]
        stored = [head.stored(budget.length) for head in budget.heads if head.layer == layer]
        mean = sum(kept) / len(kept)
        lines.append(
            {
                "layer": layer,
                "kv_heads": len(kept),
                "mean_keys": mean,
                "most_keys": max(kept),
                "share": mean / budget.length,
                "stored_share": sum(stored) / len(stored) / budget.length,
            }
        )
    return lines


def duo_attention(budget: KeyBudget) -> tuple[str, dict[str, int]]:
    """DuoAttention's two files: full heads (1) by layer and key-value head as tab-separated values, and its sizes.

    DuoAttention has one window for all its streaming heads, so it gets the largest.
    """
    full = [
        [f"{float(head.kind != 'first_recent'):.1f}" for head in budget.heads if head.layer == layer]
        for layer in sorted({head.layer for head in budget.heads})
    ]
    streaming = [head for head in budget.heads if head.kind == "first_recent"]
    sizes = {
        "sink_size": max((head.first for head in streaming), default=FIRST),
        "recent_size": max((head.recent for head in streaming), default=1),
    }
    return "".join("\t".join(line) + "\n" for line in full), sizes
