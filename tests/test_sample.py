"""The embedded model and text: small, real, and better than counting tokens."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from attnscope.capture.models import Model, load_model
from attnscope.capture.text import read_text, tokenize

SAMPLE = Path(str(resources.files("attnscope") / "sample"))


@pytest.fixture(scope="module")
def sample() -> Model:
    return load_model()


def test_it_is_small_enough_for_the_package() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 9_000_000


def test_it_is_a_llama_of_the_promised_size(sample: Model) -> None:
    config = sample.module.config
    assert type(sample.module).__name__ == "LlamaForCausalLM"
    assert (config.num_hidden_layers, config.num_attention_heads, config.max_position_embeddings) == (6, 6, 1024)
    assert 512 <= len(sample.tokenizer) <= 2048
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


def _eager(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention weights of all heads, (layers, heads, queries, keys), and the loss of each next token."""
    model = LlamaForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        output = model(input_ids=ids[None], output_attentions=True)
    losses = torch.nn.functional.cross_entropy(output.logits[0, :-1], ids[1:], reduction="none")
    return torch.cat(output.attentions), losses


def test_some_head_attends_to_the_previous_token() -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SAMPLE)
    ids = torch.tensor(tokenize(tokenizer, read_text(None))[4096:4608])
    weights, _ = _eager(ids)
    scores = [weights[:, :, query, query - 1] for query in range(1, len(ids))]
    assert torch.stack(scores).mean(0).max() >= 0.5


def test_an_induction_head_looks_up_what_followed_last_time() -> None:
    # Not the seed, nor the period, of the card.
    half = torch.randint(1, 1024, (200,), generator=torch.Generator().manual_seed(11))
    weights, losses = _eager(torch.cat([half, half]))
    scores = [weights[:, :, 200 + i, i + 1] for i in range(199)]
    assert torch.stack(scores).mean(0).max() >= 0.3
    first, second = losses[:199].mean(), losses[200:].mean()
    assert second < first - 1
    assert second < torch.tensor(1024.0).log() - 1  # better than chance, not only than a first copy guessed badly


def test_the_card_states_what_the_folder_holds() -> None:
    import hashlib

    card = (SAMPLE / "README.md").read_text("utf-8")
    digest = hashlib.sha256((SAMPLE / "model.safetensors").read_bytes()).hexdigest()
    assert digest[:16] in card
