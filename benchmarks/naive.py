"""A naive computation of the same columns, for comparison: all attention matrices at once, formulas taken literally.

This is what one would write without attnscope: the model runs with `attn_implementation="eager"` and
`output_attentions=True`, and every column is a vectorized expression over (queries, keys) or (queries, sets, keys) of
one head. It shares no code with `measure`, so the tests use it as an oracle. Value vectors of models like
GPT-2 and Llama only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ROWS = 8  # rows at a time, chosen for speed: the differences take rows x sets x keys x dims numbers


class Timed(NamedTuple):
    """Time of the naive computation."""

    seconds: float  # of all heads
    heads_timed: int  # all heads have the same shapes, so timing some of them is enough


def scan_all(module: Any, ids: Sequence[int], top_n: Sequence[int]) -> list[dict[str, Tensor]]:
    """Columns of all rows of every head: one dictionary per layer, of shapes (heads, rows) and (heads, rows, sets)."""
    results = []
    for weights, values in _captured(module, ids):
        parts = [head_columns(*head, top_n) for head in zip(weights.double(), values.double(), strict=True)]
        results.append({name: torch.stack([part[name] for part in parts]) for name in parts[0]})
    return results


def timed(module: Any, ids: Sequence[int], top_n: Sequence[int], limit: float) -> Timed:
    """Time `scan_all` one head at a time until `limit` seconds have passed, for at least one head."""
    start = time.perf_counter()
    captured = _captured(module, ids)
    begin = time.perf_counter()
    heads = [head for weights, values in captured for head in zip(weights, values, strict=True)]
    done = 0
    for weights, values in heads:
        head_columns(weights.double(), values.double(), top_n)
        done += 1
        if time.perf_counter() - start > limit:
            break
    return Timed(begin - start + (time.perf_counter() - begin) * len(heads) / done, done)


def _captured(module: Any, ids: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Weights (heads, rows, keys) and vectors (heads, keys, dims) of every layer."""
    before = module.config._attn_implementation
    caught: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: caught.append(out)) for block in _projections(module)]
    try:
        module.set_attn_implementation("eager")
        with torch.no_grad():
            inputs = torch.tensor([list(ids)])
            attentions = module.base_model(input_ids=inputs, use_cache=False, output_attentions=True).attentions
    finally:
        module.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    groups = getattr(module.config, "num_key_value_heads", None) or module.config.num_attention_heads
    found = []
    for weights, projected in zip(attentions, caught, strict=True):
        values = projected[0].chunk(3, -1)[2] if hasattr(module.base_model, "h") else projected[0]
        by_group = values.unflatten(-1, (groups, -1)).transpose(0, 1)
        found.append((weights[0], by_group.repeat_interleave(weights.shape[1] // groups, 0)))
    return found


def _projections(module: Any) -> list[Any]:
    """The modules that make the values: those of Llama, or those of GPT-2, which make queries and keys too."""
    names = (".v_proj", "attn.c_attn")
    return [part for name, part in module.named_modules() if name.endswith(names)]


def head_columns(weights: Tensor, vectors: Tensor, top_n: Sequence[int]) -> dict[str, Tensor]:
    """Columns of every row of one causal head: weights (rows, keys), vectors (keys, dims)."""
    keys = weights.shape[-1]
    visible = torch.ones(keys, keys, dtype=torch.bool).tril()
    units = torch.nn.functional.normalize(vectors, dim=-1)
    pairs = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    gaps = torch.cdist(units, units, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    nearest = gaps.masked_fill(~visible, torch.inf).amin(-1).cummin(0).values
    parts = []
    for first in range(0, keys, _ROWS):
        part = slice(first, first + _ROWS)
        w, seen = weights[part], visible[part]
        row = _row_columns(w, seen)
        row |= _set_columns(w, seen, vectors, units, pairs, nearest[part], top_n)
        parts.append(row)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _row_columns(w: Tensor, seen: Tensor) -> dict[str, Tensor]:
    length = seen.sum(-1)
    entropy = -torch.special.xlogy(w, w).sum(-1)
    # The power method on diag(w) - w w', from the two heaviest tokens.
    top = w.topk(min(2, w.shape[-1]), -1).indices
    direction = torch.zeros_like(w).scatter(-1, top[:, :1], 1).scatter(-1, top[:, 1:], -1)
    for _ in range(50):
        image = w * (direction - (w * direction).sum(-1, keepdim=True))
        norm = image.norm(dim=-1, keepdim=True)
        direction = image / norm.clamp_min(1e-300)
    largest = w.amax(-1)
    return {
        "length": length,
        "entropy": entropy,
        "entropy_ratio": entropy / length.log(),
        "max_weight": largest,
        "sink_weight": w[:, 0],
        "participation": 1 / w.square().sum(-1),
        "support": (w > 0).sum(-1),
        "weight_sum": w.sum(-1),
        "jacobian_norm": norm.squeeze(-1),
        "jacobian_bound": torch.where(largest <= 0.5, largest, 2 * largest * (1 - largest)),
    }


def _set_columns(
    w: Tensor, seen: Tensor, x: Tensor, u: Tensor, pairs: Tensor, delta: Tensor, top_n: Sequence[int]
) -> dict[str, Tensor]:
    order = w.masked_fill(~seen, -1).argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(-1)
    length = seen.sum(-1, keepdim=True).double()
    y, v = w.unsqueeze(-1) * x, w.unsqueeze(-1) * u
    mean = y.sum(-2)
    size = y.norm(dim=-1)
    columns: dict[str, list[Tensor]] = {}
    for n in top_n:
        chosen = (rank < n) & seen
        others = seen & ~chosen
        pick = chosen.unsqueeze(-1)
        s, t = (y * pick).sum(-2), (v * pick).sum(-2)
        mass = (w * chosen).sum(-1)
        left = length.squeeze(-1) - n
        p = n / (length - 1)
        far = (y - s.unsqueeze(-2)).norm(dim=-1)
        across = torch.stack([pairs[a][:, b].amax() if a.any() and b.any() else w.new_zeros(())
                              for a, b in zip(chosen, others, strict=True)])  # fmt: skip
        rest = mean.unsqueeze(-2) - y
        mu = (y - p.unsqueeze(-1) * rest).norm(dim=-1)
        squares = (size.square() * seen).sum(-1, keepdim=True) - size.square()
        scatter = squares - rest.square().sum(-1) / (length - 1)
        variance = n * (length - 1 - n) / ((length - 1) * (length - 2)) * scatter
        triangle = size + p * ((size * seen).sum(-1, keepdim=True) - size)
        upper = torch.minimum((mu.square() + variance.clamp_min(0)).sqrt(), triangle)
        printed = ((w + p).unsqueeze(-1) * x - mean.unsqueeze(-2)).norm(dim=-1)
        chance = left / length.squeeze(-1)
        apart = (v - t.unsqueeze(-2)).norm(dim=-1)
        radius = apart.masked_fill(~others, torch.inf).amin(-1)
        total, total2 = mass.unsqueeze(-1) - w, (w.square() * chosen).sum(-1, keepdim=True) - w.square()
        half = (delta.square() / 2).unsqueeze(-1)
        xi = (half * total2 + (1 - half) * total.square()).clamp_min(0).sqrt()
        heaviest = (w * chosen).topk(2, -1).values
        largest_other = torch.where(rank == 0, heaviest[:, 1:], heaviest[:, :1])
        least = (2 * largest_other - total).clamp_min(0)
        ball = radius.unsqueeze(-1)
        numbers = {
            "top_mass": mass,
            "distance": (far * others).sum(-1),
            "distance_bound_printed": (1 - mass) * across
            + (x.norm(dim=-1) * chosen).amax(-1) * (mass * left - (1 - mass)),
            "distance_lower": ((left + 1).unsqueeze(-1) * s - mean).norm(dim=-1),
            "distance_upper": (left * (far.square() * others).sum(-1)).sqrt(),
            "expected_printed": chance * (printed * seen).sum(-1),
            "expected_lower": chance * (mu * seen).sum(-1),
            "expected_upper": chance * torch.where(seen, upper, 0).sum(-1),
            "epsilon_printed": 0.5 * chance * (torch.where(seen, squares / mu, 0).sum(-1) * p.squeeze(-1)),
            "separability": ((apart < ball) & chosen).sum(-1) / n,
            "radius": radius,
            "delta": delta,
            "separability_lower_printed": 1 - (xi * chosen).sum(-1) / (radius * n),
            "separability_upper_printed": (torch.exp(-(ball - xi).square() / 16) * chosen).sum(-1) / n,
            "separability_lower": ((xi < ball) & chosen).sum(-1) / n,
            "separability_upper": ((least < ball) & chosen).sum(-1) / n,
        }
        for name, value in numbers.items():
            columns.setdefault(name, []).append(value)
    return {name: torch.stack(values, -1) for name, values in columns.items()}
