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
    "sliding_window": 11,
    "attention_chunk_size": 8,
    "attn_logit_softcapping": 0.7,
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

# What a family needs besides; an ellipsis leaves a size of TINY out.
_LATENT: dict[str, Any] = {"num_key_value_heads": HEADS, "head_dim": ...}
_EVEN: dict[str, Any] = {"hidden_size": 64, "head_dim": ...}
_LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "hidden_size": 64,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_VISION: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "image_size": 28,
    "patch_size": 14,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "axk1": _LATENT,
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 28, "mamba_n_groups": 1},
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT | {"index_topk": 7},
    "emu3": {"text_config": {"model_type": "emu3_text_model", **_TEXT}},
    "falcon": {"head_dim": ..., "num_kv_heads": KEY_VALUE_HEADS, "new_decoder_architecture": True},
    "flaubert": {},
    "gemma3": {
        "text_config": {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 11, **_TEXT},
        "vision_config": {"model_type": "siglip_vision_model", **_VISION},
    },
    "glm4_moe_lite": _LATENT,
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 7},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 28,
        "mamba_n_groups": 1,
    },
    "hy_v4": {"index_topk": 7},
    "inkling_text": {
        "layer_types": ["hybrid_sliding", "hybrid"],
        "swa_num_attention_heads": 6,
        "swa_num_key_value_heads": 3,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2", **_TEXT},
        "vision_config": {"model_type": "internvl_vision", **_VISION, "image_size": [28, 28], "patch_size": [14, 14]},
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "llava": {
        "text_config": {"model_type": "llama", **_TEXT},
        "vision_config": {"model_type": "clip_vision_model", **_VISION},
    },
    "llava_next": {
        "text_config": {"model_type": "mistral", **_TEXT},
        "vision_config": {"model_type": "clip_vision_model", **_VISION},
    },
    "mllama": {
        "text_config": {
            "model_type": "mllama_text_model",
            **_TEXT,
            "num_hidden_layers": 3,
            "cross_attention_layers": [1],
        },
        "vision_config": {"model_type": "mllama_vision_model", **_VISION, "num_global_layers": 1, "attention_heads": 2},
    },
    "minicpm3": _LATENT,
    "paligemma": {
        "text_config": {"model_type": "gemma", "head_dim": 16, **_TEXT},
        "vision_config": {"model_type": "siglip_vision_model", **_VISION},
    },
    "persimmon": _EVEN,
    "phi": _EVEN,
    "qwen2_vl": {
        "text_config": {
            "model_type": "qwen2_vl_text",
            **_TEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        },
        "vision_config": {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 1},
    },
    "qwen3_5_text": _LINEAR,
    "qwen3_next": _LINEAR,
    "smolvlm": {
        "text_config": {"model_type": "llama", **_TEXT},
        "vision_config": {"model_type": "smolvlm_vision", **_VISION},
    },
    "stablelm": {"hidden_size": 128, "head_dim": ...},
    "t5gemma": {
        "encoder": {"model_type": "t5_gemma_module", "head_dim": 16, **_TEXT},
        "decoder": {"model_type": "t5_gemma_module", "head_dim": 16, "is_decoder": True, **_TEXT},
    },
    "xglm": {"attention_heads": HEADS},
    "xlnet": {"max_position_embeddings": ...},
    "youtu": _LATENT,
    "zaya": {"num_experts_per_tok": 1},
}


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
    if config.is_encoder_decoder:
        loaders = (transformers.AutoModelForSeq2SeqLM, *loaders)
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


# Families whose logits would be too large for float32 to agree on weights with the scale of the others.
SCALE: dict[str, float] = {
    "t5": 2,
    "mt5": 2,
    "umt5": 2,
    "switch_transformers": 2,
    "t5gemma": 30,
    "minicpm3": 5,
    "hy_v4": 30,
}
# PaliGemma's text alone is bidirectional under sdpa and causal under eager attention: the oracle needs eager in both.
ATTENTION: dict[str, str] = {"paligemma": "eager"}


def defined_heads(family: str, config: Any) -> tuple[set[int], set[int | None]]:
    """Query heads, and heads of keys and values, as the family's configuration defines them."""
    text = config.get_text_config()
    if family == "convbert":  # convolutions take the place of all heads but one in head_ratio
        heads = config.num_attention_heads // config.head_ratio
        return {heads}, {heads}
    if family == "deepseek_v4":  # one projection to a single head of keys, which are the values too
        return {HEADS}, {1}
    if family == "gpt_bigcode":
        return {HEADS}, {1 if config.multi_query else HEADS}
    if family == "inkling_text":  # layers with a window have numbers of their own
        pairs = {
            "sliding": (config.swa_num_attention_heads, config.swa_num_key_value_heads),
            "full": (config.num_attention_heads, config.num_key_value_heads),
        }
        used = [pairs["sliding" if "sliding" in kind else "full"] for kind in config.layer_types]
        return {heads for heads, _ in used}, {groups for _, groups in used}
    if family == "mimo_v2_flash":  # layers with a window have twice as many heads of keys
        double = {"sliding_attention": 2}
        return {HEADS}, {double.get(kind, 1) * config.num_key_value_heads for kind in config.layer_types}
    return {HEADS}, {getattr(text, "num_key_value_heads", None)}


FAMILIES = [
    "afmoe",
    "albert",
    "apertus",
    "arcee",
    "aria_text",
    "axk1",
    "bamba",
    "bart",
    "beam",
    "bert",
    "bert-generation",
    "bigbird_pegasus",
    "biogpt",
    "bitnet",
    "blenderbot",
    "blenderbot-small",
    "bloom",
    "camembert",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "convbert",
    "cpmant",
    "ctrl",
    "cwm",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "diffllama",
    "distilbert",
    "doge",
    "dots1",
    "electra",
    "emu3",
    "ernie",
    "ernie4_5",
    "ernie4_5_moe",
    "esm",
    "eurobert",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_h1",
    "falcon_mamba",
    "flaubert",
    "flex_olmo",
    "flint",
    "fnet",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma4_unified_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt-sw3",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_neox_japanese",
    "gpt_oss",
    "gptj",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "gte",
    "helium",
    "hrm_text",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "hyperclovax",
    "ibert",
    "inkling_text",
    "internvl",
    "jais2",
    "jamba",
    "jetmoe",
    "jina_embeddings_v3",
    "kolibri1",
    "laguna",
    "layoutlm",
    "led",
    "lfm2",
    "llama",
    "llama4_text",
    "llava",
    "llava_next",
    "longformer",
    "longt5",
    "m2m_100",
    "mamba",
    "marian",
    "mbart",
    "megatron-bert",
    "mellum",
    "mimo_v2_flash",
    "minicpm3",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "mllama",
    "mobilebert",
    "modernbert",
    "modernbert-decoder",
    "moshi",
    "mpnet",
    "mpt",
    "mra",
    "mt5",
    "mvp",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "nllb-moe",
    "nomic_bert",
    "nystromformer",
    "olmo",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
    "openai-gpt",
    "opt",
    "paligemma",
    "pegasus",
    "pegasus_x",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "plbart",
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen4_exp_text",
    "recurrent_gemma",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roformer",
    "rwkv",
    "seamless_m4t",
    "seamless_m4t_v2",
    "seed_oss",
    "smollm3",
    "smolvlm",
    "solar_open",
    "stablelm",
    "starcoder2",
    "switch_transformers",
    "t5",
    "t5gemma",
    "tapas",
    "trocr",
    "ultrabert",
    "umt5",
    "vaultgemma",
    "whisper",
    "xglm",
    "xlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xlnet",
    "yoso",
    "youtu",
]
