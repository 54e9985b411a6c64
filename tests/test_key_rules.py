"""The keys that the rules of the states keep, against sorting and by hand."""

from __future__ import annotations

import pytest
import torch

from attnscope.diagnosis.observing import HeadOutputs, context_of
from attnscope.diagnosis.states import RULES, Rule, Thresholds
from attnscope.normalizers import softmax
from attnscope.swapping.changes import softmax_over
from attnscope.swapping.key_budget import first_and_near, first_visible, largest


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.keys], ids=lambda rule: rule.name)
def test_a_rule_gives_captured_rows_the_output_it_gives_inside_a_model(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(7)
    positions = (0, 5, 23, 96)
    logits = 3 * torch.randn(2, 4, 97, generator=generator, dtype=torch.float64)
    values = torch.randn(2, 97, 5, generator=generator, dtype=torch.float64)
    visible = (torch.arange(97) <= torch.tensor(positions)[:, None]).expand_as(logits)
    weights = softmax(logits, visible)
    assert rule.keys
    keys = rule.keys(Thresholds())
    inside = softmax_over(keys)(logits, visible) @ values
    torch.testing.assert_close(context_of(HeadOutputs.of(weights, values), keys(weights, visible, positions)), inside)


def test_a_row_keeps_its_first_key_and_the_nearest() -> None:
    causal = torch.arange(9) <= torch.tensor([[2], [8]])
    kept = first_and_near(causal, 3, (2, 8))
    assert [row.nonzero().flatten().tolist() for row in kept] == [[0, 1, 2], [0, 6, 7, 8]]
    both = first_and_near(torch.ones(1, 9, dtype=torch.bool), 4, (4,))
    assert both[0].nonzero().flatten().tolist() == [0, 2, 3, 4, 5]
    window = (torch.arange(9) <= 7) & (torch.arange(9) > 2)
    assert first_visible(window[None])[0].nonzero().flatten().tolist() == [3]


def test_ties_go_to_the_earlier_key_and_a_row_with_nan_stays_whole() -> None:
    logits = torch.tensor([[[1.0, 3.0, 2.0, 3.0, 2.0], [2.0, 2.0, 2.0, 2.0, 9.0], [0.0, torch.nan, 1.0, 2.0, 3.0]]])
    visible = torch.tensor([[[True] * 5, [False, True, True, True, False], [True] * 5]])
    kept = largest(logits, visible, torch.tensor([[[3], [2], [1]]]))
    assert [row.nonzero().flatten().tolist() for row in kept[0]] == [[1, 2, 3], [1, 2], [0, 1, 2, 3, 4]]


def test_the_largest_logits_are_those_of_a_sort() -> None:
    logits = torch.randn(3, 5, 97, generator=torch.Generator().manual_seed(8)).bfloat16()  # many ties
    visible = torch.arange(97) <= torch.tensor([0, 17, 40, 77, 96])[:, None]
    counts = torch.tensor([[1], [9], [23], [77], [97]])
    kept = largest(logits, visible.expand_as(logits), counts.expand(3, 5, 1))
    for head in range(3):
        for row, (seen, count) in enumerate(((1, 1), (18, 9), (41, 23), (78, 77), (97, 97))):
            values = logits[head, row].tolist()
            order = sorted(range(seen), key=lambda i: (-values[i], i))
            assert kept[head, row].nonzero().flatten().tolist() == sorted(order[:count])
