"""Cross attention with as many queries as keys, encoder and decoder padded on different sides.

The oracle is the model's own eager attention; the encoder-decoder families of transformers are in
tests/capture/test_families.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from models import VOCABULARY
from torch import nn

from attnscope.capture.forward import run

BATCH, TOKENS, HEADS = 3, 13, 4
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
BERT = {"num_hidden_layers": 1, "num_attention_heads": HEADS, "hidden_size": 56, "intermediate_size": 19, **SIZES}
GPT2 = {"n_layer": 1, "n_head": HEADS, "n_embd": 56, "n_positions": 64, **SIZES}
DECODER = {"is_decoder": True, "add_cross_attention": True}


def masks() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of the encoder and of the decoder: left, right and mixed padding, never on the same side in an item."""
    encoder = torch.ones(BATCH, TOKENS, dtype=torch.long)
    encoder[0, :4] = encoder[1, 9:] = encoder[2, :2] = encoder[2, 11:] = 0
    return encoder, encoder.roll(1, 0)


def padded_weights(call: Any) -> torch.Tensor:
    """Weights (batch, heads, queries, keys), zero in rows that see nothing."""
    rows = range(call.queries)
    visible = torch.stack([call.visible(rows, item) for item in range(call.batch)])
    logits = torch.stack([call.logits(rows, item) for item in range(call.batch)])
    return torch.softmax(logits.masked_fill(~visible, -torch.inf), -1).nan_to_num(0)


def crossing(module: nn.Module, inputs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    run(module, inputs, lambda call: found.append(padded_weights(call)) if call.cross else None)
    return found


def pair(decoder: str) -> Any:
    config = transformers.BertConfig(**BERT, **DECODER)
    if decoder == "gpt2":
        config = transformers.GPT2Config(**GPT2, add_cross_attention=True)
    both = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(transformers.BertConfig(**BERT), config)
    return transformers.EncoderDecoderModel(both)


def alone(decoder: str) -> Any:
    if decoder == "gpt2":
        return transformers.GPT2Model(transformers.GPT2Config(**GPT2, add_cross_attention=True))
    return transformers.BertModel(transformers.BertConfig(**BERT, **DECODER))


def whisper() -> Any:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 19}
    sizes |= {"decoder_attention_heads": HEADS, "decoder_ffn_dim": 19, "d_model": 56, "num_mel_bins": 5}
    return transformers.WhisperModel(transformers.WhisperConfig(**sizes, **SIZES, max_source_positions=TOKENS))


def prepared(model: Any, attention: str) -> Any:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.set_attn_implementation(attention)
    return model.eval()


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    encoder, decoder = masks()
    ids = torch.randint(2, VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
    states = torch.randn(BATCH, TOKENS, 56, generator=torch.Generator().manual_seed(2))
    if name.startswith("pair"):
        return {
            "input_ids": ids * encoder,
            "attention_mask": encoder,
            "decoder_input_ids": ids * decoder,
            "decoder_attention_mask": decoder,
        }
    if name == "whisper":
        features = torch.randn(BATCH, 5, 2 * TOKENS, generator=torch.Generator().manual_seed(2))
        return {"input_features": features, "decoder_input_ids": ids * decoder, "decoder_attention_mask": decoder}
    return {
        "input_ids": ids * decoder,
        "attention_mask": decoder,
        "encoder_hidden_states": states,
        "encoder_attention_mask": encoder,
    }


MODELS: dict[str, Any] = {
    "bert": lambda: alone("bert"),
    "gpt2": lambda: alone("gpt2"),
    "pair of bert and bert": lambda: pair("bert"),
    "pair of bert and gpt2": lambda: pair("gpt2"),
    "whisper": whisper,
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_cross_attention_are_those_of_the_decoder(name: str, attention: str) -> None:
    """Fault 29."""
    inputs, (_, decoder) = inputs_of(name), masks()
    with torch.no_grad():
        output = prepared(MODELS[name](), "eager")(**inputs, output_attentions=True, return_dict=True)
    rebuilt = crossing(prepared(MODELS[name](), attention), inputs)
    assert len(rebuilt) == len(output.cross_attentions) == 1
    expected = output.cross_attentions[0].double() * decoder[:, None, :, None]
    assert expected.max() > 1.5 / TOKENS
    torch.testing.assert_close(rebuilt[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("given", ["decoder alone", "encoder alone"])
def test_padding_on_one_side_alone(given: str) -> None:
    """Fault 29: without a mask of the encoder the kernel gets none; without one of the decoder no row is padding."""
    inputs, (_, decoder) = inputs_of("bert"), masks()
    del inputs["encoder_attention_mask" if given == "decoder alone" else "attention_mask"]
    with torch.no_grad():
        output = prepared(alone("bert"), "eager")(**inputs, output_attentions=True)
    expected = output.cross_attentions[0].double()
    if given == "decoder alone":
        expected = expected * decoder[:, None, :, None]
    torch.testing.assert_close(crossing(prepared(alone("bert"), "sdpa"), inputs)[0], expected, rtol=1e-4, atol=1e-6)


def test_pytorchs_decoder_drops_its_own_padding() -> None:
    """Fault 29: nn.TransformerDecoderLayer; its masks are True on padding."""
    encoder, decoder = (mask == 0 for mask in masks())
    torch.manual_seed(1)
    layer = nn.TransformerDecoderLayer(36, HEADS, 19, batch_first=True).eval()
    x, memory = torch.randn(2, BATCH, TOKENS, 36).unbind()
    inputs = {"tgt": x, "memory": memory, "tgt_key_padding_mask": decoder, "memory_key_padding_mask": encoder}
    rebuilt = crossing(layer, inputs)
    expected: list[torch.Tensor] = []

    def weights(module: Any, args: Any, kwargs: Any) -> None:
        expected.append(module.forward(*args, **kwargs | {"need_weights": True, "average_attn_weights": False})[1])

    layer.multihead_attn.register_forward_pre_hook(weights, with_kwargs=True)
    with torch.no_grad():
        layer(**inputs)
    torch.testing.assert_close(rebuilt[0], expected[0].double() * ~decoder[:, None, :, None], rtol=1e-4, atol=1e-6)


def test_latents_that_are_as_many_as_the_tokens_are_no_padding() -> None:
    """A mask of tokens says nothing about latents that attend to each other: they see what would be padding."""
    sizes = {"num_latents": TOKENS, "d_latents": 8, "d_model": 12, "num_blocks": 1, "num_self_attends_per_block": 1}
    heads = {"num_self_attention_heads": 2, "num_cross_attention_heads": 2}
    model = transformers.PerceiverModel(transformers.PerceiverConfig(**sizes, **heads)).eval()
    mask, seen = masks()[0], []
    x = torch.randn(BATCH, TOKENS, 12, generator=torch.Generator().manual_seed(2))
    run(
        model,
        {"inputs": x, "attention_mask": mask},
        lambda call: seen.append([int(call.visible(range(TOKENS), item).any(-1).any(0).sum()) for item in range(3)]),
    )
    assert seen == [[TOKENS] * 3] * 2
