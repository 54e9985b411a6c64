"""The heads of a model as plain arrays, for the oracle of the paper's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from models import byte_tokenizer
from numpy.typing import NDArray

from attnscope.capture.models import load_model
from attnscope.capture.text import Text
from attnscope.capture.tokens import WindowChoice, tokenized, window_tokens
from attnscope.engine.run import LayerCall, WindowRecord, plan_windows, run_windows


class PlainHead(NamedTuple):
    """All rows of one head, (rows, keys), and the vectors of its keys by kind."""

    logits: NDArray[Any]
    weights: NDArray[Any]
    visible: NDArray[Any]
    vectors: dict[str, NDArray[Any]]
    scale: float


@dataclass
class _Recorder:
    """A measurer that keeps everything."""

    vectors: Sequence[Any]
    heads: dict[tuple[int, int, int], PlainHead] = field(default_factory=dict)  # by length, layer and head

    def start(self, number: int) -> WindowRecord:
        return WindowRecord(number)

    def measure(self, record: WindowRecord, layer: LayerCall, positions: dict[int, Any]) -> None:
        call: Any = layer.call
        rows = range(call.queries)
        logits, visible = call.logits(rows).numpy(), call.visible(rows).numpy()
        for head in range(call.heads):
            z = np.where(visible[head], logits[head], -np.inf)
            powers = np.exp(z - z.max(-1, keepdims=True))
            sink = 0 if call.sinks is None else np.exp(float(call.sinks[head]) - z.max(-1, keepdims=True))
            weights = powers / (powers.sum(-1, keepdims=True) + sink)
            vectors = {k: x[head * len(x) // call.heads].double().numpy() for k, x in layer.vectors.items()}
            self.heads[max(positions), layer.number, head] = PlainHead(
                logits[head], weights, visible[head], vectors, call.scale
            )

    def finish(self, record: WindowRecord) -> None:
        pass


def plain_heads(module: Any, book: Text, lengths: Sequence[int], kinds: Sequence[str]) -> dict[Any, PlainHead]:
    """The heads of the first window, by (length of the forward, layer, head)."""
    model = load_model(module, tokenizer=byte_tokenizer())
    choice = WindowChoice()
    inputs = window_tokens(model, tokenized(model, book, choice), lengths[-1], 1, False, choice)
    recorder = _Recorder(kinds)
    plan = plan_windows(model, lengths, lambda length: (length - 1,))
    list(run_windows(model, [plan.window(0, inputs[:].tolist()[0])], recorder))
    return recorder.heads
