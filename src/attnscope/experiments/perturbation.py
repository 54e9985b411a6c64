"""g(T, eps) of section 3.3: the change of the weights per step of length eps in the logits, at temperature T.

g(T, eps) = |softmax((l + eps D) / T) - softmax(l / T)|_2 / eps for a unit vector D. The paper does not say which D; a
random one gives |J|_F / sqrt L, up to sqrt L times less than the norm that the paper bounds. Both are computed: a
random direction, and the worst one, the top eigenvector of the Jacobian with either sign.

T can be read in two ways: "scaled" takes l = q.k / sqrt d, the input of the model's softmax, so that T = 1 is the
model itself; "raw" takes l = q.k as in eq. (2), so that T = sqrt d is the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._compiling import helper, loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

DIRECTIONS = ("random", "worst")


def responses(
    logits: Float[np.ndarray, "rows keys"], temperatures: Sequence[float], steps: Sequence[float], seed: int
) -> Float[np.ndarray, "rows temperatures steps directions"]:
    """g(T, eps) of each row for each of `DIRECTIONS`; every key is visible."""
    random = np.random.default_rng(seed).standard_normal(logits.shape)
    random /= np.linalg.norm(random, axis=-1, keepdims=True)
    g = np.empty((len(logits), len(temperatures), len(steps), len(DIRECTIONS)))
    _responses(np.ascontiguousarray(logits), random, np.array(temperatures), np.array(steps), g)
    return g


@loop
def _responses(logits: Any, random: Any, temperatures: Any, steps: Any, g: Any) -> None:
    keys = logits.shape[1]
    weights = np.empty(keys)
    moved = np.empty(keys)
    worst = np.empty(keys)
    for row in range(logits.shape[0]):
        for t in range(temperatures.size):
            _softmax(logits[row], random[row], 0.0, temperatures[t], weights)
            worst_direction(weights, worst)
            for e in range(steps.size):
                step = steps[e]
                for side in range(3):
                    direction = random[row] if side == 0 else worst
                    signed = -step if side == 2 else step
                    _softmax(logits[row], direction, signed, temperatures[t], moved)
                    change = _change(weights, moved) / step
                    if side == 2:
                        change = max(change, g[row, t, e, 1])
                    g[row, t, e, min(side, 1)] = change


@helper
def _softmax(logits: Any, direction: Any, step: Any, temperature: Any, weights: Any) -> None:
    highest = -np.inf
    for i in range(logits.size):
        weights[i] = logits[i] + step * direction[i]
        highest = max(highest, weights[i])
    total = 0.0
    for i in range(logits.size):
        weights[i] = np.exp((weights[i] - highest) / temperature)
        total += weights[i]
    for i in range(logits.size):
        weights[i] /= total


@helper
def _change(weights: Any, moved: Any) -> Any:
    """|moved - weights|_2; the change of the largest weight is minus the sum of the others, which cancels less."""
    top = np.argmax(weights)
    total = 0.0
    squares = 0.0
    for i in range(weights.size):
        if i != top:
            change = moved[i] - weights[i]
            total += change
            squares += change * change
    return np.sqrt(squares + total * total)


@helper
def worst_direction(weights: Any, direction: Any) -> None:
    """Write the unit top eigenvector of diag(alpha) - alpha alpha^T, proportional to alpha_i / (alpha_i - lam).

    The eigenvalue lam is the root of sum_i alpha_i / (alpha_i - lam) = 0 between the two largest weights, found by
    bisection. If the two largest weights are equal, lam equals them and the eigenvector is their difference.
    """
    first = np.argmax(weights)
    second = 0 if first else 1
    for i in range(weights.size):
        if i != first and weights[i] > weights[second]:
            second = i
    rest = 0.0
    for i in range(weights.size):
        if i != first:
            rest += weights[i]
    direction[:] = 0.0
    low = weights[second]
    high = min(weights[first], 2 * weights[first] * rest)
    if high <= low * (1 + 1e-13):
        direction[first] = np.sqrt(0.5)
        direction[second] = -np.sqrt(0.5)
        return
    low = max(low, weights[first] * rest)
    lam = low
    for _ in range(80):
        lam = 0.5 * (low + high)
        if lam <= low or lam >= high:
            break
        value = weights[first] / (weights[first] - lam)
        for i in range(weights.size):
            if i != first:
                value -= weights[i] / (lam - weights[i])
        if value > 0:
            high = lam
        else:
            low = lam
        if high - low <= 1e-14 * high:
            break
    squares = 0.0
    for i in range(weights.size):
        gap = weights[i] - lam
        direction[i] = weights[i] / gap if gap != 0 else 0.0
        squares += direction[i] * direction[i]
    for i in range(weights.size):
        direction[i] /= np.sqrt(squares)
