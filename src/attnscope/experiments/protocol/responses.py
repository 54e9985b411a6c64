"""Algorithm 5: g(T, eps) of all rows of a head, summed over its rows.

The random direction is drawn over all L entries of a row. In the literal reading it is a unit vector over all of them,
part of which is wasted on hidden keys, whose weights stay zero; in the visible reading the entries of the visible keys
are scaled to length one. The worst direction is zero on hidden keys, so it is the same in both. A row of one key counts
as zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope._compiling import loop
from attnscope.experiments.perturbation import (
    Point,
    response,
    tempered_softmax,
    two_largest,
    worst_direction,
    worst_response,
)


class Responses(NamedTuple):
    """Sums over rows of g(T, eps)."""

    g: Any  # (literal and visible, readings of T, random and worst, temperatures, steps)


@loop
def add_responses(
    logits: Any,  # (rows, keys) of the model's softmax
    visible: Any,  # (rows, keys)
    random: Any,  # (rows, keys) normal numbers
    factors: Any,  # f of each reading of T: l = z / f
    temperatures: Any,
    steps: Any,
    out: Responses,
) -> None:
    """Add g(T, eps) of rows of one head to its sums. With l = z / f: g_l(T, eps) = f g_z(f T, f eps)."""
    keys = logits.shape[1]
    values, direction, worst = np.empty(keys), np.empty(keys), np.empty(keys)
    weights, moved = np.empty(keys), np.empty(keys)
    for r in range(logits.shape[0]):
        count = 0
        square = whole = 0.0
        for i in range(keys):
            whole += random[r, i] * random[r, i]
            if visible[r, i]:
                values[count], direction[count] = logits[r, i], random[r, i]
                square += random[r, i] * random[r, i]
                count += 1
        if count < 2:
            continue
        length = np.sqrt(square)
        for i in range(count):
            direction[i] /= length
        shorter = length / np.sqrt(whole)  # the visible part of a unit vector over all entries
        first, second = two_largest(values[:count])
        for f in range(factors.size):
            for t in range(temperatures.size):
                at = Point(values[:count], factors[f] * temperatures[t], weights[:count], first, second)
                tempered_softmax(at, direction, 0.0, at.weights)
                worst_direction(at, worst[:count])
                for e in range(steps.size):
                    step = factors[f] * steps[e]
                    literal = response(at, direction[:count], step * shorter, moved[:count])
                    visibly = response(at, direction[:count], step, moved[:count])
                    either = worst_response(at, worst[:count], step, moved[:count])
                    out.g[0, f, 0, t, e] += literal / steps[e]
                    out.g[1, f, 0, t, e] += visibly / steps[e]
                    out.g[0, f, 1, t, e] += either / steps[e]
                    out.g[1, f, 1, t, e] += either / steps[e]
