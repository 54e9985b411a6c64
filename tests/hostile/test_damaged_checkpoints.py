"""Model folders and files that lie: one line that says so, in the time that it takes to read a header."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import change_json, mutate_json, write_gguf
from models import build, byte_tokenizer

import attnscope
from attnscope.capture.checkpoints import Checkpoint, read_gguf_header
from attnscope.capture.loading import _AllocationLimit
from attnscope.capture.models import load_model
from attnscope.errors import AttnscopeError, ModelError


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model_folder, tmp_path / "model")


@pytest.mark.parametrize(
    "values",
    [
        {"n_layer": 10**9},
        {"n_layer": 10**400},
        {"n_layer": 900},
        {"n_layer": 90},
        {"n_layer": 0},
        {"n_head": 0},
        {"n_head": -5},
        {"n_head": 10**9},
        {"n_embd": "35"},
        {"n_embd": 10**18},
        {"vocab_size": 10**9},
        {"vocab_size": None},
        {"n_positions": 10**7},
        {"activation_function": "none such"},
        {"architectures": 5},
        {"architectures": [5]},
        {"model_type": 5},
        {"model_type": ...},
        {"auto_map": 5},
        {"dtype": "none such"},
        {"quantization_config": 3},
    ],
    ids=lambda values: f"{next(iter(values))}={str(next(iter(values.values())))[:12]}",
)
def test_a_configuration_that_makes_no_sense_is_refused(folder: Path, values: dict[str, Any], text: str) -> None:
    """Fault 32."""
    change_json(folder / "config.json", **values)
    with pytest.raises(ModelError) as raised:
        attnscope.scan(str(folder), text, length=16, top_n=[2])
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        (size,) = struct.unpack_from("<Q", data)
        content = json.loads(data[8 : 8 + size])
        change(content["transformer.wpe.weight"])
        text = json.dumps(content).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    return changed


@pytest.mark.parametrize(
    ("file", "change"),
    [
        pytest.param("config.json", lambda data: b"", id="empty configuration"),
        pytest.param("config.json", lambda data: b"[1]", id="list as configuration"),
        pytest.param("config.json", lambda data: b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", id="deep nesting"),
        pytest.param("config.json", lambda data: b"\xff\xfe", id="binary configuration"),
        pytest.param("model.safetensors", lambda data: b"", id="empty weights"),
        pytest.param("model.safetensors", lambda data: data[:1000], id="cut in the header"),
        pytest.param("model.safetensors", lambda data: data[:-5], id="cut in the data"),
        pytest.param("model.safetensors", lambda data: struct.pack("<Q", 2**60) + data[8:], id="header of 2^60 bytes"),
        pytest.param("model.safetensors", header(lambda t: t.update(shape=[2**62, 4])), id="huge shape"),
        pytest.param("model.safetensors", header(lambda t: t.update(data_offsets=[0, 2**50])), id="huge offset"),
        pytest.param("model.safetensors", header(lambda t: t.update(dtype="X9")), id="unknown dtype"),
        pytest.param("tokenizer.json", lambda data: b'{"a": 1}', id="another JSON as tokenizer"),
        pytest.param("tokenizer.json", lambda data: data[:500], id="cut tokenizer"),
        pytest.param("tokenizer.json", lambda data: data.replace(b'"\\"": 1', b'"\\"": -1'), id="negative token"),
        pytest.param("tokenizer_config.json", lambda data: b'{"tokenizer_class": 5}', id="number as tokenizer class"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    """Faults 21 and 32."""
    data = (folder / file).read_bytes()
    assert change(data) != data
    (folder / file).write_bytes(change(data))
    with pytest.raises(ModelError) as raised:
        load_model(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf")


def number(offset: int, kind: str, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + struct.pack(kind, value) + data[offset + struct.calcsize(kind) :]


def after(name: bytes, skip: int, kind: str, value: int) -> Callable[[bytes], bytes]:
    """Overwrite a number a few bytes after a name in the file."""
    return lambda data: number(data.index(name) + len(name) + skip, kind, value)(data)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"GGML" + data[4:], id="other magic"),
        pytest.param(lambda data: data[:6], id="cut after the magic"),
        pytest.param(lambda data: data[:200], id="cut in the metadata"),
        pytest.param(lambda data: data[:-100], id="cut in the data"),
        pytest.param(number(8, "<Q", 2**60), id="2^60 tensors"),
        pytest.param(number(16, "<Q", 2**60), id="2^60 fields"),
        pytest.param(number(24, "<Q", 2**60), id="name of 2^60 bytes"),
        pytest.param(after(b"tokenizer.ggml.tokens", 8, "<Q", 2**60), id="2^60 tokens"),
        pytest.param(after(b"tokenizer.ggml.scores", 8, "<Q", 2**60), id="2^60 scores"),
        pytest.param(after(b"llama.block_count", 4, "<I", 10**9), id="10^9 blocks"),
        pytest.param(after(b"token_embd.weight", 0, "<I", 2**31), id="2^31 dimensions"),
        pytest.param(after(b"token_embd.weight", 4, "<Q", 2**61), id="2^61 columns"),
        pytest.param(after(b"token_embd.weight", 20, "<I", 250), id="unknown packing"),
    ],
)
def test_a_damaged_gguf_file_is_refused(gguf_file: Path, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """Fault 32."""
    path = tmp_path / "model.gguf"
    path.write_bytes(change(gguf_file.read_bytes()))
    with pytest.raises(ModelError) as raised:
        load_model(path)
    assert "\n" not in str(raised.value)


def test_the_header_of_an_intact_gguf_file_is_that_of_the_package(gguf_file: Path) -> None:
    from gguf import GGUFReader

    reader, mine = GGUFReader(gguf_file), read_gguf_header(gguf_file)
    assert mine.tensors == tuple(tensor.name for tensor in reader.tensors)
    assert mine.metadata.keys() == {name for name in reader.fields if not name.startswith("GGUF.")}
    assert mine.metadata["llama.block_count"] == reader.fields["llama.block_count"].contents()
    assert mine.metadata["general.architecture"] == "llama"
    assert mine.metadata["tokenizer.ggml.tokens"] == 257


@pytest.mark.parametrize("named", ["weights.bin", "../weights.safetensors", "/weights.safetensors", 5])
def test_an_index_names_safetensors_files_beside_it(folder: Path, named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults 21 and 32: a pickle is not opened because an index names it."""
    (folder / "model.safetensors").unlink()
    weights = build("gpt2").state_dict()
    torch.save(weights, folder / "weights.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, named)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was opened")

    monkeypatch.setattr(torch, "load", opened)
    with pytest.raises(ModelError, match=r"allow_pickle|not a file in its folder"):
        load_model(folder)


