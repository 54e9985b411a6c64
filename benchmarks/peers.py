"""Other capture tools on the same weights: runs that keep every head's weights and values, and compute no columns.

Both make the model compute its attention matrices (`eager`), on a copy, so that the original model is unchanged.
"""

from __future__ import annotations

import copy
import importlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

PACKAGES = {"transformer_lens": "transformer-lens", "nnsight": "nnsight"}


def capture_with_transformer_lens(module: Any, ids: Sequence[int]) -> Callable[[], dict[str, list[torch.Tensor]]]:
    """TransformerLens: `run_with_cache` of patterns and values, through its bridge to the model."""
    lens = importlib.import_module("transformer_lens")
    copied = _eager_copy(module)
    with tempfile.TemporaryDirectory() as folder:  # the bridge needs a name to look up: a folder with the config
        copied.config.architectures = [type(copied).__name__]
        copied.config.save_pretrained(folder)
        _any_tokenizer().save_pretrained(folder)
        bridge = lens.TransformerBridge.boot_transformers(folder, hf_model=copied, device="cpu")
    inputs, wanted = torch.tensor([list(ids)]), ("hook_pattern", "hook_v")

    def run() -> dict[str, list[torch.Tensor]]:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(
                inputs, return_type=None, names_filter=lambda name: name.rpartition(".")[2] in wanted
            )
        cached = {name: [value for key, value in cache.items() if key.endswith(name)] for name in wanted}
        return {"weights": cached["hook_pattern"], "values": cached["hook_v"]}

    return run


def capture_with_nnsight(module: Any, ids: Sequence[int]) -> Callable[[], dict[str, list[torch.Tensor]]]:
    """nnsight: a trace of the attention's second output and of the projection that contains the values."""
    nnsight = importlib.import_module("nnsight")
    base = _eager_copy(module).base_model
    wrapped = nnsight.NNsight(base)
    if hasattr(base, "h"):  # GPT-2
        parts = [(block.attn, block.attn.c_attn) for block in wrapped.h]
    else:  # Llama
        parts = [(block.self_attn, block.self_attn.v_proj) for block in wrapped.layers]
    inputs = torch.tensor([list(ids)])

    def run() -> dict[str, list[torch.Tensor]]:
        weights, projected = [], []
        with torch.no_grad(), wrapped.trace(inputs, use_cache=False, output_attentions=True):
            for attention, projection in parts:
                projected.append(projection.output.save())
                weights.append(attention.output[1].save())
        return {"weights": weights, "values": projected}

    return run


def _eager_copy(module: Any) -> Any:
    copied = copy.deepcopy(module)
    copied.set_attn_implementation("eager")
    return copied


def _any_tokenizer() -> Any:
    """A tokenizer with one word: the bridge loads a tokenizer although it is given tokens."""
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<end>": 0}, unk_token="<end>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<end>", eos_token="<end>")
