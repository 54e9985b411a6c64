"""Scan one tiny model of a family and compare with the model itself: the lines of docs/families.md.

The oracle is the family's own eager attention (`attn_implementation="eager"`, `output_attentions=True`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from families import ATTENTION, defined_heads, tiny_model

from attnscope.capture.attention import AttentionCall
from attnscope.capture.forward import forward, observed
from attnscope.capture.layers import Layers
from attnscope.capture.models import Model
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
        forward(loaded, inputs["input_ids"], lambda call: seen.append(_look(call, layers)))
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


def _look(call: Any, layers: Layers) -> _Seen:
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
    entry = layers.entry(call, layers.number(call.module))
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
    eager = tiny_model(family, "eager")
    with torch.no_grad():
        output = eager.base_model(output_attentions=True, **_inputs(eager))
    if model.config.is_encoder_decoder:
        groups = {"encoder_attentions": [], "decoder_attentions": [], "cross_attentions": []}
        for one in seen:
            cross, decoder = one.entry["kind"] == "cross", "decoder" in one.entry["module"]
            groups["cross_attentions" if cross else "decoder_attentions" if decoder else "encoder_attentions"].append(
                one
            )
    else:
        groups = {"attentions": seen}
    worst = 0.0
    for name, mine in groups.items():
        theirs = [weights for weights in output[name] if weights is not None]
        if len(theirs) < len(mine):  # DiffLlama attends twice with the same weights, and gives them once
            mine = [one for place, one in enumerate(mine) if one.entry["module"] not in _modules(mine[:place])]
        if len(theirs) != len(mine):
            raise AssertionError(f"{family}: {len(mine)} attention calls seen, {len(theirs)} {name} given")
        for one, own in zip(mine, theirs, strict=True):
            rebuilt, expected = one.weights, own[0].double()
            if one.sinks and (expected.sum(-1) - 1).abs().max() < 1e-5:  # the sink is applied behind these weights
                rebuilt = rebuilt / rebuilt.sum(-1, keepdim=True)
            if rebuilt.shape != expected.shape:
                raise AssertionError(f"{family}: {tuple(rebuilt.shape)} seen, {tuple(expected.shape)} given")
            worst = max(worst, float((rebuilt - expected).abs().max()))
    return worst
