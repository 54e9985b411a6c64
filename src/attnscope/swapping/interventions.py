"""Rules that replace the weights of single heads, and the mean outputs of heads.

Each rule keeps some of a row's visible keys (`swapping.key_rules`) and gives them the softmax of their logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from attnscope.capture.attention import unpadded
from attnscope.capture.huggingface import observed
from attnscope.capture.watching import WatchedForward
from attnscope.errors import InputError
from attnscope.normalizers import softmax
from attnscope.swapping.key_rules import KeyRule, first_visible, keep_near, keep_top
from attnscope.swapping.replacement import sites

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Bool, Float
    from torch import Tensor, nn

    from attnscope.capture.attention import AttentionCall

WeightRule = Callable[["Tensor", "Tensor"], "Tensor"]
"""A function of (logits, visible) to weights."""


def softmax_over(keys: KeyRule) -> WeightRule:
    """Softmax over the keys that a key rule keeps."""

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        return softmax(logits, keys(logits, visible, None))

    return rule


def first_key(
    logits: Float[Tensor, "*batch keys"], visible: Bool[Tensor, "*batch keys"]
) -> Float[Tensor, "*batch keys"]:
    """All weight on the first visible key.

    >>> logits, visible = torch.tensor([[1.0, 3.0, 2.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)
    >>> first_key(logits, visible)
    tensor([[1., 0., 0., 0.]])

    Parameters
    ----------
    logits : (..., keys)
        Logits of each row.
    visible : (..., keys)
        The keys that a row sees.

    Returns
    -------
    (..., keys)
        Weights.
    """
    return first_visible(visible).to(logits.dtype)


def sink_and_last(count: int) -> WeightRule:
    """Softmax over the first visible key and the last `count`.

    >>> logits, visible = torch.tensor([[1.0, 3.0, 2.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)
    >>> sink_and_last(1)(logits, visible)
    tensor([[0.7311, 0.0000, 0.0000, 0.2689]])

    Parameters
    ----------
    count
        How many of the last visible keys keep weight, from 1 up.

    Returns
    -------
    WeightRule
        A function of (logits, visible), for `intervene`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"sink_and_last takes a whole number of keys from 1 up; received {count!r}")
    return softmax_over(keep_near(count))


def top_share(share: float) -> WeightRule:
    """Softmax over the largest logits of a row.

    >>> logits, visible = torch.tensor([[1.0, 3.0, 2.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)
    >>> top_share(0.5)(logits, visible)
    tensor([[0.0000, 0.7311, 0.2689, 0.0000]])

    Parameters
    ----------
    share
        The share of the row's visible keys that keep weight, above 0 and at most 1; at least one key does.

    Returns
    -------
    WeightRule
        A function of (logits, visible), for `intervene`.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"top_share takes a share above 0 and at most 1; received {share!r}")
    return softmax_over(keep_top(share))


def mean_outputs(
    model: nn.Module, inputs: Iterable[dict[str, Tensor]]
) -> dict[tuple[int, int], Float[Tensor, " dims"]]:
    """Mean output of every (layer, head) over all rows of these inputs: vectors to intervene with.

    >>> model = attnscope.load_model().module  # any transformers model
    >>> means = mean_outputs(model, [{"input_ids": torch.arange(12)[None]}])
    >>> with attnscope.swapping.intervene(model, {(0, 1): means[0, 1]}):
    ...     logits = model(torch.arange(12)[None]).logits  # with head 1 of layer 0 replaced by its mean

    Rows of padding are left out.

    Parameters
    ----------
    model
        A loaded transformers model.
    inputs
        Batches, each as named arguments of the model.

    Returns
    -------
    dict[tuple[int, int], Tensor]
        Vectors of shape (dims,), one for each layer and head.
    """
    layer = {site.module: site.layer for site in sites(model)}
    totals: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    watched = WatchedForward(model)

    def add(call: AttentionCall) -> None:
        if not watched.active():
            return
        output, number = call.kernel_output()[0].double(), layer[call.module]
        complete = watched.complete(call)
        for item in range(call.batch):
            rows = unpadded(complete.only(item))
            totals[number] = totals.get(number, 0) + output[item, rows].sum(0)
            counts[number] = counts.get(number, 0) + len(rows)

    with torch.no_grad(), watched.followed(), observed(model, add):
        for batch in inputs:
            model(**batch)
    return {
        (number, head): totals[number][head] / counts[number]
        for number in totals
        for head in range(totals[number].shape[0])
    }