def test_weights_that_a_configuration_names_are_safetensors(folder: Path) -> None:
    """Fault 21: transformers takes adapter_model.bin from there."""
    torch.save(build("gpt2").state_dict(), folder / "adapter_model.bin")
    change_json(folder / "config.json", transformers_weights="adapter_model.bin")
    with pytest.raises(ModelError, match="allow_pickle"):
        load_model(folder)


def test_tokens_beyond_the_vocabulary_are_refused(folder: Path, text: str) -> None:
    """Fault 32."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["q"] = 99_999
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="token 99999, but the model has only 257 embeddings"):
        attnscope.scan(str(folder), text, length=16, top_n=[2])


def test_special_tokens_that_are_not_in_the_vocabulary_are_refused(tmp_path: Path, text: str) -> None:
    """Fault 32: the post-processor names a token of which it has no number."""
    build("bert").save_pretrained(tmp_path)
    byte_tokenizer(special=True).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"tokenizer|cannot load"):
        attnscope.scan(str(tmp_path), text, length=16, top_n=[2])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        pytest.param("([a-z ]+)+$", "cannot tokenize", id="exponential"),
        pytest.param(r".{0,200}.{0,200}.{0,40}(?!)", "would not end", id="slow at every character"),
        pytest.param("((", "cannot load", id="no pattern"),
    ],
)
def test_patterns_that_would_not_end_are_refused(
    folder: Path, pattern: str, message: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 32: regex bombs."""
    monkeypatch.setattr("attnscope.capture.text._TRIAL_SECONDS", 0.2)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    change_json(folder / "tokenizer.json", pre_tokenizer=split)
    with pytest.raises(ModelError, match=message):
        attnscope.scan(str(folder), text, length=16, top_n=[2])


