"""The measurer of the paper's protocol: all rows of every attention call, in blocks, one head on each thread.

The sums of a block are added to those of its heads only once the whole block is measured: a block that runs out of
memory can be measured again in halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from attnscope._process import parallel_for
from attnscope.capture.attention import AttentionCall
from attnscope.engine.run import Part, WindowRecord, without_heads
from attnscope.errors import ModelError
from attnscope.experiments.profiles import products
from attnscope.measure import Rows, Visibility, softmax_weights
from attnscope.measure.settings import DEFAULT_MEMORY
from attnscope.normalizers import SinkSoftmax, Softmax
from attnscope.studies.paper import every_n as profiles
from attnscope.studies.paper import lines
from attnscope.studies.paper.responses import Responses, add_responses
from attnscope.studies.paper.sets import HeadRows, sum_sets
from attnscope.studies.paper.settings import READINGS, STEPS, TEMPERATURES, Settings
from attnscope.studies.paper.store import PROTOCOL_NAMES
from attnscope.swapping.replacement import effective_normalizer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.columns import VectorKind
    from attnscope.engine.run import Head, LayerCall, Positions

_MOST_ROWS = 256  # of a block
_COPIES = 6  # float64 arrays of heads x rows x keys that a block needs
Sums = dict[Any, Any]
"""NamedTuples of arrays: sums over rows, by algorithm and kind of vectors."""


@dataclass
class ProtocolWindow(WindowRecord):
    """The measurements of one window while the model runs."""

    pieces: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: {name: [] for name in PROTOCOL_NAMES})
    profiles: dict[lines.Sample, list[tuple[Head, NDArray[np.float64]]]] = field(default_factory=dict)


@dataclass
class _HeadState:
    """What the blocks of a head's rows share, and their sums so far."""

    vectors: dict[VectorKind, Tensor]  # (1, keys, dims) each
    random: np.random.Generator
    sums: Sums = field(default_factory=dict)

    def add(self, sums: Sums, random: np.random.Generator) -> None:
        """Add the sums of a block of rows and store the state of the generator after it."""
        for key, block in sums.items():
            before = self.sums.get(key)
            self.sums[key] = block if before is None else type(block)(*map(np.add, before, block))
        self.random = random


@dataclass(frozen=True)
class _Layer:
    """What the heads of a layer share."""

    call: LayerCall
    lengths: tuple[int, ...]  # as the tables name them, ascending
    keys: tuple[int, ...]  # number of keys of a row at each length in the literal reading
    sizes: list[list[int]]  # of the top sets at each length
    factors: dict[str, float]  # of the readings of T; none if it is not measured
    kinds: dict[VectorKind, Tensor]
    grams: dict[VectorKind, NDArray[np.float64]]  # where all heads share their vectors


