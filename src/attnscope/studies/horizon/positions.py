"""How the logits of a layer change when a key moves away, found by probing the model.

| positions of a layer | a key that moves d tokens away | how they are found |
|---|---|---|
| rotary | turns back by d theta in each plane | the keys of the same tokens at other positions (`rotation.py`) |
| ALiBi | loses slope x d | the part of the logits that queries and keys do not explain |
| none | keeps its logits | the same: the slope is 0 |

Anything else is refused by name: absolute positions, biases that are not linear in the distance, frequencies or
scales that depend on the length of the input.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from attnscope.capture.attention import AttentionCall, rebuild_logits
from attnscope.engine.run import Forward, LayerCall, Positions, Window, WindowRecord, run_windows
from attnscope.errors import ModelError, parameter
from attnscope.studies.horizon.extended_row import Rotation, fit_rotation, misfit, relative_change

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.capture.models import Model
    from attnscope.columns import VectorKind
    from attnscope.studies.horizon.extended_row import Moves

PROBE_TOKENS = 32
_STEP = 8  # from one probed position to the next
# Relative error of moved queries and keys up to which they count as moved by the rule: the model's own rounding.
_TOLERANCE = {torch.float64: 0.02, torch.float32: 0.02}
_TOLERANCE_HALF = 0.1


class LayerPositions(Protocol):
    """What positions do to the logits of one layer."""

    def logits(self, call: Call, item: int, rows: Sequence[int], moves: Moves) -> Float[Tensor, "heads rows keys"]:
        """Logits of queries of one window of a batch, with keys of all of them, moved away."""

    @property
    def kind(self) -> str:
        """rotary, alibi or none."""

    @property
    def alone(self) -> bool:
        """Whether logits are known of keys of the row's own window only."""


@dataclass(frozen=True, eq=False)
class RotaryPositions:
    """Keys turn as they move."""

    rotation: Rotation
    kind: str = "rotary"
    alone: bool = False

    def logits(self, call: Call, item: int, rows: Sequence[int], moves: Moves) -> Float[Tensor, "heads rows keys"]:
        """Logits of these queries with the turned keys, in float32 or the model's wider dtype."""
        query, key = _queries_and_keys(call, item, rows, moves)
        return _products(call, query, self.rotation.moved(key, -moves.further.to(key.device)))


@dataclass(frozen=True, eq=False)
class LinearPositions:
    """Logits fall by a slope of each head for every token of distance; by nothing without positions."""

    slopes: Float[Tensor, " heads"]
    alone: bool  # the model computes its attention in its own code, which shows logits, but no queries and keys

    @property
    def kind(self) -> str:
        """alibi, or none if all slopes are 0."""
        return "alibi" if bool(self.slopes.any()) else "none"

    def logits(self, call: Call, item: int, rows: Sequence[int], moves: Moves) -> Float[Tensor, "heads rows keys"]:
        """The logits of these keys without positions, less the slope for every token of distance."""
        slopes = self.slopes[:, None, None]
        if self.alone:
            own = call.logits(rows, item)[..., moves.keys]
            return (own - slopes.to(own.device) * moves.further.to(own.device)).float()
        distance = torch.tensor(list(rows))[:, None] - moves.keys + moves.further
        products = _products(call, *_queries_and_keys(call, item, rows, moves))
        return products - (slopes * distance).to(products)


def _queries_and_keys(
    call: Call, item: int, rows: Sequence[int], moves: Moves
) -> tuple[Float[Tensor, "heads rows dims"], Float[Tensor, "groups keys dims"]]:
    """The queries and keys in float32 or the model's wider dtype."""
    assert isinstance(call, AttentionCall)
    device = call.key.device
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    key = call.key[moves.windows.to(device), :, moves.keys.to(device)].movedim(0, 1)
    query = call.query[item][:, torch.tensor(list(rows), device=device)]
    return query.to(dtype), key.to(dtype)


def _products(call: Call, query: Tensor, key: Tensor) -> Float[Tensor, "heads rows keys"]:
    assert isinstance(call, AttentionCall)
    return rebuild_logits(query, key, scale=call.scale, softcap=call.options.get("softcap"))


def probe_positions(model: Model, tokens: Sequence[int], longest: int) -> dict[int, LayerPositions]:
    """The positions of every layer, by its number; ModelError if a layer has positions that cannot be predicted.

    `tokens` are some tokens of the text, `longest` is the length up to which predictions are wanted.
    """
    probe = list(tokens[:PROBE_TOKENS])
    takes_positions = "position_ids" in inspect.signature(model.module.base_model.forward).parameters
    offsets = _offsets(longest - len(probe)) if takes_positions else [0]
    windows = [Window(i, [Forward(probe, {}, offset if takes_positions else None)]) for i, offset in enumerate(offsets)]
    repeated = Window(len(windows), [Forward([probe[0]] * len(probe), {})])
    *probes, constant = run_windows(model, [*windows, repeated], _Probe())
    found = {}
    for layer, seen in probes[0].seen.items():
        moved = {offset: each.seen[layer] for offset, each in zip(offsets, probes, strict=True)}
        found[layer] = _positions_of(model, layer, moved, constant.seen[layer], takes_positions, seen.heads)
    return found


def _offsets(last: int) -> list[int]:
    """0, 1, 8, 64, ... and the last."""
    offsets, step = [0], 1
    while step < last:
        offsets.append(step)
        step *= _STEP
    return [*offsets, last]


