"""Lemma 1 and Corollary 1."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from attnscope.theory import vanishing

FLOAT = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=FLOAT)


@pytest.mark.parametrize("length", [2, 3, 17, 1009])
def test_sharp_lemma_1_is_attained_at_both_ends(length: int) -> None:
    low, high = 0.3, 2.1
    top = high / (high + (length - 1) * low)
    bottom = low / (low + (length - 1) * high)
    bounds = vanishing.weight_bounds(tensor(low), tensor(high), tensor(length))
    torch.testing.assert_close(bounds.upper, tensor(top), rtol=1e-12, atol=0)
    torch.testing.assert_close(bounds.lower, tensor(bottom), rtol=1e-12, atol=0)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=13), st.floats(0.2, 5))
@settings(max_examples=60, deadline=None)
def test_lemma_1_holds_for_any_logits_and_the_sharp_form_is_inside_the_printed(logits: list[float], t: float) -> None:
    values = [math.exp(z / t) for z in logits]
    reach = max(abs(z) for z in logits)
    ends = tensor(math.exp(-reach / t)), tensor(math.exp(reach / t)), tensor(len(logits))
    sharp, printed = vanishing.weight_bounds(*ends), vanishing.weight_bounds_printed(*ends)
    for value in values:
        alpha = value / sum(values)
        assert printed.lower <= sharp.lower * (1 + 1e-12)
        assert sharp.lower <= alpha * (1 + 1e-9)
        assert alpha <= sharp.upper * (1 + 1e-9)
        assert sharp.upper <= printed.upper * (1 + 1e-12)


def test_a_normalizer_that_is_not_positive_does_not_vanish() -> None:
    # F(l) = l^2 on (1, 0, ..., 0): weight 1 at every length, so the hypothesis F > 0 is needed.
    for length in (2, 11, 101):
        values = torch.zeros(length, dtype=FLOAT)
        values[0] = 1
        assert (values.square() / values.square().sum())[0] == 1


def test_corollary_1_with_the_key_of_the_token_is_false() -> None:
    # q = 1, k = (0, 10), T = 1: Delta_1 = 0 claims alpha_1 = 1/2.
    claimed = vanishing.softmax_weight_bounds_printed(tensor(0.0), tensor(1.0), tensor(2.0))
    actual = 1 / (1 + math.exp(10))
    assert claimed.lower == claimed.upper == 0.5
    assert actual == pytest.approx(4.54e-5, rel=1e-3)
    longest = vanishing.softmax_weight_bounds(tensor(10.0), tensor(1.0), tensor(2.0))
    assert longest.lower <= actual <= longest.upper


@given(st.lists(st.floats(-300, 300), min_size=2, max_size=11), st.floats(0.5, 4))
@settings(max_examples=60, deadline=None)
def test_the_logit_sandwich_holds(logits: list[float], t: float) -> None:
    bounds = vanishing.logit_sandwich(torch.tensor(logits, dtype=FLOAT), torch.tensor(t, dtype=FLOAT))
    weights = torch.softmax(torch.tensor(logits, dtype=FLOAT) / t, -1)
    assert (bounds.lower <= weights * (1 + 1e-9) + 1e-300).all()
    assert (weights <= bounds.upper * (1 + 1e-9) + 1e-300).all()


def test_the_logit_sandwich_is_exact_when_the_others_are_tied() -> None:
    logits = tensor(2.0, -1.0, -1.0, -1.0, -1.0)
    bounds = vanishing.logit_sandwich(logits, torch.tensor(0.7, dtype=FLOAT))
    weight = torch.softmax(logits / 0.7, -1)[0]
    torch.testing.assert_close(bounds.lower[0], weight, rtol=1e-12, atol=0)
    torch.testing.assert_close(bounds.upper[0], weight, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_the_required_gap_gives_the_weight(weight: float) -> None:
    length, t = 31, 0.5
    gap = vanishing.required_gap(tensor(weight), tensor(length), tensor(t))
    logits = torch.zeros(length, dtype=FLOAT)
    logits[0] = gap
    assert torch.softmax(logits / t, -1)[0] == pytest.approx(weight, rel=1e-12)
