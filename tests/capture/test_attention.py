"""Captured rows are the model's own attention, and watching changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import FAMILIES, VOCABULARY, build
from transformers.modeling_utils import AttentionInterface

from attnscope.capture.attention import AttentionCall
from attnscope.capture.huggingface import observed
from attnscope.errors import ModelError
from attnscope.measure.specification import Rows, softmax_weights

LENGTH = 47
POSITIONS = (0, 1, 12, 30, 46)


def token_ids(batch: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (batch, LENGTH), generator=torch.Generator().manual_seed(3))


def captured_weights(model: Any, ids: torch.Tensor, **inputs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def collect(call: AttentionCall) -> None:
        visible, logits = call.visible(POSITIONS), call.logits(POSITIONS)
        found.append(softmax_weights(Rows(0, POSITIONS, logits, visible, call.value[0].double(), call.sinks)))

    with torch.no_grad(), observed(model, collect):
        model(input_ids=ids, **inputs)
    return found


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rebuilt_weights_are_the_models_own(family: str, attention: str) -> None:
    if attention == "sdpa" and family in ("gemma2-softcap", "gpt-oss-sinks"):
        attention = "eager"  # these families refuse sdpa
    ids = token_ids()
    with torch.no_grad():
        own = build(family, "eager")(input_ids=ids, output_attentions=True).attentions
    rebuilt = captured_weights(build(family, attention), ids)
    assert len(rebuilt) == len(own)
    for mine, theirs in zip(rebuilt, own, strict=True):
        torch.testing.assert_close(mine, theirs[0][:, list(POSITIONS)].double(), rtol=2e-4, atol=2e-6)


def test_weights_are_far_from_uniform_in_the_test_models() -> None:
    weights = captured_weights(build("gpt2"), token_ids())[1][:, -1]
    assert weights.max() > 5 / LENGTH


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama-gqa", "mistral-window", "bert"])
def test_output_is_bit_identical(family: str, attention: str) -> None:
    model, ids = build(family, attention), token_ids()
    with torch.no_grad():
        alone = model(input_ids=ids)[0]
        calls: list[AttentionCall] = []
        with observed(model, calls.append):
            watched = model(input_ids=ids)[0]
    assert calls
    assert torch.equal(alone, watched)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "bert"])
def test_no_row_sees_a_later_key(family: str) -> None:
    attention = "eager" if family in ("gemma2-softcap", "gpt-oss-sinks") else "sdpa"
    for weights in captured_weights(build(family, attention), token_ids()):
        for row, position in enumerate(POSITIONS):
            assert (weights[:, row, position + 1 :] == 0).all()


def test_changing_a_later_token_changes_no_captured_row() -> None:
    model, ids = build("llama-gqa"), token_ids()
    changed = ids.clone()
    changed[0, -1] = (changed[0, -1] + 1) % VOCABULARY
    for before, after in zip(captured_weights(model, ids), captured_weights(model, changed), strict=True):
        torch.testing.assert_close(before[:, :-1], after[:, :-1], rtol=1e-6, atol=1e-9)


def test_padded_keys_are_not_visible() -> None:
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[0, :9] = 0
    for weights in captured_weights(build("llama-gqa"), token_ids(), attention_mask=mask):
        assert (weights[:, 2:, :9] == 0).all()
        torch.testing.assert_close(weights[:, 3:].sum(-1), torch.ones_like(weights[:, 3:].sum(-1)))


def registry() -> dict[str, Any]:
    return dict(AttentionInterface._global_mapping)


def test_registry_is_restored_after_an_error() -> None:
    """Fault 17."""
    before, model = registry(), build("gpt2")

    def fail(call: AttentionCall) -> None:
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"), observed(model, fail):
        model(input_ids=token_ids())
    assert registry() == before


def test_two_models_are_observed_apart() -> None:
    """Fault 17."""
    first, second, third = build("gpt2"), build("llama-gqa"), build("llama-mqa")
    seen: dict[str, int] = {"first": 0, "second": 0}

    def count(name: str) -> Any:
        def collect(call: AttentionCall) -> None:
            seen[name] += 1

        return collect

    before = registry()
    with torch.no_grad(), observed(first, count("first")):
        with observed(second, count("second")):
            for model in (first, second, third):
                model(input_ids=token_ids())
        second(input_ids=token_ids())
    assert seen == {"first": 3, "second": 2}
    assert registry() == before


def test_an_argument_nobody_knows_is_refused() -> None:
    """Fault 8."""
    q = torch.zeros(1, 1, 2, 3)
    with pytest.raises(ModelError, match="cu_seq_lens_q"):
        AttentionCall(torch.nn.Identity(), q, q, q, None, {"cu_seq_lens_q": torch.tensor([0, 2]), "dropout": 0.0})


def test_position_bias_is_added() -> None:
    """Fault 8."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 5, 3, generator=generator) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, generator=generator)
    call = AttentionCall(
        torch.nn.Identity(), q, k, v, None, {"position_bias": bias, "scaling": 0.7, "is_causal": False}
    )
    expected = (q[0] @ k[0].mT * 0.7 + bias[0])[:, [1, 4]].double()
    torch.testing.assert_close(call.logits((1, 4)), expected, rtol=1e-5, atol=1e-6)
    assert call.visible((1, 4)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("groups", "heads", "rows", "keys", "dims"),
    [(1, 1, 1, 1, 1), (2, 2, 5, 9, 3), (3, 9, 2, 8, 64), (4, 4, 13, 1021, 17), (2, 6, 100, 130, 80)],
)
def test_logits_are_the_products_of_queries_and_keys(
    dtype: torch.dtype, groups: int, heads: int, rows: int, keys: int, dims: int
) -> None:
    """However heads lie in memory, and for fewer keys than there are."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, keys, heads, dims, generator=generator).to(dtype).transpose(1, 2)
    side_by_side = torch.randn(1, keys, groups, dims, generator=generator).to(dtype).transpose(1, 2)
    positions = [(7 * row) % keys for row in range(rows)]
    for key in (side_by_side, side_by_side.contiguous(), side_by_side.mT.contiguous().mT):
        call = AttentionCall(torch.nn.Identity(), query, key, key, None, {"scaling": 0.5})
        of_heads = key[0].double().repeat_interleave(heads // groups, 0)
        expected = 0.5 * query[0][:, positions].double() @ of_heads.mT
        for some in {keys, 1 + keys // 2}:
            found = call.logits(positions, keys=some)
            assert torch.allclose(found, expected[..., :some], rtol=1e-12, atol=1e-12)
