"""A compiled loop: the error of a head's output as its keys are added one by one, the largest weight first."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._compiling import loop


@loop
def growing_errors(
    order: Any,  # (rows, keys), the row's keys with the largest weight first
    lengths: Any,  # (rows,)
    weights: Any,  # (rows, keys)
    values: Any,  # (keys, dims)
    context: Any,  # (rows, dims)
    sizes: Any,  # (sizes,), ascending
    out: Any,  # (rows, sizes)
) -> None:
    """|c - c_k| of the top k keys, in the proportions they had and the total unchanged, for each k of `sizes`."""
    dims = values.shape[1]
    partial = np.empty(dims)
    for r in range(len(order)):
        total = 0.0
        for j in range(lengths[r]):
            total += weights[r, order[r, j]]
        partial[:] = 0
        mass = 0.0
        done = 0
        for s in range(len(sizes)):
            while done < min(sizes[s], lengths[r]):
                key = order[r, done]
                weight = weights[r, key]
                mass += weight
                for d in range(dims):
                    partial[d] += weight * values[key, d]
                done += 1
            square = 0.0
            scale = total / mass if mass > 0 else 0.0
            for d in range(dims):
                gap = context[r, d] - scale * partial[d]
                square += gap * gap
            out[r, s] = np.sqrt(square) if done < lengths[r] else 0.0
