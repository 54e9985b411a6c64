"""The columns of a row of any length, straight from the definitions, in float64 numpy: for rows of real models.

Written from the statements alone, it shares nothing with the package nor with `oracle.py`, which is exact and slow.
Sums are numpy's, differences are formed directly. Columns that float64 may not decide have a margin: how near a
comparison with the radius is to a tie, or a denominator to zero, relative to the size of its terms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(logits: Array, sink: float | None = None) -> Array:
    """alpha_i = exp(l_i) over the sum of all, that of a logit without a key included."""
    top = max(float(logits.max()), -math.inf if sink is None else sink)
    grown = np.exp(logits - top)
    return grown / (grown.sum() + (0.0 if sink is None else math.exp(sink - top)))


def of_row(logits: Array, a: Array) -> dict[str, float | None]:
    """`rows.parquet`."""
    length, largest = len(a), float(a.max())
    positive = a[a > 0]
    entropy = float(-(positive * np.log(positive)).sum())
    rest = float(np.delete(a, int(a.argmax())).sum()) if length > 1 else 0.0
    lost = max(0.0, 1 - float(a.sum()))  # the weight of a sink
    return {
        "length": length,
        "entropy": entropy,
        "entropy_ratio": None if length == 1 else entropy / math.log(length),
        "max_weight": largest,
        "sink_weight": float(a[0]),
        "participation": 1 / float((a * a).sum()),
        "support": int((a > 0).sum()),
        "weight_sum": float(a.sum()),
        "logit_range": float(logits.max() - logits.min()),
        "jacobian_norm": float(np.abs(np.linalg.eigvalsh(np.diag(a) - np.outer(a, a))).max()),
        "jacobian_bound": largest if largest <= 0.5 else 2 * largest * (rest + lost),
    }


def of_set(a: Array, x: Array, n: int) -> tuple[dict[str, float], dict[str, float]]:
    """`topn.parquet` for one N, and the margins of its counts."""
    length = len(a)
    order = sorted(range(length), key=lambda i: (-a[i], i))
    inside, outside = np.array(sorted(order[:n])), np.array(sorted(order[n:]))
    y = a[:, None] * x
    s, whole = y[inside].sum(0), y.sum(0)
    mass, rest = float(a[inside].sum()), float(a[outside].sum())
    far = np.linalg.norm(y[outside] - s, axis=1)
    apart = max(float(np.linalg.norm(x[outside] - x[i], axis=1).max()) for i in inside)
    longest = float(np.linalg.norm(x[inside], axis=1).max())
    found = {
        "n": n,
        "top_mass": mass,
        "distance": float(far.sum()),
        "distance_bound_printed": (1 - mass) * apart + longest * (mass * (length - n) - (1 - mass)),
        "distance_lower": float(np.linalg.norm((y[outside] - s).sum(0))),
        "distance_upper": math.sqrt((length - n) * float((far * far).sum())),
    }
    expected, smallest = _expected(a, x, y, whole, n)
    counts, margins = _separability(a, x, inside, outside)
    margins["epsilon_printed"] = smallest
    if abs(mass + rest - 1) < 1e-9:
        found["distance_bound_printed"] = rest * apart + longest * (mass * (length - n) - rest)
    return found | expected | counts, margins


def _expected(a: Array, x: Array, y: Array, whole: Array, n: int) -> tuple[dict[str, float], float]:
    """Section 4 of the theory: the printed main term, E1, and the printed bound on epsilon with its margin."""
    length, others = len(a), len(a) - 1
    p, chance = n / others, 1 - n / length
    size = np.linalg.norm(y, axis=1)
    mean = np.linalg.norm((1 + p) * y - p * whole, axis=1)
    all_but = 1 - np.eye(length)  # leaves one out of a sum, instead of taking it away from the whole
    others_square, others_size = all_but @ size**2, all_but @ size
    variance = np.zeros(length)
    if others > 1:
        centers = all_but @ y / others
        spread = np.array([all_but[i] @ ((y - centers[i]) ** 2).sum(1) for i in range(length)])
        variance = n * (others - n) / (others * (others - 1)) * spread
    upper = np.minimum(np.sqrt(mean**2 + variance), size + p * others_size)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(others_square == 0, 0.0, others_square / mean)
    columns = {
        "expected_printed": chance * float(np.linalg.norm((a + p)[:, None] * x - whole, axis=1).sum()),
        "expected_lower": chance * float(mean.sum()),
        "expected_upper": chance * float(upper.sum()),
        "epsilon_printed": 0.5 * chance * p * float(shares.sum()),
    }
    terms = (size + p * others_size)[others_square > 0]
    return columns, float((mean[others_square > 0] / terms).min()) if len(terms) else math.inf


def _separability(a: Array, x: Array, inside: Any, outside: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Section 6: unit vectors, strictly inside the ball."""
    n = len(inside)
    lengths = np.linalg.norm(x, axis=1)
    unit = x / np.where(lengths > 0, lengths, 1)[:, None]
    y = a[:, None] * unit
    s = y[inside].sum(0)
    radius = float(np.linalg.norm(y[outside] - s, axis=1).min())
    own = np.linalg.norm(y[inside] - s, axis=1)
    delta = min(float(np.linalg.norm(unit[i + 1 :] - unit[i], axis=1).min()) for i in range(len(a) - 1))
    b = a[inside]
    xi, least = np.zeros(n), np.zeros(n)
    for i in range(n):
        left = np.delete(b, i)
        squares = float((left * left).sum())
        xi[i] = math.sqrt(max(0.0, squares + (1 - delta**2 / 2) * (float(left.sum()) ** 2 - squares)))
        sizes = np.delete(b * (lengths[inside] > 0), i)
        least[i] = max(0.0, 2 * float(sizes.max()) - float(sizes.sum())) if n > 1 else 0.0
    scale = float(np.linalg.norm(s)) + radius
    counts = {
        "separability": float((own < radius).mean()),
        "radius": radius,
        "delta": delta,
        "separability_lower_printed": 1 - _ratio(float(xi.sum()), radius * n),
        "separability_upper_printed": float(np.exp(-((radius - xi) ** 2) / 16).mean()),
        "separability_lower": float((xi < radius).mean()),
        "separability_upper": float((least < radius).mean()),
    }
    near = {"separability": own, "separability_lower": xi, "separability_upper": least}
    margins = {name: _ratio(float(np.abs(value - radius).min()), scale) for name, value in near.items()}
    return counts, margins


def _ratio(above: float, below: float) -> float:
    if below > 0:
        return above / below
    return 0.0 if above == 0 else math.inf
