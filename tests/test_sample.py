"""The embedded model and text: small, real, and better than counting tokens."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
import torch

from attnscope.capture.models import Model, load_model
from attnscope.capture.text import read_text, tokenize

SAMPLE = Path(str(resources.files("attnscope") / "sample"))


@pytest.fixture(scope="module")
def sample() -> Model:
    return load_model()


def test_it_is_small_enough_for_the_package() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 9_000_000


def test_it_is_a_gpt2_of_the_promised_size(sample: Model) -> None:
    config = sample.module.config
    assert type(sample.module).__name__ == "GPT2LMHeadModel"
    assert (config.n_layer, config.n_head, config.n_positions) == (6, 6, 1024)
    assert 2_000 <= len(sample.tokenizer) <= 8_000
    assert sample.module.dtype == torch.float32
    stored = json.loads((SAMPLE / "config.json").read_text("utf-8"))["dtype"]
    assert stored == "float16"


def test_any_text_survives_the_tokenizer(sample: Model) -> None:
    text = "naïve Ωmega 東京 🐍\ttabs\n\n  and <|no|> surprises"
    assert sample.tokenizer.decode(tokenize(sample.tokenizer, read_text(None))[:50])
    assert sample.tokenizer.decode(sample.tokenizer(text)["input_ids"]) == text


def test_it_predicts_the_sample_text_far_better_than_token_frequencies(sample: Model) -> None:
    ids = torch.tensor(tokenize(sample.tokenizer, read_text(None)))
    assert len(ids) >= 16 * 1024
    window = ids[:1024]
    with torch.no_grad():
        loss = sample.module(input_ids=window[None], labels=window[None]).loss.item()
    # The text's own token frequencies: a unigram model that has seen the answer.
    frequency = torch.bincount(ids).double() / len(ids)
    unigram = -frequency[window].log().mean().item()
    assert loss < unigram - 1


def test_some_head_looks_behind_earlier_copies_of_the_token(sample: Model) -> None:
    ids = tokenize(sample.tokenizer, read_text(None))[:512]
    model = type(sample.module).from_pretrained(SAMPLE, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        weights = torch.cat(model(input_ids=torch.tensor([ids]), output_attentions=True).attentions)
    best, uniform = torch.zeros(weights.shape[:2]), 0.0
    for query, token in enumerate(ids):
        behind = [key + 1 for key in range(query) if ids[key] == token]
        best += weights[:, :, query, behind].sum(-1)
        uniform += len(behind) / (query + 1)
    assert best.max() > 3 * uniform


def test_the_card_states_what_the_folder_holds() -> None:
    import hashlib

    card = (SAMPLE / "README.md").read_text("utf-8")
    digest = hashlib.sha256((SAMPLE / "model.safetensors").read_bytes()).hexdigest()
    assert digest[:16] in card
