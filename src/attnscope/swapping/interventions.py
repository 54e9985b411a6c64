"""Rules to put in the place of a head's weights, and the mean of what heads put out.

Each rule keeps some of a row's visible keys and gives them the softmax of their logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope._threads import share_out
from attnscope.capture.huggingface import observed
from attnscope.capture.kernel_arguments import as_4d, visible_keys
from attnscope.errors import InputError
from attnscope.normalizers import softmax
from attnscope.swapping._kernels import mark_top
from attnscope.swapping.layout import sites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jaxtyping import Bool, Float, Int
    from torch import Tensor, nn

    from attnscope.capture.attention import AttentionCall


def first_key(
    logits: Float[Tensor, "*batch keys"], visible: Bool[Tensor, "*batch keys"]
) -> Float[Tensor, "*batch keys"]:
    """All weight on the first visible key."""
    first = visible & (visible.cumsum(-1) == 1)
    return first.to(logits.dtype)


def sink_and_last(count: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Softmax over the first visible key and the last `count`."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"sink_and_last takes a whole number of keys from 1 up; received {count!r}")

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        place = visible.cumsum(-1)
        length = place[..., -1:]
        return softmax(logits, visible & ((place == 1) | (place > length - count)))

    return rule


def top_share(share: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Softmax over the largest logits of a row, the given share of its visible keys, at least one."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"top_share takes a share above 0 and at most 1; received {share!r}")

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        kept = (visible.sum(-1, keepdim=True) * share).ceil().long().clamp(min=1)
        return softmax(logits, largest(logits, visible, kept))

    return rule


def largest(
    logits: Float[Tensor, "*batch keys"], visible: Bool[Tensor, "*batch keys"], count: Int[Tensor, "*batch 1"]
) -> Bool[Tensor, "*batch keys"]:
    """The visible keys with the `count` largest logits of each row, ties broken by position.

    Without sorting, which would take most of a model's run. A row that holds NaN keeps all its keys.
    """
    shown = logits.detach().masked_fill(~visible, -torch.inf)
    rows = shown.reshape(-1, shown.shape[-1]).to("cpu", torch.promote_types(shown.dtype, torch.float32))
    marks = torch.empty(rows.shape, dtype=torch.bool)
    counts = count.expand(*shown.shape[:-1], 1).reshape(-1).cpu()
    arrays = (rows.numpy(), counts.numpy(), marks.numpy())
    step = -(-len(rows) // torch.get_num_threads())
    share_out(lambda start: mark_top(*arrays, start, min(start + step, len(rows))), range(0, len(rows), step))
    return marks.view(shown.shape).to(visible.device)


def mean_outputs(
    model: nn.Module, inputs: Iterable[dict[str, Tensor]]
) -> dict[tuple[int, int], Float[Tensor, " dims"]]:
    """The mean of what every head puts out, over all rows of these inputs: vectors to intervene with.

    A row that sees nothing (padding) is left out.
    """
    layer = {site.module: site.layer for site in sites(model)}
    totals: dict[int, Tensor] = {}
    counts: dict[int, Tensor] = {}

    def add(call: AttentionCall) -> None:
        output = call.kernel_output()[0].double()
        if call.mask is None:
            seen = torch.ones(output.shape[0], output.shape[1], 1, 1, dtype=torch.bool, device=output.device)
        else:
            visible = visible_keys(as_4d(call.mask))
            seen = visible.any(-1).any(1)[..., None, None].expand(output.shape[0], output.shape[1], 1, 1)
        number = layer[call.module]
        totals[number] = totals.get(number, 0) + torch.where(seen, output, 0).sum((0, 1))
        counts[number] = counts.get(number, 0) + seen.sum()

    with torch.no_grad(), observed(model, add):
        for batch in inputs:
            model(**batch)
    return {
        (number, head): totals[number][head] / counts[number]
        for number in totals
        for head in range(totals[number].shape[0])
    }
