"""What a mask hides and how logits are formed, against loops over single numbers."""

from __future__ import annotations

import math

import pytest
import torch

from attnscope.capture import attention
from attnscope.capture.attention import additive_mask, mask_block, rebuild_logits, visible_keys

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_is_visible_and_what_no_bias_can_be_is_hidden(dtype: torch.dtype) -> None:
    """Fault 30: numbers that people write by hand hide a key as the dtype's lowest does."""
    lowest = torch.finfo(dtype).min
    mask = torch.tensor([0.0, 3.5, -9e3, -1e4, -5e4, -math.inf, lowest, lowest / 2], dtype=dtype)
    assert visible_keys(mask).tolist() == [True, True, True, False, False, False, False, False]
    by_hand = torch.tensor([-1e5, -1e7, -1e9, -1e30], dtype=dtype)  # -inf in float16
    assert not visible_keys(by_hand).any()


def test_a_boolean_mask_is_true_where_a_key_is_visible() -> None:
    mask = torch.tensor([True, False])
    assert visible_keys(mask).tolist() == [True, False]
    assert additive_mask(mask, torch.bfloat16, hidden=-math.inf).tolist() == [0, -math.inf]


def test_a_float_mask_keeps_its_bias_on_visible_keys() -> None:
    mask = torch.tensor([0.0, -2.5, -1e9])
    for hidden in (0.0, -math.inf):
        added = additive_mask(mask, torch.float64, hidden)
        assert added.dtype == torch.float64
        assert added.tolist() == [0.0, -2.5, hidden]


@pytest.mark.parametrize(
    "shape", [(7,), (1,), (5, 7), (5, 1), (3, 1, 7), (2, 1, 1, 7), (2, 3, 5, 7), (2, 3, 5, 11)], ids=str
)
def test_a_block_of_a_mask_is_that_of_the_mask_broadcast_in_full(shape: tuple[int, ...]) -> None:
    mask = random(*shape)
    full = mask[..., :7].expand(2, 3, 5, 7)
    heads, rows = torch.tensor([2, 0]), torch.tensor([4, 1, 1])
    block = mask_block(mask, 7, items=slice(1, 2), heads=heads, rows=rows)
    assert torch.equal(block.expand(1, 2, 3, 7), full[1:2, heads][:, :, rows])
    assert torch.equal(mask_block(mask, 7).expand(2, 3, 5, 7), full)


@pytest.mark.parametrize("key_dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["item", "batch"])
def test_logits_are_those_of_a_loop_over_single_numbers(batch: tuple[int, ...], key_dtype: torch.dtype) -> None:
    """Scaling, softcap, position bias and mask in this order, four heads to two groups of keys."""
    heads, rows, keys, dims = 4, 3, 5, 7
    query, key = random(*batch, heads, rows, dims, seed=1).double(), random(*batch, 2, keys, dims, seed=2).to(key_dtype)
    bias, mask = random(heads, rows, keys, seed=3), random(1, keys, seed=4)
    found = rebuild_logits(query, key, scale=0.3, softcap=2.0, position_bias=bias, mask=mask)
    assert found.dtype == torch.float64
    assert found.shape == (*batch, heads, rows, keys)
    one_query, one_key, found = (x[-1] if batch else x for x in (query, key, found))
    for h in range(heads):
        for i in range(rows):
            for j in range(keys):
                product = sum(float(one_query[h, i, d]) * float(one_key[h // 2, j, d]) for d in range(dims))
                expected = 2.0 * math.tanh(0.3 * product / 2.0) + float(bias[h, i, j]) + float(mask[0, j])
                assert float(found[h, i, j]) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_keys_are_converted_a_few_groups_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor that an operation makes has the keys of two groups, and the last piece has one."""
    monkeypatch.setattr(attention, "CONVERTED_NUMBERS", 2 * 500 * 8)
    query, key = random(5, 2, 8).double(), random(5, 500, 8)

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
                self.size = max(self.size, result.numel())
            return result

    with Largest() as largest:
        found = rebuild_logits(query, key, scale=1.0)
    assert largest.size == 2 * 500 * 8
    torch.testing.assert_close(found, query @ key.double().mT, rtol=1e-12, atol=1e-12)
