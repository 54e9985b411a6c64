"""Run a model on windows and keep, for each head and row, what a diagnosis needs.

Rows for the states lie evenly in the second half of a window, where lengths are within a factor of two: short rows
would make every head look local. A few rows at shorter lengths show how a head's needs grow. An encoder's
rows all see the whole input, so shorter lengths are forwards of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.capture.forward import forward
from attnscope.capture.vectors import VectorSource
from attnscope.diagnosis import counterfactuals as rules
from attnscope.diagnosis.budgets import ERRORS, keys_column
from attnscope.diagnosis.nulls import separability_columns
from attnscope.key_rules import first_visible
from attnscope.measure.rows import Rows, row_entropy
from attnscope.swapping.effective_normalizer import effective_normalizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.capture.models import Model
    from attnscope.diagnosis.thresholds import Thresholds

SHORTER_ROWS = 16
SHORTEST = 16
_MEMORY = 256 * 2**20
# Arrays of heads x rows x keys in float64 held at one time, at most.
_COPIES = 24

Head = tuple[int, int]


@dataclass
class WindowRows:
    """What one window left: for each head, columns over the rows of the states and over the shorter rows.

    `rows` and `shorter` map (layer, head) to columns by name; `contexts` are the head's outputs in the rows of the
    states, (rows, dims).
    """

    rows: dict[Head, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    shorter: dict[Head, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    contexts: dict[Head, NDArray[np.float32]] = field(default_factory=dict)
    skipped: dict[Head, str] = field(default_factory=dict)


def state_rows(length: int, count: int, causal: bool) -> tuple[int, ...]:
    """The rows that decide the states: evenly in the second half of a causal window, over all of an encoder's."""
    start = length // 2 if causal else 0
    count = min(count, length - start)
    return tuple(start + -(-(i + 1) * (length - start) // count) - 1 for i in range(count))


def shorter_lengths(length: int, count: int = SHORTER_ROWS) -> tuple[int, ...]:
    """Lengths up to half the window, in equal ratios."""
    if length // 2 < SHORTEST:
        return ()
    return tuple(sorted({round(n) for n in np.geomspace(SHORTEST, length // 2, count)}))


def observe_window(
    model: Model,
    ids: list[int],
    rows: int,
    thresholds: Thresholds,
    seed: int,
    progress: Callable[[int], None],
) -> WindowRows:
    """One window; `progress` is called with each layer's number when it is done."""
    window = WindowRows()
    length = len(ids)
    chosen = state_rows(length, rows, model.causal)
    if model.causal:
        shorter = tuple(n - 1 for n in shorter_lengths(length))
        _forward(model, ids, {"rows": chosen, "shorter": shorter}, window, thresholds, seed, progress)
        return window
    _forward(model, ids, {"rows": chosen}, window, thresholds, seed, progress)
    for part in (length // 8, length // 4, length // 2):
        if part >= SHORTEST:
            # The special tokens at the end stay at the end.
            inner = [*ids[: part - 1], ids[-1]]
            few = state_rows(part, SHORTER_ROWS, causal=False)
            _forward(model, inner, {"shorter": few}, window, thresholds, seed, lambda layer: None)
    return window


def _forward(
    model: Model,
    ids: list[int],
    wanted: dict[str, tuple[int, ...]],
    window: WindowRows,
    thresholds: Thresholds,
    seed: int,
    progress: Callable[[int], None],
) -> None:
    source = VectorSource(model.module, "value")
    calls = 0

    def collect(call: Call) -> None:
        nonlocal calls
        layer = source.layer(call.module, calls)
        calls += 1
        for kind, positions in wanted.items():
            _keep(window, kind, layer, call, positions, thresholds, seed)
        progress(layer)

    forward(model, ids, collect)


def _keep(
    window: WindowRows,
    kind: str,
    layer: int,
    call: Call,
    positions: tuple[int, ...],
    thresholds: Thresholds,
    seed: int,
) -> None:
    """Measure the rows of one attention call in blocks within the memory budget, and file them by head."""
    if not positions:
        return
    heads, keys = call.heads, call.keys
    step = max(1, _MEMORY // (heads * keys * 8 * _COPIES))
    vectors, own = call.values().double(), effective_normalizer(call)
    pieces: list[dict[str, Tensor]] = []
    contexts: list[Tensor] = []
    usable = vectors.isfinite().all(-1).all(-1).repeat_interleave(heads // vectors.shape[0])
    generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
    for start in range(0, len(positions), step):
        block = positions[start : start + step]
        rows = Rows(layer, block, call.logits(block), call.visible(block), vectors, call.sinks)
        usable &= torch.where(rows.visible, rows.logits, 0).isfinite().all(-1).all(-1)
        weights = own.weights(rows.logits, rows.visible)
        columns, context = row_measures(rows, weights, thresholds, generator, nulls=kind == "rows")
        pieces.append(columns)
        contexts.append(context)
    measured = {name: torch.cat([piece[name] for piece in pieces], -1).cpu().numpy() for name in pieces[0]}
    outputs = torch.cat(contexts, 1).float().cpu().numpy()
    store = window.rows if kind == "rows" else window.shorter
    for head in range(heads):
        place = (layer, head)
        if not usable[head]:
            window.skipped[place] = "logits or values not finite"
            continue
        # A row that sees nothing (padding) says nothing.
        seen = measured["length"][head] > 0
        kept = {name: np.asarray(values[head][seen], dtype=np.float64) for name, values in measured.items()}
        if place in store:
            kept = {name: np.concatenate([store[place][name], values]) for name, values in kept.items()}
        store[place] = kept
        if kind == "rows":
            window.contexts[place] = outputs[head][seen]


def row_measures(
    rows: Rows, weights: Tensor, thresholds: Thresholds, generator: torch.Generator, *, nulls: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Columns of shape (heads, rows) from the rows' weights, and the heads' outputs (heads, rows, dims)."""
    visible = rows.visible
    values = rows.vectors.repeat_interleave(rows.heads // rows.vectors.shape[0], 0)
    context = weights @ values
    length = visible.sum(-1)
    first = first_visible(visible)
    columns = {
        "length": length,
        "square": context.square().sum(-1),
        **rules.rule_error_squares(weights, visible, values, context, rows.positions, thresholds),
        "first_weight": torch.where(first, weights, 0).sum(-1),
        "largest_weight": weights.amax(-1),
        "entropy": row_entropy(weights),
    }
    errors = (thresholds.enough, *(ERRORS if nulls else ()))
    enough = rules.keys_enough(weights, visible, values, context, errors)
    columns |= dict(zip(("keys_enough", *map(keys_column, ERRORS)), enough, strict=False))
    if nulls:
        grouped = separability_columns(
            rows.grouped(weights), rows.grouped(visible), rows.vectors, int(thresholds.separability_n), generator
        )
        columns |= {name: rows.ungrouped(value) for name, value in grouped.items()}
    return columns, context
