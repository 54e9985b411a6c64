"""A tiny random model of each family of transformers, from its configuration class.

`TINY` holds small sizes under every name that configurations give them; a family takes those it has, and `SPECIAL`
says what it needs besides. `FAMILIES` lists what the table in docs/families.md is made of.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import transformers

VOCABULARY = 257
HEADS, KEY_VALUE_HEADS = 4, 2

TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "hidden_size": 56,
    "head_dim": 14,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
    "d_model": 56,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "n_layer": 2,
    "n_head": HEADS,
    "n_embd": 56,
    "n_positions": 128,
    "n_layers": 2,
    "n_heads": HEADS,
    "dim": 56,
    "emb_dim": 56,
    "hidden_dim": 32,
    "d_ff": 32,
    "d_kv": 14,
    "num_layers": 2,
    "num_heads": HEADS,
    "num_decoder_layers": 2,
    "ffn_dim": 32,
    "word_embed_proj_dim": 56,
    "embedding_size": 56,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 8,
    "v_head_dim": 10,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}

SPECIAL: dict[str, dict[str, Any]] = {}


def tiny_config(family: str) -> Any:
    """The family's configuration in tiny sizes."""
    cls = transformers.CONFIG_MAPPING[family]
    special = SPECIAL.get(family, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = cls()
        known = {name for name in TINY if name not in cls.attribute_map and _has(default, name)}
        sizes = {name: TINY[name] for name in known} | special
        return cls(**{name: value for name, value in sizes.items() if value is not ...})


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # some attributes differ by layer and refuse to be read as one
        return True


def tiny_model(family: str, attention: str | None = None) -> Any:
    """A model of the family, in evaluation mode, with weights large enough that its attention is not uniform."""
    config = tiny_config(family)
    loaders = (
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForMaskedLM,
        transformers.AutoModelForImageTextToText,
        transformers.AutoModel,
    )
    loader = next(loader for loader in loaders if type(config) in loader._model_mapping)
    torch.manual_seed(20250821)
    options = {} if attention is None else {"attn_implementation": attention}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = loader.from_config(config, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(SCALE.get(family, 10))
    return model


SCALE: dict[str, float] = {}
