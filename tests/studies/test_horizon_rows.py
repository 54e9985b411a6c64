"""Extended rows against real longer inputs.

In a model of one layer a key depends on its token alone, so the input that an extended row stands for can be written
down token by token. transformers' own eager attention on that input is the oracle.
"""

from __future__ import annotations

import math
import warnings
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from families import tiny_config
from models import byte_tokenizer

from attnscope.capture.models import Model
from attnscope.engine.run import Forward, Window, run_windows
from attnscope.errors import ModelError
from attnscope.normalizers import parse
from attnscope.studies.horizon.extended_row import Rotation
from attnscope.studies.horizon.measuring import HorizonMeasurer, HorizonSettings
from attnscope.studies.horizon.positions import RotaryPositions, probe_positions

LENGTH, LONGEST, ROWS, WINDOWS = 64, 200, 8, 3
WHAT_IFS = ("ssmax:s=0.3", "sparsemax")
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "rotary": ("llama", {}),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "linear": ("llama", {"rope_parameters": LINEAR}),
    "half-of-the-vector": ("gpt_neox", {}),
    "neighboring-dimensions": ("cohere", {}),
    "neighbors-in-half": ("glm", {}),
    "latent": ("deepseek_v3", {}),
    "softcap": ("gemma2", {"sliding_window": 1000}),
    "window-inside": ("mistral", {"sliding_window": 23}),
    "window-beyond": ("mistral", {"sliding_window": 150}),
    "sinks": ("gpt_oss", {"sliding_window": 150}),
    "none": ("smollm3", {"no_rope_layers": [0]}),
    "alibi": ("bloom", {}),
    "alibi-mpt": ("mpt", {}),
}
ALONE = ("bloom", "mpt")  # attention in their own code: logits are known, queries and keys are not


def one_layer(family: str, **settings: Any) -> Model:
    config = tiny_config(family)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    for name, value in ({"max_position_embeddings": 512, "max_seq_len": 512} | settings).items():
        if hasattr(config, name):
            setattr(config, name, value)
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return Model(module, byte_tokenizer(), family, None)


def some_windows() -> list[list[int]]:
    drawn = np.random.default_rng(3).integers(3, 120, (WINDOWS, LENGTH))
    return [[int(token) for token in window] for window in drawn]


def predicted(model: Model, rotation: Rotation | None = None) -> dict[str, dict[int, Any]]:
    windows = some_windows()
    what_ifs = {label: parse(label) for label in WHAT_IFS}
    settings = HorizonSettings(LENGTH, LONGEST, WINDOWS, ROWS, normalizers=what_ifs)
    positions = probe_positions(model, windows[0], LONGEST)
    if rotation is not None:
        positions = {0: RotaryPositions(rotation)}
    first, *others = windows
    batch = Window(0, [Forward(first, {}, beside=tuple(others))])
    (record,) = run_windows(model, [batch], HorizonMeasurer(settings, positions))
    return record.predicted[0]