@dataclass
class _Seen:
    """One call of a probe: queries and keys where they are known, and what else is in the logits."""

    heads: int
    query: Tensor | None  # (heads tokens, dims)
    key: Tensor | None
    bias: Tensor  # (heads, tokens, tokens): logits without the products of queries and keys, where those are known
    tolerance: float


@dataclass
class _ProbeRecord(WindowRecord):
    seen: dict[int, _Seen] = field(default_factory=dict)


class _Probe:
    """Measurer that keeps queries, keys and biases of short inputs."""

    vectors: Sequence[VectorKind] = ("value",)

    def start(self, number: int) -> _ProbeRecord:
        """The empty record of a probe."""
        return _ProbeRecord(number)

    def measure(self, record: _ProbeRecord, layer: LayerCall, positions: Positions) -> None:
        """Keep what one call shows."""
        call = layer.call
        logits = call.logits(range(call.queries))
        if not isinstance(call, AttentionCall):
            record.seen[layer.number] = _Seen(call.heads, None, None, logits.cpu(), _TOLERANCE_HALF)
            return
        query, key = call.query[0].detach(), call.key[0].detach()
        products = rebuild_logits(query.double(), key.double(), scale=call.scale, softcap=call.options.get("softcap"))
        tolerance = _TOLERANCE.get(query.dtype, _TOLERANCE_HALF)
        queries, keys = (each.flatten(0, 1).cpu().clone() for each in (query, key))
        record.seen[layer.number] = _Seen(call.heads, queries, keys, (logits - products).cpu(), tolerance)

    def finish(self, record: _ProbeRecord) -> _ProbeRecord:
        """The record."""
        return record


def _positions_of(
    model: Model, layer: int, moved: Mapping[int, _Seen], constant: _Seen, takes_positions: bool, heads: int
) -> LayerPositions:
    start, end = moved[0], moved[max(moved)]
    where = f"layer {layer} of {model.name} ({model.family})"
    if not bool(start.bias.isfinite().all()):
        raise ModelError(f"{where} has logits that are not finite: nothing can be predicted; check its weights")
    if start.key is None or end.key is None:
        # Only logits are known: those of one token repeated show positions and nothing else.
        slopes = _slopes(constant.bias, constant.tolerance)
        if slopes is None:
            raise _refusal(model, f"{where} computes its attention in its own code, and its positions are not linear")
        return LinearPositions(slopes, alone=True)
    slopes = _slopes(start.bias, start.tolerance)
    if slopes is None:
        raise _refusal(model, f"{where} adds a bias to its logits that is not linear in the distance")
    if not takes_positions:
        assert constant.key is not None
        same = constant.key.reshape(-1, PROBE_TOKENS, constant.key.shape[-1])
        if relative_change(same[:, :1].expand_as(same), same) > start.tolerance:
            raise _refusal(model, f"{where} has keys that depend on their absolute position")
    if relative_change(start.key, end.key) <= start.tolerance:
        return LinearPositions(slopes, alone=False)
    keys = {offset: each.key for offset, each in moved.items() if each.key is not None}
    queries = {offset: each.query for offset, each in moved.items() if each.query is not None}
    fits = [last for last in sorted(keys)[1:] if _rotates(keys, queries, last, start.tolerance)]
    if not fits or bool(slopes.any()):
        raise _refusal(model, f"{where} has keys that depend on their absolute position, and not by a rotation")
    if fits[-1] != max(keys):
        beyond = min(each for each in keys if each > fits[-1])
        raise ModelError(
            f"{where} turns its queries and keys differently from some position between {fits[-1]} and {beyond} on "
            "(frequencies or scales that depend on the length): rows of longer inputs do not follow from shorter ones; "
            f"use {parameter('to', fits[-1])} or less"
        )
    return RotaryPositions(fit_rotation(keys))


def _rotates(keys: Mapping[int, Tensor], queries: Mapping[int, Tensor], last: int, tolerance: float) -> bool:
    """Whether one rotation moves keys and queries up to this position."""
    near_keys, near_queries = ({at: each[at] for at in each if at <= last} for each in (keys, queries))
    rotation = fit_rotation(near_keys)
    return max(misfit(rotation, near_keys), misfit(rotation, near_queries)) <= tolerance


def _slopes(bias: Float[Tensor, "heads rows keys"], tolerance: float) -> Float[Tensor, " heads"] | None:
    """How much each head's logits fall with every token of distance; None if they are not linear in it."""
    rows = bias.shape[1]
    distance = torch.arange(rows)[:, None] - torch.arange(rows)
    seen = distance >= 0
    own = bias.diagonal(dim1=1, dim2=2)[..., None]
    fall = torch.where(seen, own - bias, 0.0)
    slopes = (fall * distance).sum((1, 2)) / distance.where(seen, 0).square().sum()
    error = (fall - slopes[:, None, None] * distance).where(seen, 0.0).abs().amax()
    if error > tolerance * max(1.0, float(slopes.abs().max()) * rows):
        return None
    return torch.where(slopes.abs() * rows > tolerance / 10, slopes, 0.0)


def _refusal(model: Model, what: str) -> ModelError:
    """What to say of positions that cannot be moved; learned ones by the name of their embedding."""
    for name, part in model.module.named_modules():
        if isinstance(part, nn.Embedding) and ("pos" in name.lower() or name.endswith("wpe")):
            return ModelError(
                f"{model.name} ({model.family}) has learned absolute positions ({name}): a key at another distance "
                "is another key, so longer inputs cannot be predicted; a scan measures them"
            )
    return ModelError(f"{what}: longer inputs cannot be predicted; a scan measures them")
