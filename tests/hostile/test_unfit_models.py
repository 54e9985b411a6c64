"""Families whose positions or attention differ from what their configuration suggests, and options without effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from families import tiny_config, tiny_model
from models import build, byte_tokenizer

import attnscope
from attnscope.capture.models import load_model, plain_model
from attnscope.errors import InputError, ModelError
from attnscope.studies.compare.comparing import compare
from attnscope.studies.compare.guidelines import guidelines

ROBERTAS = [
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "mpnet",
    "data2vec-text",
    "esm",
    "ibert",
    "roberta-prelayernorm",
]


@pytest.mark.filterwarnings("ignore")  # of model files
@pytest.mark.parametrize("family", ROBERTAS)
def test_the_default_length_is_the_longest_that_runs(family: str, text: str) -> None:
    """Fault 29: positions start after the padding index; the oracle runs the model one token longer."""
    model = tiny_model(family)
    result = attnscope.scan(model, text, tokenizer=byte_tokenizer(special=True), top_n=[2])
    length = result.run["settings"]["length"]
    with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, length + 1), 7))


def test_positions_of_other_encoders_start_at_zero(text: str) -> None:
    result = attnscope.scan(build("bert"), text, tokenizer=byte_tokenizer(special=True), length=512, top_n=[2])
    assert result.run["settings"]["length"] == 512


@pytest.mark.parametrize("family", ["canine", "perceiver", "reformer"])
def test_families_without_attention_over_tokens_are_refused_by_name(family: str, text: str) -> None:
    config = tiny_config(family) if family != "reformer" else transformers.ReformerConfig(is_decoder=True)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    model.to_empty(device="cpu")
    with pytest.raises(ModelError, match=f"the family {family} has no softmax attention over the tokens"):
        attnscope.scan(model, text, tokenizer=byte_tokenizer())


def test_a_model_that_needs_more_than_tokens_is_refused(text: str) -> None:
    """The model's own complaint, in one line; attnscope's own errors stay as they are."""
    with pytest.raises(ModelError, match=r"cannot run .*\(xmod\): Input language unknown"):
        attnscope.scan(tiny_model("xmod"), text, tokenizer=byte_tokenizer(special=True), length=16, top_n=[2])

    def fail(step: Any) -> None:
        raise ZeroDivisionError("of a callback")

    with pytest.raises(ZeroDivisionError, match="of a callback"):
        attnscope.scan(None, length=16, top_n=[2], progress=fail)


OPTIONS: list[dict[str, Any]] = [
    {"dtype": "float16"},
    {"device": "cuda"},
    {"revision": "main"},
    {"device_map": "auto"},
    {"trust_remote_code": True},
]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: next(iter(option)))
def test_options_of_loading_are_refused_beside_a_loaded_model(option: dict[str, Any], text: str) -> None:
    name = next(iter(option))
    sample, module = load_model(None), build("gpt2")
    ids = torch.arange(9)[None]
    for arguments in (
        {"model": sample, "text": text},
        {"model": module, "text": text, "tokenizer": byte_tokenizer()},
        {"model": sample, "inputs": {"input_ids": ids}},
        {"model": module, "inputs": {"input_ids": ids}},
    ):
        with pytest.raises(InputError, match=f"{name} would be ignored"):
            attnscope.scan(**arguments, **option)


def test_a_tokenizer_beside_a_loaded_model_is_refused_where_it_would_be_ignored(text: str) -> None:
    sample = load_model(None)
    with pytest.raises(InputError, match="tokenizer would be ignored"):
        attnscope.scan(sample, text, tokenizer=byte_tokenizer())
    for verb in (compare, guidelines, attnscope.diagnose):
        with pytest.raises(InputError, match="dtype would be ignored"):
            verb(sample, text, dtype="bfloat16")
    assert plain_model(sample.module).family == sample.family
