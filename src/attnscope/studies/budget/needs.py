"""The error of every key-value head when rows attend to some of their keys only, by kind and number.

Rows are those after a context, and keys are chosen as in `selection.LayerChoice`. The error of a row is the change of
what the head adds to the residual stream, relative to the stream, squared; heads that share keys count as the most
demanding of them. Rows and windows are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from attnscope.diagnosis.counterfactuals import error_squares
from attnscope.engine.run import Forward, Window, WindowRecord, run_windows
from attnscope.errors import ModelError
from attnscope.normalizers import softmax
from attnscope.studies.budget.selection import KINDS, LayerChoice, observed_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.models import Model
    from attnscope.columns import VectorKind
    from attnscope.engine.run import LayerCall, Positions
    from attnscope.progress import OnStep
    from attnscope.studies.budget.settings import BudgetSettings

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
        call = layer.call
        (rows,) = positions.values()
        visible, outputs = call.visible(rows), layer.vectors["output"].double()
        weights = softmax(call.logits(rows), visible)
        context = weights @ outputs
        stream = layer.vectors["hidden"][0, list(rows)].double().square().sum(-1)
        scores = observed_scores(call, self.settings)
        shared = call.heads // len(scores)
        sizes = measured_sizes(self.settings.length)
        errors = torch.empty(len(scores), len(KINDS), len(sizes), dtype=torch.float64)
        for column, size in enumerate(sizes):
            counts = torch.full((len(scores),), size)
            for line in range(len(KINDS)):
                choice = LayerChoice(counts, torch.full_like(counts, line), scores, self.settings.observed)
                kept = choice.kept(torch.tensor(rows), call.keys).repeat_interleave(shared, 0)
                squares = error_squares(weights, outputs, context, kept & visible) / stream
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