def long_input(windows: list[list[int]], number: int, row: int, length: int, alone: bool) -> list[int]:
    """The input whose last row is this row extended: beginning, new tokens, the row's own tokens."""
    window = windows[number]
    own = window[LENGTH // 4 : row + 1]
    beginning = window[: LENGTH // 16]
    others = windows[number + 1 :] + windows[:number]
    if alone:
        pool = cycle(window[LENGTH // 4 : LENGTH * 5 // 8][::-1])
    else:
        pool = cycle(token for other in others for token in other[LENGTH // 4 :][::-1])
    new = [next(pool) for _ in range(length - len(beginning) - len(own))]
    return [*beginning, *reversed(new), *own]


def last_row(module: Any, tokens: list[int]) -> np.ndarray:
    """The weights of the last row, (heads, keys), from transformers' eager attention."""
    module.set_attn_implementation("eager")
    with torch.no_grad():
        found = module(torch.tensor([tokens]), output_attentions=True, use_cache=False)
    weights: np.ndarray = found.attentions[0][0, :, -1].double().numpy()
    return weights


def sparsemax(z: np.ndarray) -> np.ndarray:
    ordered = np.sort(z)[::-1]
    kept = [k for k in range(1, len(z) + 1) if 1 + k * ordered[k - 1] > ordered[:k].sum()]
    threshold = (ordered[: kept[-1]].sum() - 1) / kept[-1]
    return np.maximum(z - threshold, 0)


def measures(weights: np.ndarray, keys: int) -> list[float]:
    ordered = np.sort(weights)[::-1]
    positive = weights[weights > 0]
    entropy = -(positive * np.log(positive)).sum()
    return [ordered[:5].sum(), 1 / (weights**2).sum(), entropy / math.log(keys), ordered[0]]


def oracle(model: Model, label: str, family: str) -> np.ndarray:
    """The measures of real long inputs at the last length, (windows, heads, measures), means over rows."""
    windows, found = some_windows(), []
    alone = family in ALONE
    start = LENGTH * 5 // 8 + LENGTH // 64 if alone else LENGTH // 2 + LENGTH // 16
    rows = [round(row) for row in np.linspace(start, LENGTH - 1, ROWS) + 1e-9]
    for number in range(WINDOWS):
        each = []
        for row in rows:
            weights = last_row(model.module, long_input(windows, number, row, LONGEST, alone))
            heads = []
            for head in weights:
                seen = head[head > 0]
                if label == "ssmax:s=0.3":
                    z = 0.3 * math.log(len(seen)) * np.log(seen)
                    seen = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
                elif label == "sparsemax":
                    seen = sparsemax(np.log(seen))
                heads.append(measures(seen, int((head > 0).sum())))
            each.append(heads)
        found.append(np.mean(each, 0))
    return np.array(found)


@pytest.mark.parametrize("name", MODELS)
def test_an_extended_row_is_the_row_of_a_real_longer_input(name: str) -> None:
    family, settings = MODELS[name]
    model = one_layer(family, **settings)
    found = predicted(model)
    for label in ("own",) if name == "sinks" else ("own", *WHAT_IFS):
        wanted = oracle(model, label, family)
        assert np.allclose(found[label][LONGEST], wanted, rtol=2e-3, atol=2e-4), label


def test_a_wrong_rotary_base_gives_other_rows() -> None:
    """The control: what the test above compares depends on the angles."""
    model = one_layer("llama")
    wanted = oracle(model, "own", "llama")[..., 0]
    right = probe_positions(model, some_windows()[0], LONGEST)[0]
    assert isinstance(right, RotaryPositions)
    planes, angles = right.rotation.planes, right.rotation.angles
    wrong = Rotation(planes, angles**0.7)  # the same number of frequencies, of a smaller base
    errors = [np.abs(predicted(model, each)["own"][LONGEST][..., 0] - wanted).max() for each in (None, wrong)]
    assert errors[1] > 20 * errors[0]


@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        pytest.param("gpt2", {}, r"learned absolute positions \(transformer.wpe\)", id="learned"),
        pytest.param("opt", {}, r"learned absolute positions \(model.decoder.embed_positions\)", id="learned-opt"),
        pytest.param("ctrl", {}, "depend on their absolute position", id="sinusoids"),
        pytest.param("gptj", {}, "attention in its own code", id="rotary-in-own-code"),
        pytest.param("inkling_text", {}, "not linear in the distance", id="bias"),
        pytest.param(
            "phi3",
            {
                "original_max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 5000.0,
                    "short_factor": [1.0] * 7,
                    "long_factor": [4.0] * 7,
                    "original_max_position_embeddings": 64,
                },
            },
            "differently from some position between 8 and 64 on",
            id="other-frequencies-beyond",
        ),
    ],
)
def test_positions_that_cannot_be_moved_are_refused_by_name(family: str, settings: dict[str, Any], words: str) -> None:
    model = one_layer(family, **settings)
    with pytest.raises(ModelError, match=words):
        probe_positions(model, some_windows()[0], 120)


def test_weights_that_are_not_finite_are_said_to_be_so() -> None:
    model = one_layer("llama")
    with torch.no_grad():
        model.module.model.layers[0].self_attn.k_proj.weight[3] = torch.nan
    with pytest.raises(ModelError, match=r"layer 0 of llama .* logits that are not finite"):
        probe_positions(model, some_windows()[0], LONGEST)


def test_alibi_slopes_are_those_of_the_model() -> None:
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    model = one_layer("bloom")
    found: Any = probe_positions(model, some_windows()[0], LONGEST)[0]
    heads = model.module.config.num_attention_heads
    assert torch.allclose(found.slopes, _get_alibi_slopes(heads, torch.device("cpu")).double().flatten(), rtol=1e-4)
