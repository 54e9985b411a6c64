"""What a diagnosis measures of each head and row, at which rows: outputs under simpler rules, and null models.

A rule keeps some of a row's visible keys (`swapping.key_budget`) and gives them the softmax of their logits, so that
the row's total weight stays what it was; where the model has a sink logit, it stays in the sum. The same rules replace
a head's weights inside the model when a diagnosis is verified.

Two null models on the same vectors: the head's top set with equal weights (the weights carry no information), and
random sets of the same size with the weights that the head gives them (the choice carries no information).

Rows for the states lie evenly in the second half of a window, where lengths are within a factor of two: short rows
would make every head look local. Some rows at shorter lengths show how a head's needs grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from attnscope._numerics import loop
from attnscope._process import parallel_for
from attnscope.diagnosis.states import RULES, TOP_SHARE
from attnscope.engine.run import Head as Head, WindowRecord, plan_windows
from attnscope.intervals import evenly_spaced
from attnscope.measure.specification import Rows, row_entropy, unit
from attnscope.swapping.key_budget import first_visible
from attnscope.swapping.replacement import effective_normalizer
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import ball

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.effects import RowEffects
    from attnscope.capture.models import ModelFacts
    from attnscope.columns import VectorKind
    from attnscope.diagnosis.states import Thresholds
    from attnscope.engine.run import LayerCall, Positions, WindowPlan


ERRORS = (0.02, 0.05, 0.1, 0.2, 0.4)  # at which the number of keys that is enough is measured
RANDOM_SETS = 1  # for each row; means over rows and windows are reported


def separability_columns(
    weights: Float[Tensor, "groups rows keys"],
    visible: Bool[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    n: int,
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "groups rows"]]:
    """Separability of the top n, without the first key, and under both nulls.

    NaN where no other key is left, or fewer than n keys get weight: keys of weight zero fill up a top set by position.
    """
    units = unit(vectors)
    top = top_sets(weights, visible, [n])
    measured = ball(Configuration(weights, units, visible, top)).separability
    equal = visible / visible.sum(-1, keepdim=True).clamp_min(1)
    uniform = ball(Configuration(equal.to(weights.dtype), units, visible, top)).separability
    rest = visible & (visible.cumsum(-1) > 1)
    without = torch.where(rest, weights, 0)
    no_first = ball(Configuration(without, units, rest, top_sets(without, rest, [n]))).separability
    defined = (visible.sum(-1) > n) & ((weights > 0).sum(-1) >= n)
    columns = {
        "separability": (measured[..., 0], defined),
        "null_random": (random_separability(weights, visible, vectors, n, generator), defined),
        "null_uniform": (uniform[..., 0], defined),
        "separability_without_sink": (no_first[..., 0], (rest.sum(-1) > n) & ((without > 0).sum(-1) >= n)),
    }
    return {name: torch.where(where, value, torch.nan) for name, (value, where) in columns.items()}


def random_separability(
    weights: Float[Tensor, "groups rows keys"],
    visible: Bool[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    n: int,
    generator: torch.Generator,
) -> Float[Tensor, "groups rows"]:
    """Separability of random sets of n keys with the weights that the head gives them.

    NaN where no other key is left, or fewer than n keys get weight.
    """
    drawn = random_sets(visible, n, RANDOM_SETS, generator)
    separability = ball(Configuration(weights, unit(vectors), visible, drawn)).separability.mean(-1)
    defined = (visible.sum(-1) > n) & ((weights > 0).sum(-1) >= n)
    return torch.where(defined, separability, torch.nan)


def random_sets(
    visible: Bool[Tensor, "*batch keys"], n: int, count: int, generator: torch.Generator
) -> Bool[Tensor, "*batch sets keys"]:
    """Uniformly random sets of n visible keys."""
    shape = (*visible.shape[:-1], count, visible.shape[-1])
    scores = torch.rand(shape, generator=generator, dtype=torch.float64).to(visible.device)
    scores = torch.where(visible.unsqueeze(-2), scores, -1)
    keys = scores.topk(min(n, visible.shape[-1]), dim=-1).indices
    chosen = torch.zeros(shape, dtype=torch.bool, device=visible.device).scatter_(-1, keys, True)
    return chosen & visible.unsqueeze(-2)


SHORTER_ROWS = 16
SHUT = 0.01  # mean size of a gate, below: nearly shut
SHORTEST = 16
_MEMORY = 256 * 2**20
# Arrays of heads x rows x keys in float64 held at one time, at most.
_COPIES = 24


@dataclass
class WindowRows(WindowRecord):
    """The measures of one window: for each head, columns over the rows of the states and over the shorter rows.

    `rows` and `shorter` map (layer, head) to columns by name; `contexts` are the head's outputs in the rows of the
    states, (rows, dims).
    """

    rows: dict[Head, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    shorter: dict[Head, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    contexts: dict[Head, NDArray[np.float32]] = field(default_factory=dict)


def state_rows(length: int, count: int, causal: bool) -> tuple[int, ...]:
    """The rows that decide the states: evenly in the second half of a causal window, over all of an encoder's."""
    start = length // 2 if causal else 0
    return tuple(start + i for i in evenly_spaced(length - start, count))


