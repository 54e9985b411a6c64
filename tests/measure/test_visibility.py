"""What rows see: spans, lengths, and when the masks of two layers are the same."""

from __future__ import annotations

import torch

from attnscope.measure import Visibility

MASKS = torch.tensor([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
SPANS = [[0, 0, 0], [0, 1, 1], [1, 4, 2], [0, 5, 5]]


def test_masks_that_all_heads_share() -> None:
    seen = Visibility(MASKS.expand(3, -1, -1))
    assert seen.masks.shape == (4, 5)
    assert seen.mask_of.tolist() == [0, 1, 2, 3] * 3
    assert seen.spans.tolist() == SPANS
    assert seen.ends.tolist() == [[0, 1, 4, 5]]
    assert seen.length.tolist() == [[0, 1, 2, 5]] * 3


def test_masks_of_each_head() -> None:
    seen = Visibility(torch.stack([MASKS, MASKS.flip(0)]))
    assert seen.mask_of.tolist() == list(range(8))
    assert seen.spans.tolist() == SPANS + SPANS[::-1]
    assert seen.ends.tolist() == [[0, 1, 4, 5], [5, 4, 1, 0]]
    assert seen.length.tolist() == [[0, 1, 2, 5], [5, 2, 1, 0]]


def test_only_equal_masks_of_all_heads_are_taken_for_the_same() -> None:
    seen = Visibility(MASKS.expand(3, -1, -1))
    assert seen.of_all_heads(MASKS.clone().expand(3, -1, -1))
    assert not seen.of_all_heads(MASKS.expand(2, -1, -1))
    assert not seen.of_all_heads(MASKS.flip(0).expand(3, -1, -1))
    assert not seen.of_all_heads(MASKS[:, :4].expand(3, -1, -1))
    assert not seen.of_all_heads(MASKS.repeat(3, 1, 1))
    assert not Visibility(MASKS.repeat(3, 1, 1)).of_all_heads(MASKS.expand(3, -1, -1))
