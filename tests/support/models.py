"""Tiny models of several families with random weights, and a tokenizer of single bytes."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

VOCABULARY = 257  # 256 bytes and the end token


def byte_tokenizer(special: bool = False) -> transformers.PreTrainedTokenizerFast:
    """One token for each byte, no merges; with `special`, an end token on both sides of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if special:
        end = [("<end>", vocabulary["<end>"])]
        tokenizer.post_processor = processors.TemplateProcessing(single="<end> $A <end>", special_tokens=end)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<end>", eos_token="<end>")


# Prime sizes wherever the architecture allows, so that swapped axes cannot pass.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 3, "n_head": 5, "n_embd": 35, "n_positions": 128}),
    "llama-gqa": (
        "LlamaForCausalLM",
        {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 84},
    ),
    "llama-mqa": (
        "LlamaForCausalLM",
        {"num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 70},
    ),
    "mistral-window": (
        "MistralForCausalLM",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "hidden_size": 42,
            "sliding_window": 13,
        },
    ),
    "gemma2-softcap": (
        "Gemma2ForCausalLM",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 14,
            "hidden_size": 42,
            "attn_logit_softcapping": 0.3,
            "sliding_window": 17,
        },
    ),
    "gpt-oss-sinks": (
        "GptOssForCausalLM",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 16,
            "hidden_size": 48,
            "intermediate_size": 32,  # its expert kernel wants multiples of 16 bytes
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "sliding_window": 11,
        },
    ),
    "qwen3-qknorm": (
        "Qwen3ForCausalLM",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 14,
            "hidden_size": 35,
        },
    ),
    "bert": ("BertModel", {"num_hidden_layers": 2, "num_attention_heads": 5, "hidden_size": 35}),
}


def build(family: str, attention: str = "sdpa") -> transformers.PreTrainedModel:
    """A model of a family with weights large enough that its attention is not uniform."""
    name, sizes = FAMILIES[family]
    cls = getattr(transformers, name)
    special = {"bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 256}
    config = cls.config_class(**{"vocab_size": VOCABULARY, "intermediate_size": 31, **special, **sizes})
    config._attn_implementation = attention
    torch.manual_seed(20250821)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    return model
