"""Algorithm 5: g(T, eps) of all rows of a head, summed over its rows.

The random direction is drawn over all L entries of a row. In the literal reading it is a unit vector over all of them,
part of which is wasted on hidden keys, whose weights stay zero; in the visible reading the entries of the visible keys
are scaled to length one. The worst direction is zero on hidden keys, so it is the same in both. A row of one key counts
as zero.

g(T, eps) = |softmax((l + eps D) / T) - softmax(l / T)|_2 / eps for a unit vector D. The paper does not say which D; a
random one gives |J|_F / sqrt L, up to sqrt L times less than the norm that the paper bounds. Both are computed: a
random direction, and the worst one, the top eigenvector of the Jacobian with either sign.

T can be read in two ways: "scaled" takes l = q.k / sqrt d, the input of the model's softmax, so that T = 1 is the
model itself; "raw" takes l = q.k as in eq. (2), so that T = sqrt d is the model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope._numerics import exp, helper, largest, loop

DIRECTIONS = ("random", "worst")
_STEPS = 80
_CONVERGED = 2e-15
_LARGEST_SHIFT = 300.0  # of an exponent


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


class Point(NamedTuple):
    """A row of logits at a temperature: where the weights are perturbed."""

    logits: Any  # (keys,)
    temperature: Any
    weights: Any  # (keys,) softmax(l / T)
    first: Any  # the key of the largest logit
    second: Any  # of the second largest


@helper
def two_largest(values: Any) -> tuple[int, int]:
    """The positions of the largest number of a row and of the second largest; the row has at least two."""
    first, second = (0, 1) if values[0] >= values[1] else (1, 0)
    for i in range(2, values.size):
        if values[i] > values[second]:
            second = i
            if values[i] > values[first]:
                first, second = i, first
    return first, second


@helper
def tempered_softmax(at: Point, direction: Any, step: float, weights: Any) -> None:
    """Write softmax((l + step D) / T) for a unit vector D into `weights`."""
    logits, inverse = at.logits, 1 / at.temperature
    for i in range(weights.size):
        weights[i] = logits[i] + step * direction[i]
    # An upper bound close to the largest exponent; computing the maximum itself would not vectorize.
    highest = logits[at.first] + abs(step)
    if 2 * abs(step) * inverse > _LARGEST_SHIFT:
        highest = largest(weights)
    total = 0.0
    for i in range(weights.size):
        value = exp((weights[i] - highest) * inverse)
        weights[i] = value
        total += value
    inverse = 1 / total
    for i in range(weights.size):
        weights[i] *= inverse


@helper
def response(at: Point, direction: Any, step: float, moved: Any) -> float:
    """|softmax((l + step D) / T) - softmax(l / T)|_2; `moved` is scratch memory.

    The change of the largest weight is minus the sum of the others, which cancels less.
    """
    tempered_softmax(at, direction, step, moved)
    weights = at.weights
    moved[at.first] = weights[at.first]
    total = squares = 0.0
    for i in range(weights.size):
        change = moved[i] - weights[i]
        total += change
        squares += change * change
    return np.sqrt(squares + total * total)


@helper
def worst_response(at: Point, direction: Any, step: float, moved: Any) -> float:
    """The larger response of the two signs of a direction."""
    return max(response(at, direction, step, moved), response(at, direction, -step, moved))


@helper
def worst_direction(at: Point, direction: Any) -> None:
    """Write the unit top eigenvector of diag(alpha) - alpha alpha^T, proportional to alpha_i / (alpha_i - lam).

    The eigenvalue lam is the root of sum_i alpha_i / (alpha_i - lam) = 0 between the two largest weights: Newton's
    method on the equation times (alpha_(1) - lam)(lam - alpha_(2)), which has no poles at the ends, guarded by halving
    (as in `attnscope._secular`). If the two largest weights are equal, lam equals them and the eigenvector is their
    difference.
    """
    weights = at.weights
    top, following = weights[at.first], weights[at.second]
    rest = 0.0
    for i in range(weights.size):
        rest += weights[i] if i != at.first else 0.0
    low, high = following, min(top, 2 * top * rest)
    if high <= low * (1 + 1e-13):
        direction[:] = 0.0
        direction[at.first] = np.sqrt(0.5)
        direction[at.second] = -np.sqrt(0.5)
        return
    low = max(low, top * rest)
    lam = 0.5 * (low + high)
    for _ in range(_STEPS):
        value = slope = 0.0
        for i in range(weights.size):
            inverse = 1 / (lam - weights[i])
            term = weights[i] * inverse
            value -= term
            slope += term * inverse
        low, high = (low, lam) if value > 0 else (lam, high)
        newton = lam - 1 / (slope / value - 1 / (top - lam) + 1 / (lam - following))
        settled = abs(newton - lam) <= _CONVERGED * lam
        lam = newton if settled or low < newton < high else 0.5 * (low + high)
        if settled or high - low <= _CONVERGED * high:
            break
    squares = 0.0
    for i in range(weights.size):
        gap = weights[i] - lam
        value = weights[i] / gap if gap != 0 else 0.0
        direction[i] = value
        squares += value * value
    inverse = 1 / np.sqrt(squares)
    for i in range(weights.size):
        direction[i] *= inverse