@dataclass(frozen=True)
class ProtocolMeasurer:
    """Runs the algorithms of the paper's appendix on all rows: all five, or a selection for timing."""

    settings: Settings
    sizes: Mapping[int, Sequence[int]] | None = None  # of the top sets by length; None for all of the paper's
    every_n: bool = True  # Algorithm 3
    gradient: bool = True  # Algorithm 5

    @property
    def vectors(self) -> tuple[VectorKind, ...]:
        """The kinds of vectors that the settings name."""
        return self.settings.vectors

    def start(self, number: int) -> ProtocolWindow:
        """The empty record of a window."""
        return ProtocolWindow(number)

    def measure(self, window: ProtocolWindow, layer: LayerCall, positions: Positions) -> None:
        """Measure all rows of one attention call."""
        call, about = layer.call, self._layer(layer, tuple(sorted(positions)))
        heads = []
        for head in range(call.heads):
            groups = {kind: head * len(vectors) // call.heads for kind, vectors in about.kinds.items()}
            vectors = {kind: about.kinds[kind][g, None] for kind, g in groups.items()}
            seed = (self.settings.seed, window.number, layer.number, head)
            heads.append(_HeadState(vectors, np.random.default_rng(seed)))

        def measure(block: tuple[int, ...]) -> None:
            logits, visible = call.logits(block).cpu(), call.visible(block).cpu()
            check_call(layer, visible, block)
            usable = usable_heads(window, layer.number, logits, visible, about.kinds)
            sinks = None if call.sinks is None else call.sinks.cpu()
            weights = softmax_weights(
                Rows(layer.number, block, logits, visible, next(iter(about.kinds.values())), sinks)
            )
            visibility = Visibility(visible[:1])
            # Without causality every row belongs to the only length.
            places = np.array(block) if layer.causal else np.zeros(len(block), np.int64)
            measured = {}

            def of_head(head: int) -> None:
                rows = HeadRows(logits[head, None], weights[head, None], visibility, places)
                random = deepcopy(heads[head].random)
                measured[head] = self._sums(rows, about, heads[head].vectors, random), random

            parallel_for(of_head, usable.nonzero().flatten().tolist())
            for head, (sums, random) in measured.items():
                heads[head].add(sums, random)

        rows = tuple(range(call.queries))
        if layer.in_blocks(window, rows, measure, budget=DEFAULT_MEMORY, copies=_COPIES, most_rows=_MOST_ROWS):
            self._collect(window, about, heads)

    def finish(self, window: ProtocolWindow) -> Part:
        """All tables of the window, without the heads that were skipped."""
        return window.part(self.tables(window))

    def tables(self, window: ProtocolWindow) -> dict[str, pl.DataFrame]:
        """The tables by name; empty where there was nothing to measure."""
        for sample, heads in sorted(window.profiles.items()):
            usable = [profile for head, profile in heads if head not in window.skipped]
            if usable:
                longest = sample.length == self.settings.longest
                for name, table in lines.critical(window.number, sample, usable, self.settings.seed, longest).items():
                    window.pieces[name].append(table)
        return {
            name: without_heads(pl.concat(pieces), window.skipped) if pieces else pl.DataFrame()
            for name, pieces in window.pieces.items()
        }

    def _layer(self, layer: LayerCall, lengths: tuple[int, ...]) -> _Layer:
        call = layer.call
        kinds = {kind: vectors.double().cpu().contiguous() for kind, vectors in layer.vectors.items()}
        keys = lengths if layer.causal else (call.keys,)
        asked = [self.settings.top_n(count) if self.sizes is None else self.sizes.get(count, ()) for count in keys]
        factors = {}
        if self.gradient and lengths[-1] == self.settings.longest:
            factors["scaled"] = 1.0
            if isinstance(call, AttentionCall):  # other models do not say what they divided their logits by
                factors["raw"] = call.scale
        shared = {kind: products(x)[0] for kind, x in kinds.items() if self.every_n and len(x) == 1}
        return _Layer(layer, lengths, keys, [sorted(sizes) for sizes in asked], factors, kinds, shared)

    def _sums(
        self, rows: HeadRows, layer: _Layer, vectors: dict[VectorKind, Tensor], random: np.random.Generator
    ) -> Sums:
        """All sums over a block of rows of one head."""
        sums: Sums = {}
        visible, weights = rows.visibility.visible[0].numpy(), rows.weights[0]
        for kind, x in vectors.items():
            if any(layer.sizes):
                sums["sets", kind] = sum_sets(rows, x, layer.keys, layer.sizes)
            if self.every_n:
                gram = layer.grams[kind] if kind in layer.grams else products(x)[0]
                order = np.argsort(-weights.numpy(), axis=-1, kind="stable")
                along = (weights @ x[0] @ x[0].mT).numpy()
                profile = sums["profiles", kind] = profiles.empty(layer.keys)
                profiles.add_rows(
                    weights.numpy(), visible, order, along, gram, rows.positions, np.array(layer.keys), profile
                )
        if layer.factors:
            factors, steps = np.array(list(layer.factors.values())), np.array(STEPS)
            response = Responses(np.zeros((2, len(factors), 2, len(TEMPERATURES), len(STEPS))))
            normal = random.standard_normal(visible.shape)
            add_responses(rows.logits[0].numpy(), visible, normal, factors, np.array(TEMPERATURES), steps, response)
            sums["responses"] = response
        return sums

    def _collect(self, window: ProtocolWindow, layer: _Layer, states: list[_HeadState]) -> None:
        """Turn the sums of a layer's heads into lines and profiles."""
        number = layer.call.number
        heads = [head for head in range(len(states)) if (number, head) not in window.skipped]
        if not heads:
            return
        sums = [states[head].sums for head in heads]
        keys = {"window": window.number, "layer": number}
        for kind in layer.kinds:
            if any(layer.sizes):
                of_heads = [each["sets", kind] for each in sums]
                for name, table in lines.sets(keys, kind, layer.lengths, heads, layer.sizes[-1], of_heads).items():
                    window.pieces[name].append(table)
            if self.every_n:
                for head, each in zip(heads, sums, strict=True):
                    means = profiles.averages(each["profiles", kind])
                    for r, reading in enumerate(READINGS):
                        for place, length in enumerate(layer.lengths):
                            sample = lines.Sample(reading, kind, length)
                            profile = means[r, place, :, : layer.keys[place] - 1].copy()
                            window.profiles.setdefault(sample, []).append(((number, head), profile))
        if layer.factors:
            g = np.stack([each["responses"].g for each in sums], -1) / layer.call.call.queries
            window.pieces["protocol_gradient"].append(lines.gradient(keys, list(layer.factors), heads, g))


def check_call(layer: LayerCall, visible: Tensor, queries: Sequence[int]) -> None:
    """Raise if the paper's experiments are not defined for a call; `visible` are the masks of its queries."""
    if not (visible == visible[:1]).all():
        raise ModelError(f"the heads of {layer.name} see different keys; attnscope reproduce needs them to agree")
    if layer.causal and (visible[0] & (torch.arange(visible.shape[-1]) > torch.tensor(queries)[:, None])).any():
        raise ModelError(f"{layer.name} sees later tokens although its model is said to be causal")
    if not isinstance(effective_normalizer(layer.call), Softmax | SinkSoftmax):
        raise ModelError(f"{layer.name} runs with a swapped normalizer; the paper's experiments are about softmax")


def usable_heads(
    record: WindowRecord, layer: int, logits: Tensor, visible: Tensor, kinds: Mapping[Any, Tensor]
) -> Tensor:
    """Which heads have finite logits and vectors; the others are recorded as skipped."""
    usable = torch.where(visible, logits, 0).isfinite().all(-1).all(-1)
    for vectors in kinds.values():
        usable = usable & vectors.isfinite().all(-1).all(-1).repeat_interleave(len(logits) // len(vectors))
    for head in (~usable).nonzero().flatten().tolist():
        record.skipped.setdefault((layer, head), "logits or vectors not finite")
    return usable
