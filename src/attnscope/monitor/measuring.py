"""The measures of every head in one training step: sums and maxima over sampled rows, which ranks can add up.

Rows are measured as a scan measures them. A head of which a number is not finite has missing values; the others are not
affected. Items and rows are sampled with a generator of its own, seeded by the step and the rank: the random state of
the training is not touched, and a resumed run draws what an uninterrupted one does.

Sums travel in one packed all-reduce, maxima in a second one. A first, small one says whether every rank has the same
heads to add up: if one of them failed, all skip the step together. They run in a process group of their own, with a
timeout: they can neither mix with the collectives of the training nor stop it for long.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from torch import distributed

from attnscope.capture.attention import HIDDEN, AttentionCall
from attnscope.diagnosis.observing import random_separability
from attnscope.engine.run import LayerCall
from attnscope.errors import ModelError
from attnscope.measure import Rows
from attnscope.monitor.run_files import HEADS, MEASURES
from attnscope.normalizers import Normalizer, SinkSoftmax, Softmax
from attnscope.scanning.measuring import Window, measured_columns
from attnscope.swapping.replacement import effective_normalizer, replacement_of
from attnscope.swapping.weights import LEARNED

if TYPE_CHECKING:
    from jaxtyping import Bool
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from attnscope.capture.attention import ObservedCall

TOP_N = 20
_SUMMED = ("length", *(name for name in MEASURES if name != "max_logit"))
_MEMORY_BUDGET = 1 << 28  # bytes for the logits and weights of a block of rows
_COPIES = 12  # arrays of heads x rows x keys that measuring a block holds at one time, at most
_MOST_ROWS = 256


@dataclass
class LayerSums:
    """What is known of the heads of one layer: sums and numbers of rows, for each measure, and maxima."""

    entry: dict[str, Any]  # of run.json
    sums: NDArray[np.float64]  # (measures, heads)
    counts: NDArray[np.float64]  # (measures, heads), rows in which the measure is defined
    rows: NDArray[np.float64]  # (heads,)
    max_logit: NDArray[np.float64]  # (heads,)
    unsound: NDArray[np.float64]  # (heads,), 1 if a number is not finite
    minus_limit: NDArray[np.float64]  # (heads,), minus the logit that the number type or the mask is the limit of

    @classmethod
    def empty(cls, entry: dict[str, Any]) -> LayerSums:
        """Sums over no rows."""
        heads = entry["heads"]
        sums, counts = np.zeros((2, len(_SUMMED), heads))
        unbounded = np.full((2, heads), -np.inf)
        return cls(entry, sums, counts, np.zeros(heads), unbounded[0], np.zeros(heads), unbounded[1])


@dataclass
class StepMeasurement:
    """The measurement of one training step, on `rows` rows of `sequences` items."""

    step: int
    rows: int
    sequences: int
    rank: int = 0
    layers: dict[int, LayerSums] = field(default_factory=dict)
    skipped: dict[tuple[int, int], str] = field(default_factory=dict)
    _window: Window = field(default_factory=Window, init=False, repr=False)

    @torch.no_grad()
    def add(self, layer: int, entry: dict[str, Any], call: ObservedCall) -> None:
        """Measure the sampled rows of the sampled items of one attention call."""
        sums = LayerSums.empty(entry)
        sums.minus_limit[:] = -_logit_limit(call)
        # Autocast would compute in fewer digits; what is measured is what the model computes, in float64.
        with torch.autocast(call.values().device.type, enabled=False):
            for item in self._draw(call.batch, self.sequences, "items"):
                one = call.only(item)
                tokens = (~one.padded(range(one.queries))).nonzero().flatten().tolist()
                rows = tuple(tokens[index] for index in self._draw(len(tokens), self.rows, f"rows of {item}"))
                if rows:
                    self._measure(sums, layer, one, rows)
        self.layers[layer] = sums

    def _draw(self, available: int, wanted: int, what: str) -> list[int]:
        """Some of the numbers below `available`, the same for every layer."""
        if wanted >= available:
            return list(range(available))
        generator = self._generator(f"{what}, {available}")
        return sorted(torch.randperm(available, generator=generator)[:wanted].tolist())

    def _generator(self, what: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{what}, step {self.step}, rank {self.rank}".encode()))

    def _measure(self, sums: LayerSums, layer: int, call: ObservedCall, positions: tuple[int, ...]) -> None:
        vectors = call.values().detach().contiguous()
        finite = vectors.flatten(1).sum(-1).isfinite().repeat_interleave(call.heads // len(vectors))
        normalizer = effective_normalizer(call)
        generator = self._generator(f"sets of layer {layer}")

        def measure(block: tuple[int, ...]) -> None:
            visibility = self._window.visibility(call, block)
            stop = max(1, int(visibility.ends.max()))
            logits, visible = call.logits(block, keys=stop), visibility.visible[..., :stop]
            rows = Rows(layer, block, logits, visible, vectors, call.sinks, visibility)
            _add_block(sums, rows, normalizer, finite, visibility.length, generator)

        whole = LayerCall(layer, call, {}, f"layer {layer}", causal=False)
        whole.in_blocks(self._window, positions, measure, budget=_MEMORY_BUDGET, copies=_COPIES, most_rows=_MOST_ROWS)
        self.skipped |= self._window.skipped

    def not_finite(self) -> set[tuple[int, int]]:
        """Layer and number of the heads of which a number is not finite."""
        return {(layer, head) for layer, sums in self.layers.items() for head in sums.unsound.nonzero()[0].tolist()}

    def table(self) -> pl.DataFrame:
        """One line for each head: means over rows, and the largest logit."""
        blocks = []
        for layer, sums in sorted(self.layers.items()):
            heads = sums.entry["heads"]
            sound = sums.unsound == 0
            means = np.divide(sums.sums, sums.counts, out=np.full_like(sums.sums, np.nan), where=sums.counts > 0)
            largest = np.where(np.isfinite(sums.max_logit), sums.max_logit, np.nan)
            values = dict(zip(_SUMMED, means, strict=True)) | {"max_logit": largest}
            measured = {name: np.where(sound, values[name], np.nan) for name in MEASURES}
            keys = {"step": np.full(heads, self.step), "layer": np.full(heads, layer), "head": np.arange(heads)}
            blocks.append(pl.DataFrame(keys | {"rows": sums.rows, "length": values["length"]} | measured))
        table = pl.concat(blocks) if blocks else pl.DataFrame(schema=HEADS)
        return table.select(HEADS.names()).fill_nan(None).cast(HEADS)

    def circumstances(self) -> pl.DataFrame:
        """What else decides an alarm, in the order of `table`.

        Whether all numbers of the head are finite, the largest logit that the number type and the mask leave room for,
        and over how many rows `separability` is a mean.
        """
        separability = _SUMMED.index("separability")
        layers = [sums for _, sums in sorted(self.layers.items())]
        return pl.DataFrame(
            {
                "finite": np.concatenate([sums.unsound == 0 for sums in layers]),
                "logit_limit": np.concatenate([-sums.minus_limit for sums in layers]),
                "set_rows": np.concatenate([sums.counts[separability] for sums in layers]),
            }
        )


def _add_block(
    sums: LayerSums,
    rows: Rows,
    normalizer: Normalizer,
    finite: Bool[Tensor, " heads"],
    length: NDArray[np.int64],
    generator: torch.Generator,
) -> None:
    """Add the measures of a block of rows to the sums of its layer."""
    logits, visible = torch.where(rows.visible, rows.logits, 0), rows.visible
    weights = normalizer.weights(rows.logits, visible)
    sound = (finite & logits.sum((-1, -2)).isfinite() & weights.sum((-1, -2)).isfinite()).cpu().numpy()
    own = None if isinstance(normalizer, Softmax | SinkSoftmax) else normalizer
    per_row, per_set = measured_columns(rows, weights, (TOP_N,), 0, own)
    count = visible.sum(-1).clamp_min(1)
    deviations = torch.where(visible, logits - (logits.sum(-1) / count)[..., None], 0)
    random = random_separability(
        rows.grouped(weights), rows.grouped(visible), rows.vectors[:, : weights.shape[-1]].double(), TOP_N, generator
    )
    chosen = (length > TOP_N) & (per_row["support"] >= TOP_N)
    values = {
        **{name: per_row[name] for name in _SUMMED if name in per_row},
        "length": length,
        "logit_std": (deviations.square().sum(-1) / count).sqrt().cpu().numpy(),
        "top_mass": np.where(length > TOP_N, per_set["top_mass"][..., 0], np.nan),
        "separability": np.where(chosen, per_set["separability"][..., 0], np.nan),
        "null_random": rows.ungrouped(random).cpu().numpy(),
    }
    seen = (length > 0) & sound[:, None]
    table = np.stack([np.where(seen, values[name], np.nan) for name in _SUMMED])  # (measures, heads, rows)
    defined = np.isfinite(table)
    sums.sums += np.where(defined, table, 0).sum(-1)
    sums.counts += defined.sum(-1)
    sums.rows += seen.sum(-1)
    sums.unsound = np.maximum(sums.unsound, ~sound)
    largest = torch.where(visible, rows.logits, -torch.inf).amax((-1, -2)).cpu().numpy()
    sums.max_logit = np.where(sound, np.maximum(sums.max_logit, largest), sums.max_logit)


def _logit_limit(call: ObservedCall) -> float:
    """The largest number of the type that logits are computed in, or the magnitude of a mask that hides keys.

    A mask that is added to the logits and hides nothing is a bias.
    """
    if not isinstance(call, AttentionCall):
        return torch.finfo(call.scores.dtype).max
    limit = torch.finfo(call.query.dtype).max
    if call.mask is None or call.mask.dtype == torch.bool:
        return limit
    lowest = call.mask.min().item()
    return min(limit, -lowest) if lowest <= HIDDEN and np.isfinite(lowest) else limit


def learned_parameters(step: int, layer: int, module: nn.Module) -> list[dict[str, Any]]:
    """One line for each head and parameter of the learned normalizers in an attention module."""
    replacement = replacement_of(module)
    lines = []
    for heads, entry in [] if replacement is None else replacement.plan():
        if isinstance(entry.rule, LEARNED):
            for name, value in vars(entry.rule.normalizer).items():
                if isinstance(value, torch.Tensor) and value.shape[0] == len(entry.heads):  # (heads, 1)
                    numbers = value.detach().flatten().tolist()
                    keys = {"step": step, "layer": layer, "name": name}
                    lines += [keys | {"head": head, "value": numbers[entry.heads.index(head)]} for head in heads]
    return lines


_TIMEOUT = timedelta(seconds=60)


class Ranks:
    """This process among those that train together; of one alone, nothing is ever sent."""

    def __init__(self) -> None:
        """Every rank must make one; ModelError if the others do not."""
        together = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        self.size = distributed.get_world_size() if together else 1
        self.rank = distributed.get_rank() if together else 0
        self._broken = False
        if not together:
            return
        try:
            self._group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"the monitor must be made on every rank of a distributed run ({reason})") from error

    def add_up(self, measured: StepMeasurement | None) -> bool:
        """Replace the sums of this rank by those over all ranks; False if some rank has nothing to add.

        Every rank must call this for every measured step, with None if it has no measurement.
        """
        if self.size == 1:
            return measured is not None and bool(measured.layers)
        if self._broken:
            return False
        try:
            return self._add_up(measured)
        except RuntimeError as error:
            self._broken = True  # the others do not wait for this rank any more
            reason = str(error).splitlines()[0]
            raise ModelError(f"the ranks lost each other, nothing more is measured ({reason})") from error

    def _add_up(self, measured: StepMeasurement | None) -> bool:
        layers = [] if measured is None else [measured.layers[layer] for layer in sorted(measured.layers)]
        heads = [(layer.entry["layer"], layer.entry["heads"]) for layer in layers]
        digest = zlib.crc32(repr(heads).encode()) if heads else -1
        agreed = torch.tensor([digest, -digest, -1 if heads else 0])
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX, group=self._group)
        if agreed[0] != -agreed[1] or agreed[2] == 0:
            return False
        fields = (("sums", "counts", "rows"), ("max_logit", "unsound", "minus_limit"))
        for names, operation in zip(fields, (distributed.ReduceOp.SUM, distributed.ReduceOp.MAX), strict=True):
            packed = np.concatenate([getattr(layer, name).ravel() for layer in layers for name in names])
            distributed.all_reduce(torch.from_numpy(packed), operation, group=self._group)
            begin = 0
            for layer in layers:
                for name in names:
                    array = getattr(layer, name)
                    array[...] = packed[begin : begin + array.size].reshape(array.shape)
                    begin += array.size
        return True
