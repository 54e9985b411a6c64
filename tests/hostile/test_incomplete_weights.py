"""Weights that the files do not hold are never measured: refused by name, in every kind of file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import change_json, change_weights, write_gguf
from families import tiny_model
from models import VOCABULARY, build, byte_tokenizer
from safetensors.torch import load_file, save_file

import attnscope
from attnscope.capture.models import load_model
from attnscope.cli import run
from attnscope.errors import InputError, ModelError
from attnscope.studies.compare.comparing import compare

ATTENTION = "transformer.h.1.attn.c_attn.weight"


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model_folder, tmp_path / "model")


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    build("llama-gqa").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def renamed(tensors: dict[str, Any]) -> None:
    for name in list(tensors):
        tensors[f"other.{name}"] = tensors.pop(name)


def cut(tensors: dict[str, Any]) -> None:
    tensors[ATTENTION] = tensors[ATTENTION][:, :-1].contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda tensors: tensors.pop(ATTENTION), f"lacks {ATTENTION}", id="missing"),
        pytest.param(renamed, r"lacks .*transformer\.h\.0\.attn\.c_attn\.bias, .* and \d+ more", id="renamed"),
        pytest.param(cut, rf"wrong shape for {ATTENTION} \(35x104 instead of 35x105\)", id="misshapen"),
    ],
)
def test_a_tensor_that_is_not_there_is_refused_by_name(
    folder: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    """Fault 27."""
    change_weights(folder, change)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_the_command_line_names_it_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault 27."""
    change_weights(folder, lambda tensors: tensors.pop(ATTENTION))
    assert run(["scan", str(folder), "--length", "16", "--out", str(folder / "out")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert ATTENTION in lines[0]


def test_a_tensor_that_one_of_several_files_lost_is_refused(folder: Path) -> None:
    """Fault 27: sharded checkpoints."""
    (folder / "model.safetensors").unlink()
    build("gpt2").save_pretrained(folder, max_shard_size="40KB")
    files = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert load_model(folder).unused_weights == ()
    shard = folder / files[ATTENTION]
    save_file({name: t for name, t in load_file(shard).items() if name != ATTENTION}, shard, {"format": "pt"})
    with pytest.raises(ModelError, match=f"lacks {ATTENTION}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"without": "blk.1.attn_k.weight"}, r"lacks model\.layers\.1\.self_attn\.k_proj", id="missing"),
        pytest.param({"blocks": 3}, r"lacks model\.layers\.2", id="more blocks"),
        pytest.param({"blocks": 1}, "block_count = 1, but has tensors for 2 blocks", id="fewer blocks"),
    ],
)
def test_a_gguf_file_that_lacks_a_tensor_is_refused(tmp_path: Path, options: Any, message: str) -> None:
    """Fault 27."""
    with pytest.raises(ModelError, match=message):
        load_model(write_gguf(tmp_path / "model.gguf", **options))


def test_a_gguf_file_is_read_from_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers prefers a file of the same name in the current folder."""
    (tmp_path / "named").mkdir()
    (tmp_path / "current").mkdir()
    named = write_gguf(tmp_path / "named" / "model.gguf")
    (tmp_path / "current" / "model.gguf").write_bytes(b"another file")
    monkeypatch.chdir(tmp_path / "current")
    loaded = load_model(named).module.state_dict()
    assert torch.equal(
        loaded["model.embed_tokens.weight"], build("llama-gqa").state_dict()["model.embed_tokens.weight"]
    )


def test_weights_that_the_configuration_leaves_out_are_refused(llama_folder: Path, tmp_path: Path) -> None:
    """Fault 27: another model than the stored one would be measured."""
    biased = shutil.copytree(llama_folder, tmp_path / "biased")
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(84)}
    change_weights(biased, lambda tensors: tensors.update(bias))
    with pytest.raises(ModelError, match=r"leaves out: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_model(biased)
    shorter = shutil.copytree(llama_folder, tmp_path / "shorter")
    change_json(shorter / "config.json", num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"leaves out: model\.layers\.1"):
        load_model(shorter)


def test_buffers_of_older_versions_are_no_weights(llama_folder: Path, folder: Path, tmp_path: Path) -> None:
    old = shutil.copytree(llama_folder, tmp_path / "old")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(7)}
    change_weights(old, lambda tensors: tensors.update(buffer))
    assert load_model(old).family == "llama"
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8), "transformer.h.0.attn.masked_bias": torch.ones(1)}
    change_weights(folder, lambda tensors: tensors.update(masks))
    assert load_model(folder).family == "gpt2"


def test_weights_that_attention_does_not_need_are_listed(tmp_path: Path, text: str) -> None:
    """Fault 27: the head of a masked language model, and the pooler that it does not have."""
    sizes = {"hidden_size": 35, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 31}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=VOCABULARY, **sizes))
    model.save_pretrained(tmp_path)
    byte_tokenizer(special=True).save_pretrained(tmp_path)
    result = attnscope.scan(str(tmp_path), text, length=16, top_n=[2])
    listed = result.run["model"]["unused_weights"]
    assert "cls.predictions.transform.dense.weight" in listed
    assert "pooler.dense.weight" in listed
    assert not [name for name in listed if "layer." in name]
    with torch.no_grad():
        mine = load_model(tmp_path).module.encoder.layer[1].attention.self.query.weight
        assert torch.equal(mine, model.bert.encoder.layer[1].attention.self.query.weight)


def test_positions_that_are_computed_are_not_missing(tmp_path: Path) -> None:
    """Marian leaves the sines of its positions out of its files, and MarianModel says nothing of it."""
    model = tiny_model("marian")
    model.save_pretrained(tmp_path)
    byte_tokenizer(special=True).save_pretrained(tmp_path)
    assert "model.encoder.embed_positions.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path).module.encoder.embed_positions.weight
    position, size = 3, loaded.shape[1]
    angles = position / 10000 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    torch.testing.assert_close(loaded[position].double(), torch.cat([angles.sin(), angles.cos()]), rtol=1e-5, atol=1e-6)


def test_a_missing_language_model_head_is_refused_and_a_tied_one_is_not_missing(
    llama_folder: Path, tmp_path: Path
) -> None:
    """Fault 27."""
    folder = shutil.copytree(llama_folder, tmp_path / "headless")
    change_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"lacks lm_head\.weight"):
        load_model(folder)
    change_json(folder / "config.json", tie_word_embeddings=True)
    loaded = load_model(folder).module
    assert torch.equal(loaded.get_output_embeddings().weight, loaded.get_input_embeddings().weight)


def test_a_model_without_a_head_is_scanned_but_not_compared(tmp_path: Path, text: str) -> None:
    build("gpt2").transformer.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert attnscope.scan(str(tmp_path), text, length=16, top_n=[2]).rows.height
    with pytest.raises(InputError, match="GPT2Model without a language model head"):
        compare(str(tmp_path), text, lengths=[16], top_n=3)


def test_an_adapter_beside_the_weights_is_not_left_out_silently(folder: Path) -> None:
    """Fault 27: transformers ignores it where the package peft is not installed."""
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter"):
        load_model(folder)


def test_a_swap_that_lacks_a_learned_parameter_is_refused(tmp_path: Path) -> None:
    """Fault 27: swaps."""
    model = build("gpt2")
    attnscope.swap(model, attnscope.normalizers.LearnedSSMax)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    change_weights(tmp_path, lambda tensors: tensors.pop("transformer.h.1.attn.attnscope.rules.0.s"))
    for load in (load_model, attnscope.swapping.load):
        with pytest.raises(ModelError, match=r"no parameters of the normalizer in .*h\.1\.attn"):
            load(str(tmp_path))
    change_weights(
        tmp_path, lambda tensors: tensors.update({"transformer.h.1.attn.attnscope.rules.0.s": torch.ones(9)})
    )
    with pytest.raises(ModelError, match=r"records in .*h\.1\.attn is damaged: .*size mismatch"):
        load_model(tmp_path)
    change_weights(tmp_path, lambda tensors: tensors.pop(ATTENTION))
    with pytest.raises(ModelError, match=f"lacks {ATTENTION}"):
        attnscope.swapping.load(tmp_path)
