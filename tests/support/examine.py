"""Scan one tiny model of a family and compare with the model itself: the lines of docs/families.md.

The oracle is the family's own eager attention (`attn_implementation="eager"`, `output_attentions=True`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from families import ATTENTION, defined_heads, tiny_model

from attnscope.capture.attention import AttentionCall
from attnscope.capture.forward import forward, observed
from attnscope.capture.models import Model
from attnscope.capture.modules import Layers
from attnscope.errors import ModelError

LENGTH = 23
TOLERANCE = 2e-5  # float32 kernels round differently; the weights themselves are below one

HEADER = "| family | class | attention | how it is seen |\n|---|---|---|---|"


@dataclass
class Finding:
    """What was found of one family."""

    family: str
    model: str
    features: list[str]
    route: str
    worst: float = 0.0
    same_output: bool = True
    heads: set[int] = field(default_factory=set)
    groups: set[int] = field(default_factory=set)  # heads of keys and values
    defined: tuple[set[int], set[int | None]] = (set(), set())  # both, by the configuration
    kernel: float = 0.0  # between rebuilt weights times values and what the kernel answered, relative
    causal: tuple[bool, bool] = (True, True)  # as the model says, as its rows show
    largest: float = 1.0  # weight of the last row

    @property
    def line(self) -> str:
        """The family's line in the table."""
        return f"| {self.family} | `{self.model}` | {', '.join(self.features) or '-'} | {self.route} |"


@dataclass
class _Seen:
    entry: dict[str, Any]
    weights: torch.Tensor
    visible: torch.Tensor
    sinks: bool
    groups: int
    features: set[str]
    written_out: bool
    kernel: float


