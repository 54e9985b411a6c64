"""The error of every key-value head when it keeps some of the keys of a context, by kind and number.

A row after the context attends to the kept keys and to all keys after the context. Its error is the change of what the
head adds to the residual stream, relative to the stream, squared; heads that share keys count as the most demanding of
them. Rows and windows are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from attnscope.diagnosis.counterfactuals import error_squares
from attnscope.engine.parts import WindowRecord
from attnscope.engine.run import run_windows
from attnscope.engine.windows import Forward, Window
from attnscope.errors import ModelError
from attnscope.experiments.budget.selection import KINDS, observed_scores, selected
from attnscope.normalizers import softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.models import Model
    from attnscope.capture.vector_kinds import VectorKind
    from attnscope.engine.run import LayerCall
    from attnscope.engine.windows import Positions
    from attnscope.experiments.budget.settings import BudgetSettings
    from attnscope.progress import Report

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
    def vectors(self) -> Sequence[VectorKind]:
        """What heads add to the residual stream, and the stream."""
        return ("output", "hidden")

    def start(self, number: int) -> _Errors:
        """The empty record of a window."""
        return _Errors(number)

    def measure(self, record: _Errors, layer: LayerCall, positions: Positions) -> None:
        """Measure the rows after the context."""
        call, length = layer.call, self.settings.length
        (rows,) = positions.values()
        visible, outputs = call.visible(rows), layer.vectors["output"].double()
        weights = softmax(call.logits(rows), visible)
        context = weights @ outputs
        stream = layer.vectors["hidden"][0, list(rows)].double().square().sum(-1)
        scores = observed_scores(call, self.settings)
        shared = call.heads // len(scores)
        errors = torch.empty(len(scores), len(KINDS), len(measured_sizes(length)), dtype=torch.float64)
        kept = torch.ones(call.heads, 1, call.keys, dtype=torch.bool, device=weights.device)
        for column, size in enumerate(measured_sizes(length)):
            counts = torch.full((len(scores),), size)
            for line, kind in enumerate(KINDS):
                kept[:, 0, :length] = selected(kind, counts, scores, self.settings).repeat_interleave(shared, 0)
                squares = error_squares(weights, outputs, context, kept & visible) / stream
                errors[:, line, column] = squares.mean(-1).unflatten(0, (-1, shared)).amax(-1).cpu()
        if not errors.isfinite().all():
            raise ModelError(f"{layer.name} has logits or values that are not finite; no budget can be made for it")
        record.layers_errors[layer.number] = errors

    def finish(self, record: _Errors) -> list[Tensor]:
        """The errors by layer."""
        return [record.layers_errors[number] for number in sorted(record.layers_errors)]


def measure_needs(
    model: Model, windows: Sequence[list[int]], settings: BudgetSettings, report: Report
) -> list[Float[Tensor, "kv_heads kinds sizes"]]:
    """The mean error over windows of each layer's key-value heads, by kind and number of kept keys."""
    step = max(1, settings.continuation // _ROWS)
    rows = tuple(range(settings.length, settings.length + settings.continuation, step))
    plan = [Window(number, [Forward(ids, {len(ids): rows})]) for number, ids in enumerate(windows)]
    parts = list(run_windows(model, plan, NeedsMeasurer(settings), progress=report))
    return [torch.stack(layer).mean(0) for layer in zip(*parts, strict=True)]
