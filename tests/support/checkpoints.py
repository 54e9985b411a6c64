"""Small checkpoints on disk, and changes to them: of weights, configurations, tokenizers and headers."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from models import build
from safetensors.torch import load_file, save_file

GGUF_NAMES = {
    "model.layers.": "blk.",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
}


def write_gguf(path: Path, without: str | None = None, blocks: int | None = None) -> Path:
    """A tiny Llama as a GGUF file, with a tokenizer of bytes; without a tensor, or with another number of blocks."""
    model = build("llama-gqa")
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers if blocks is None else blocks)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*(f"<0x{byte:02X}>" for byte in range(256)), "<unk>"])
    writer.add_token_scores([0.0] * 257)
    writer.add_token_types([6] * 256 + [2])
    writer.add_unk_token_id(256)
    for name, tensor in model.state_dict().items():
        for theirs, short in GGUF_NAMES.items():
            name = name.replace(theirs, short)
        if name != without:
            writer.add_tensor(name, tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def change_json(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; an ellipsis removes one."""
    content = json.loads(path.read_text("utf-8")) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}), "utf-8")


def change_weights(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors of a model.safetensors, by name, in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


HOSTILE: list[Any] = [
    *(0, 1, -1, 2, 7, 300, 2**31, 10**9, 10**18, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *(None, True, False, "", "x", "../x", "\0", "gpt2", "float32", [], [1], ["x"], [[]], {}, {"x": 1}, {"0": {}}),
]


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Replace, remove, copy or rename a few values of a JSON document, or damage its bytes."""
    if rng.random() < 0.1:
        return mutate_bytes(data, rng, len(data))
    content = json.loads(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        part = content
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(part[key], dict | list) and part[key] and rng.random() < 0.8:
                part = part[key]
                continue
            action = rng.random()
            if action < 0.1:
                del part[key]
            elif action < 0.2 and isinstance(part, dict):
                part[str(key) + "x"] = part.pop(key)
            elif action < 0.3:
                part[key] = part[rng.choice(keys)]
            elif action < 0.4 and isinstance(part[key], int | float):
                part[key] = part[key] * rng.choice([2, 3, 1000, -1])
            else:
                part[key] = rng.choice(HOSTILE)
            break
    return json.dumps(content).encode()


def mutate_bytes(data: bytes, rng: random.Random, header: int) -> bytes:
    """Flip bits, overwrite numbers or cut the end, most of it within the first `header` bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        if not changed:
            break
        at = rng.randrange(min(header, len(changed)))
        action = rng.random()
        if action < 0.4:
            changed[at] ^= 1 << rng.randrange(8)
        elif action < 0.8:
            number = rng.choice([0, 1, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1])
            kind = rng.choice(["<I", "<Q"])
            changed[at : at + 8] = struct.pack(kind, number % 2 ** (32 if kind == "<I" else 64))
        elif action < 0.9:
            del changed[rng.randrange(len(changed)) :]
        else:
            changed[at:at] = rng.randbytes(rng.randrange(9))
    return bytes(changed)


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Change the JSON header of a safetensors file and keep its length right, or damage its bytes."""
    (size,) = struct.unpack_from("<Q", data)
    if rng.random() < 0.3:
        return mutate_bytes(data, rng, 8 + size)
    header = mutate_json(data[8 : 8 + size], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def mutate_gguf(data: bytes, rng: random.Random) -> bytes:
    """Damage the header of a GGUF file, which ends before the data of its tensors."""
    return mutate_bytes(data, rng, 7500)