def examine(family: str) -> Finding:
    """Scan the family's tiny model and compare it with its own eager attention."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _examine(family)


def _examine(family: str) -> Finding:
    model = tiny_model(family, ATTENTION.get(family))
    inputs = _inputs(model)
    loaded, layers, seen = Model(model, None, family, None), Layers(model), []
    layers.start()
    name = type(model).__name__
    try:
        forward(
            loaded,
            inputs["input_ids"],
            lambda call: seen.append(_look(call, layers.entry(call, layers.number(call.module)))),
        )
    except ModelError as error:
        reason = (
            "refused: no softmax attention" if "no softmax" in str(error) else "refused: weights cannot be followed"
        )
        return Finding(family, name, [], reason)
    with torch.no_grad():
        alone = model(**inputs)[0]
        with observed(model, lambda call: None, ((1, None),), frozenset({LENGTH})):
            watched_output = model(**inputs)[0]
    square = [one.visible for one in seen if one.entry["kind"] == "self"]
    return Finding(
        family,
        name,
        _features(seen, model),
        "written-out attention" if any(one.written_out for one in seen) else "interface",
        _worst(family, model, seen),
        torch.equal(alone, watched_output),
        {one.entry["heads"] for one in seen},
        {one.groups for one in seen},
        defined_heads(family, model.config),
        max(one.kernel for one in seen),
        (loaded.causal, all(not torch.triu(visible, 1).any() for visible in square)),
        max(float(one.weights[:, -1].max()) for one in seen),
    )


def _inputs(model: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(2, 256, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    if not model.config.is_encoder_decoder:
        return {"input_ids": ids}
    starts = (getattr(model.config, key, None) for key in ("decoder_start_token_id", "bos_token_id", "pad_token_id"))
    start = next(value for value in starts if value is not None)
    return {"input_ids": ids, "decoder_input_ids": torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)}


def _look(call: Any, entry: dict[str, Any]) -> _Seen:
    rows = range(call.queries)
    visible, sinks = call.visible(rows), call.sinks
    # A loop's plain softmax, not the package's: the sink is one more column.
    logits = call.logits(rows).masked_fill(~visible, -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks[:, None, None].expand(-1, len(rows), 1)], -1)
    weights = torch.softmax(logits, -1).nan_to_num(0)[..., : call.keys]
    features = set()
    if isinstance(call, AttentionCall):
        groups = call.key.shape[1]
        features.add("MHA" if groups == call.heads else "MQA" if groups == 1 else "GQA")
        options = {key for key, value in call.options.items() if value is not None}
        features |= {
            label
            for label, there in {
                "softcap": "softcap" in options,
                "position bias": "position_bias" in options,
                "sinks": sinks is not None,
                "value size differs": call.value.shape[-1] != call.query.shape[-1],
            }.items()
            if there
        }
    return _Seen(
        entry,
        weights,
        visible,
        sinks is not None,
        call.values().shape[0],
        features,
        not isinstance(call, AttentionCall),
        _from_kernel(call, weights),
    )


def _from_kernel(call: Any, weights: torch.Tensor) -> float:
    """How far rebuilt weights times values are from the kernel's own answer, relative to its largest number."""
    if not isinstance(call, AttentionCall) or call.kernel_function is None:
        return 0.0
    values = call.values().double()
    rebuilt = weights @ values.repeat_interleave(call.heads // len(values), 0)
    answer = call.kernel_output()[0][0].double().transpose(0, 1)
    return float((rebuilt - answer).abs().max() / answer.abs().max())


def _features(seen: list[_Seen], model: Any) -> list[str]:
    found = sorted(set().union(*(one.features for one in seen)), key=lambda name: (not name.isupper(), name))
    own = [one for one in seen if one.entry["kind"] == "self"]
    causal = [not torch.triu(one.visible, 1).any() for one in own]
    found.append("causal" if all(causal) else "encoder and causal decoder" if any(causal) else "bidirectional")
    if any(one.entry["kind"] == "cross" for one in seen):
        found.append("cross-attention")
    if any((one.visible.sum(-1) < torch.arange(1, LENGTH + 1)).any() for one in own):
        found.append("window or chunks")
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    if not model.config.is_encoder_decoder and len({one.entry["module"] for one in seen}) < layers:
        shared = len({one.entry["module"] for one in seen}) < len(seen)
        found.append("shared attention" if shared else "layers without attention")
    return found


def _modules(seen: list[_Seen]) -> set[str]:
    return {one.entry["module"] for one in seen}


def _worst(family: str, model: Any, seen: list[_Seen]) -> float:
    """The largest difference between rebuilt weights and the model's own."""
    worst = 0.0
    for one, own in _pairs(family, model, seen, _inputs(model)):
        rebuilt, expected = one.weights, own[0].double()
        if one.sinks and (expected.sum(-1) - 1).abs().max() < 1e-5:  # the sink is applied behind these weights
            rebuilt = rebuilt / rebuilt.sum(-1, keepdim=True)
        if rebuilt.shape != expected.shape:
            raise AssertionError(f"{family}: {tuple(rebuilt.shape)} seen, {tuple(expected.shape)} given")
        worst = max(worst, float((rebuilt - expected).abs().max()))
    return worst


def _pairs(family: str, model: Any, seen: list[_Seen], inputs: dict[str, Any]) -> Iterator[tuple[_Seen, torch.Tensor]]:
    """Each attention call that was seen, with the weights of the family's eager attention."""
    eager = tiny_model(family, "eager")
    with torch.no_grad():
        output = eager.base_model(output_attentions=True, **inputs)
    if model.config.is_encoder_decoder:
        groups: dict[str, list[_Seen]] = {"encoder_attentions": [], "decoder_attentions": [], "cross_attentions": []}
        for one in seen:
            cross, decoder = one.entry["kind"] == "cross", "decoder" in one.entry["module"]
            groups["cross_attentions" if cross else "decoder_attentions" if decoder else "encoder_attentions"].append(
                one
            )
    else:
        groups = {"attentions": seen}
    for name, mine in groups.items():
        theirs = [weights for weights in output[name] if weights is not None]
        if len(theirs) < len(mine):  # DiffLlama attends twice with the same weights, and gives them once
            mine = [one for place, one in enumerate(mine) if one.entry["module"] not in _modules(mine[:place])]
        if len(theirs) != len(mine):
            raise AssertionError(f"{family}: {len(mine)} attention calls seen, {len(theirs)} {name} given")
        yield from zip(mine, theirs, strict=True)


@dataclass
class PaddedFinding:
    """What was found of one family on a batch with left, right and mixed padding."""

    worst: float = 0.0  # difference of weights in rows of tokens
    lost: int = 0  # rows of tokens that see no key
    kept: int = 0  # rows of padding that see one
    counted: int = 0  # keys of padding that a row of a token sees, without weight in the model


def examine_padded(family: str) -> PaddedFinding:
    """Compare every row of a padded batch with the family's own eager attention.

    The decoder of an encoder-decoder is padded on other sides than its encoder.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _examine_padded(family)


def _examine_padded(family: str) -> PaddedFinding:
    model = tiny_model(family, ATTENTION.get(family))
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[0, :5] = mask[1, 16:] = mask[2, :3] = mask[2, 19:] = 0
    other = mask.roll(1, 0)
    ids = torch.randint(2, 256, (3, LENGTH), generator=torch.Generator().manual_seed(1)) * mask
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs |= {"decoder_input_ids": ids.roll(1, 0), "decoder_attention_mask": other}
    layers, seen = Layers(model.base_model), []
    layers.start()

    def look(call: Any) -> None:
        entry = layers.entry(call, layers.number(call.module))
        items = [_look(call.only(item), entry) for item in range(3)]
        stacked = {name: torch.stack([getattr(one, name) for one in items]) for name in ("weights", "visible")}
        seen.append(replace(items[0], **stacked))

    with torch.no_grad(), observed(model.base_model, look, ((3, None),), frozenset({LENGTH})):
        model.base_model(**inputs)
    found = PaddedFinding()
    for one, own in _pairs(family, model, seen, inputs):
        decoder = model.config.is_encoder_decoder and "decoder" in one.entry["module"]
        queries = (other if decoder else mask).bool()
        keys = (other if decoder and one.entry["kind"] == "self" else mask).bool()
        rebuilt, expected, visible = (x.transpose(1, 2)[queries] for x in (one.weights, own.double(), one.visible))
        if one.sinks and (expected.sum(-1) - 1).abs().max() < 1e-5:
            rebuilt = rebuilt / rebuilt.sum(-1, keepdim=True)
        hidden = ~keys[:, None].expand(-1, LENGTH, -1)[queries][:, None]
        sees = one.visible.any(-1).any(1)
        found.worst = max(found.worst, float((rebuilt - expected).abs().max()))
        found.lost += int((~sees & queries).sum())
        found.kept += int((sees & ~queries).sum())
        found.counted += int((visible & hidden & (expected == 0)).sum())
    return found