def shorter_lengths(length: int, count: int = SHORTER_ROWS) -> tuple[int, ...]:
    """Lengths up to half the window, in equal ratios."""
    if length // 2 < SHORTEST:
        return ()
    return tuple(sorted({round(n) for n in np.geomspace(SHORTEST, length // 2, count)}))


def plan_diagnosis(model: ModelFacts, length: int, rows: int) -> WindowPlan:
    """The forwards that give the rows of the states and the shorter rows of each window of `length` tokens."""
    if model.causal:
        shorter = shorter_lengths(length)
    else:  # each is a forward of its own
        shorter = tuple(part for part in (length // 8, length // 4, length // 2) if part >= SHORTEST)

    def positions(prefix: int) -> tuple[int, ...]:
        if prefix < length and model.causal:
            return (prefix - 1,)
        return state_rows(prefix, rows if prefix == length else SHORTER_ROWS, model.causal)

    return plan_windows(model, (*shorter, length), positions)


@dataclass(frozen=True)
class DiagnosisMeasurer:
    """Measures the rows of the states, those of prefixes of `length`, and the shorter rows.

    With `residual`, also how large heads are in the residual stream, in models where both can be located.
    """

    length: int
    thresholds: Thresholds
    seed: int
    residual: bool = True

    @property
    def vectors(self) -> tuple[VectorKind | Literal["effects"], ...]:
        """Heads are compared by their outputs, sums of values; with effects, as they arrive in the residual stream."""
        return ("value", "hidden", "effects") if self.residual else ("value",)

    def start(self, number: int) -> WindowRows:
        """The empty record of a window."""
        return WindowRows(number)

    def measure(self, window: WindowRows, layer: LayerCall, positions: Positions) -> None:
        """Measure the wanted rows of one attention call and store them by head."""
        shorter = tuple(p for prefix, group in positions.items() if prefix < self.length for p in group)
        self._measure(window, "rows", layer, positions.get(self.length, ()))
        self._measure(window, "shorter", layer, shorter)

    def finish(self, window: WindowRows) -> WindowRows:
        """The measures as they are."""
        return window

    def _measure(self, window: WindowRows, kind: str, layer: LayerCall, positions: tuple[int, ...]) -> None:
        call, heads = layer.call, layer.call.heads
        vectors, normalizer = layer.vectors["value"].double(), effective_normalizer(call)
        pieces: list[dict[str, Tensor]] = []
        contexts: list[Tensor] = []
        usable = vectors.isfinite().all(-1).all(-1).repeat_interleave(heads // vectors.shape[0])
        generator = torch.Generator().manual_seed((self.seed + window.number) * 1_000_003 + layer.number)

        def measure(block: tuple[int, ...]) -> None:
            rows = Rows(layer.number, block, call.logits(block), call.visible(block), vectors, call.sinks)
            usable.logical_and_(torch.where(rows.visible, rows.logits, 0).isfinite().all(-1).all(-1))
            weights = normalizer.weights(rows.logits, rows.visible)
            outputs = HeadOutputs.of(weights, vectors)
            effects = stream = None
            if layer.effects is not None:
                stream = layer.vectors["hidden"][0, list(block)].double()
                effects = layer.effects.rows(call, block, outputs.context, stream)
                outputs = outputs.times(effects.factor)
            columns = row_measures(rows, outputs, self.thresholds, generator, nulls=kind == "rows")
            if effects is not None and stream is not None and kind == "rows":
                columns |= residual_columns(rows, outputs, effects, stream, self.thresholds)
            pieces.append(columns)
            contexts.append(outputs.context)

        if not positions or not layer.in_blocks(window, positions, measure, budget=_MEMORY, copies=_COPIES):
            return
        measured = {name: torch.cat([piece[name] for piece in pieces], -1).cpu().numpy() for name in pieces[0]}
        arrived = torch.cat(contexts, 1).float().cpu().numpy()
        store = window.rows if kind == "rows" else window.shorter
        for head in range(heads):
            key = (layer.number, head)
            if not usable[head]:
                window.skipped[key] = "logits or values not finite"
                continue
            # A row that sees nothing (padding) says nothing.
            sees = measured["length"][head] > 0
            columns = {name: np.asarray(values[head][sees], dtype=np.float64) for name, values in measured.items()}
            if key in store:
                columns = {name: np.concatenate([store[key][name], values]) for name, values in columns.items()}
            store[key] = columns
            if kind == "rows":
                window.contexts[key] = arrived[head][sees]


def row_measures(
    rows: Rows, outputs: HeadOutputs, thresholds: Thresholds, generator: torch.Generator, *, nulls: bool
) -> dict[str, Float[Tensor, "heads rows"]]:
    """The columns of some rows of every head."""
    visible, weights = rows.visible, outputs.weights
    length = visible.sum(-1)
    columns = {
        "length": length,
        "square": outputs.context.square().sum(-1),
        **rule_error_squares(outputs, visible, rows.positions, thresholds),
        "max_weight": weights.amax(-1),
        "entropy": row_entropy(weights),
        "participation": 1 / weights.square().sum(-1),
        **sink_columns(outputs, first_visible(visible)),
    }
    errors = (thresholds.enough, *(ERRORS if nulls else ()))
    enough = keys_enough(outputs, visible, errors)
    columns |= dict(zip(("keys_enough", *map(keys_column, ERRORS)), enough, strict=False))
    if nulls:
        grouped = separability_columns(
            rows.grouped(weights), rows.grouped(visible), rows.vectors, int(thresholds.separability_n), generator
        )
        columns |= {name: rows.ungrouped(value) for name, value in grouped.items()}
    return columns


def sink_columns(
    outputs: HeadOutputs, first: Bool[Tensor, "heads rows keys"]
) -> dict[str, Float[Tensor, "heads rows"]]:
    """Sink weight, the first key's part of the output relative to the output, and participation among the others.

    NaN where there is no output, or no other key has weight.
    """
    sink, others = torch.where(first, outputs.weights, 0), torch.where(first, 0, outputs.weights)
    part = sink @ outputs.values * outputs.factor
    return {
        "sink_weight": sink.sum(-1),
        "sink_contribution": part.norm(dim=-1) / outputs.context.norm(dim=-1),
        "participation_without_sink": others.sum(-1).square() / others.square().sum(-1),
    }


def residual_columns(
    rows: Rows,
    outputs: HeadOutputs,
    effects: RowEffects,
    stream: Float[Tensor, "rows width"],
    thresholds: Thresholds,
) -> dict[str, Float[Tensor, "heads rows"]]:
    """How large what a head adds to the residual stream is, and its change with the top share of its keys alone.

    In models that gate their heads, also the mean size of the gate, and whether it is nearly shut.
    """
    assert TOP_SHARE.keys is not None
    size = stream.norm(dim=-1)
    keys = TOP_SHARE.keys(thresholds)(outputs.weights, rows.visible, rows.positions)
    change = outputs.context - context_of(outputs, keys)
    columns = {
        "residual_share": effects.added(outputs.context).norm(dim=-1) / size,
        "residual_change": effects.added(change).norm(dim=-1) / size,
    }
    if effects.gated:
        columns["gate"] = outputs.factor.abs().mean(-1)
        columns["gate_shut"] = (columns["gate"] < SHUT).double()
    return columns


def keys_column(error: float) -> str:
    """Name of the column with the number of keys that is enough for an error."""
    return f"keys_enough_{error:g}"


class HeadOutputs(NamedTuple):
    """The outputs of heads in some rows, as they arrive at the output projection."""

    weights: Float[Tensor, "heads rows keys"]
    values: Float[Tensor, "heads keys dims"]
    context: Float[Tensor, "heads rows dims"]  # sum of the weighted values, times the factor
    factor: Float[Tensor, "heads rows dims"]  # of gates and norms; 1 where a model has none

    @classmethod
    def of(cls, weights: Float[Tensor, "heads rows keys"], values: Float[Tensor, "groups keys dims"]) -> HeadOutputs:
        """The outputs of a kernel with these weights."""
        values = values.repeat_interleave(len(weights) // len(values), 0)
        context = weights @ values
        return cls(weights, values, context, torch.ones_like(context))

    def times(self, factor: Float[Tensor, "heads rows dims"] | None) -> HeadOutputs:
        """The same after a gate or a norm."""
        return self if factor is None else self._replace(context=self.context * factor, factor=factor)


@loop
def growing_errors(
    order: Any,  # (rows, keys), the row's keys with the largest weight first
    lengths: Any,  # (rows,)
    weights: Any,  # (rows, keys)
    values: Any,  # (keys, dims)
    context: Any,  # (rows, dims), as it arrives
    factor: Any,  # (rows, dims), of what arrives at the output projection
    sizes: Any,  # (sizes,), ascending
    out: Any,  # (rows, sizes)
) -> None:
    """|c - c_k| of the top k keys, in the proportions they had and the total unchanged, for each k of `sizes`."""
    dims = values.shape[1]
    partial = np.empty(dims)
    for r in range(len(order)):
        total = 0.0
        for j in range(lengths[r]):
            total += weights[r, order[r, j]]
        partial[:] = 0
        mass = 0.0
        done = 0
        for s in range(len(sizes)):
            while done < min(sizes[s], lengths[r]):
                key = order[r, done]
                weight = weights[r, key]
                mass += weight
                for d in range(dims):
                    partial[d] += weight * values[key, d]
                done += 1
            square = 0.0
            scale = total / mass if mass > 0 else 0.0
            for d in range(dims):
                gap = context[r, d] - factor[r, d] * scale * partial[d]
                square += gap * gap
            out[r, s] = np.sqrt(square) if done < lengths[r] else 0.0


def rule_error_squares(
    outputs: HeadOutputs, visible: Bool[Tensor, "heads rows keys"], positions: Sequence[int], thresholds: Thresholds
) -> dict[str, Float[Tensor, "heads rows"]]:
    """Column of |c - c_rule|^2 for each rule of the states that keeps some of the keys."""
    return {
        rule.square: error_squares(outputs, rule.keys(thresholds)(outputs.weights, visible, positions))
        for rule in RULES
        if rule.keys
    }


def error_squares(outputs: HeadOutputs, keys: Bool[Tensor, "heads rows keys"]) -> Float[Tensor, "heads rows"]:
    """|c - c_rule|^2 when only these keys keep weight, in the proportions they had, the total unchanged."""
    return (outputs.context - context_of(outputs, keys)).square().sum(-1)


def context_of(outputs: HeadOutputs, keys: Bool[Tensor, "heads rows keys"]) -> Float[Tensor, "heads rows dims"]:
    """The head's output when only these keys keep weight."""
    weights = outputs.weights
    chosen = torch.where(keys, weights, 0)
    total, mass = weights.sum(-1, keepdim=True), chosen.sum(-1, keepdim=True)
    # Keys whose weights all vanish share the row's weight equally: the limit of their softmax is not recorded.
    even = keys / keys.sum(-1, keepdim=True).clamp_min(1)
    shares = torch.where(mass > 0, chosen / torch.where(mass > 0, mass, 1), even)
    return (shares * total) @ outputs.values * outputs.factor


def key_grid(length: int) -> tuple[int, ...]:
    """Sizes of top sets to try: 1, 2, 3, 5, 8, ... up to the length."""
    sizes = [1, 2]
    while sizes[-1] < length:
        sizes.append(sizes[-1] + sizes[-2])
    return tuple(size for size in sizes if size <= length)


def keys_enough(
    outputs: HeadOutputs, visible: Bool[Tensor, "heads rows keys"], errors: Sequence[float]
) -> Float[Tensor, "errors heads rows"]:
    """How many of the largest weights give the head's output within each of some relative errors.

    Tried on the sizes of `key_grid`, with linear interpolation in ln k between the last size that is not enough and the
    first that is. All visible keys are always enough.
    """
    length = visible.sum(-1)
    norm = outputs.context.norm(dim=-1)
    sizes = key_grid(int(length.max()))
    wanted = torch.tensor(list(errors), dtype=norm.dtype, device=norm.device)[:, None, None]
    counts = torch.full((len(errors), *norm.shape), torch.nan, dtype=norm.dtype, device=norm.device)
    before_size, before_error = torch.ones_like(norm), torch.full_like(norm, torch.inf)
    for size, error in zip(sizes, _top_errors(outputs, visible, sizes).unbind(-1), strict=True):
        reached = error / torch.where(norm > 0, norm, 1)
        count = length.clamp_max(size).to(norm.dtype)
        step = ((before_error - wanted) / (before_error - reached)).nan_to_num(1).clamp(0, 1)
        between = torch.exp(before_size.log() + step * (count.log() - before_size.log()))
        counts = torch.where(counts.isnan() & (reached <= wanted), between, counts)
        before_size, before_error = count, reached
    return torch.where(counts.isnan(), length.to(norm.dtype), counts)


def _top_errors(
    outputs: HeadOutputs, visible: Bool[Tensor, "heads rows keys"], sizes: Sequence[int]
) -> Float[Tensor, "heads rows sizes"]:
    """|c - c_k| for top sets of each size; 0 where a row has no more keys."""
    order = outputs.weights.masked_fill(~visible, -1).argsort(dim=-1, descending=True, stable=True)
    keys, lengths, shares, vectors, contexts, factors = (
        part.cpu().numpy() for part in (order, visible.sum(-1), *outputs)
    )
    out = torch.empty(*outputs.weights.shape[:2], len(sizes), dtype=torch.float64)
    wanted = np.array(sizes)

    def head_errors(head: int) -> None:
        growing_errors(
            keys[head], lengths[head], shares[head], vectors[head], contexts[head], factors[head], wanted,
            out[head].numpy(),
        )  # fmt: skip

    parallel_for(head_errors, range(len(out)))
    return out.to(outputs.weights.device)