@pytest.fixture(scope="module")
def swapped_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swapped")
    model = build("gpt2")
    attnscope.swap(model, attnscope.normalizers.LearnedSSMax, layers=[0])
    attnscope.swap(model, "entmax:alpha=1.3", layers=[1])
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("normalizer", "message"),
    [
        ({"learned": "get", "settings": {"heads": 5}}, "no learned normalizer is named 'get'"),
        ({"learned": "Tempered", "settings": {"heads": 5}}, "no learned normalizer is named 'Tempered'"),
        ({"learned": "__builtins__", "settings": {"heads": 5}}, "no learned normalizer"),
        ({"learned": "LearnedSSMax", "settings": {"heads": 10**12}}, "is for 1000000000000 heads"),
        ({"learned": "LearnedSSMax", "settings": {"heads": 5, "x": 1}}, "unexpected keyword"),
        ({"learned": "LearnedSSMax"}, "damaged"),
        ({"name": "none such", "settings": {}}, "no normalizer is named 'none such'"),
        ({"name": "entmax", "settings": {"alpha": "x"}}, "damaged"),
        ({"name": "ssmax", "settings": {"s": {"tensor": [1.0, 2.0]}}}, "damaged"),
        ({"custom": "os.system"}, "not attnscope's own"),
        ({}, "damaged"),
        (5, "not attnscope's"),
    ],
)
def test_a_swap_makes_no_other_normalizers_than_the_known(
    swapped_folder: Path, tmp_path: Path, normalizer: Any, message: str
) -> None:
    """Fault 32: a name in a configuration is looked up among the normalizers, not among attributes."""
    folder = shutil.copytree(swapped_folder, tmp_path / "model")
    entries = json.loads((folder / "config.json").read_text())["attnscope_swap"]
    entries[0]["normalizer"] = normalizer
    change_json(folder / "config.json", attnscope_swap=entries)
    for load in (load_model, attnscope.swapping.load):
        with pytest.raises(ModelError, match=message):
            load(str(folder))


def test_any_change_to_the_record_of_a_swap_is_answered(swapped_folder: Path, tmp_path: Path) -> None:
    """Fault 32: mutations of the record alone, seeded."""
    import random

    folder = shutil.copytree(swapped_folder, tmp_path / "model")
    entries = json.dumps(json.loads((folder / "config.json").read_text())["attnscope_swap"]).encode()
    refused = 0
    for seed in range(60):
        try:
            changed = json.loads(mutate_json(entries, random.Random(seed)))
        except ValueError:
            continue
        change_json(folder / "config.json", attnscope_swap=changed)
        try:
            load_model(folder)
        except AttnscopeError:
            refused += 1
    assert refused > 20


def test_a_model_of_two_bits_a_weight_is_not_refused() -> None:
    """A limit never refuses a valid model: a billion weights in a quarter as many bytes, built as transformers does."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 257}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=16)
    with torch.device("meta"):
        weights = sum(each.numel() for each in transformers.LlamaForCausalLM(config).parameters())
        checkpoint = Checkpoint("model.gguf", ".", {}, 9 * 16 + 3, weights // 4)
        with _AllocationLimit(checkpoint):
            model = transformers.LlamaForCausalLM(config)
        with (
            pytest.raises(ModelError, match="far larger model"),
            _AllocationLimit(replace(checkpoint, size=weights // 100)),
        ):
            transformers.LlamaForCausalLM(config)
    assert sum(each.numel() for each in model.parameters()) == weights > 1e9
