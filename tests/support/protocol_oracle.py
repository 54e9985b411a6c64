"""Algorithms 1 to 5 of the paper's appendix for one head, computed slowly from their definitions.

Decisions:

- One row at a time in float64, with loops that follow the sums. Nothing is shared with the package.
- A head is given by its `weights` (rows, keys), which keys each row sees (`visible`, boolean) and one vector per key.
  Invisible keys have weight zero. A shorter length L is the leading block: `weights[:L, :L]`, `vectors[:L]`.
- The `literal` reading takes I = {1, ..., L}: a row's tokens are all L keys, those it cannot see among them. The
  `visible` reading takes the keys that the row sees, and leaves out rows with N or fewer of them.
- The top set has the N largest weights, ties (and so all zeros) by position.
- A printed lower bound with sum xi = 0 is 1, also at r = 0.

Symbols: a_i a weight, x_i a vector, y_i = a_i x_i, I the top set of N tokens, s = sum of y_j over I,
xbar = sum of all y_j, L the row's number of tokens, p = N/(L-1).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Reading = Literal["literal", "visible"]


def distance_columns(weights: Array, visible: Mask, vectors: Array, n: int, reading: Reading) -> dict[str, float]:
    """Algorithms 1 and 2: the means over a head's rows that protocol_distance.parquet has for one N."""
    return _means([distance_row(a, x, n) for a, x in _rows(weights, visible, vectors, n, reading)])


def separability_columns(weights: Array, visible: Mask, vectors: Array, n: int, reading: Reading) -> dict[str, float]:
    """Algorithm 4: the means over a head's rows that protocol_separability.parquet has for one N.

    `separability_closed` is given in both readings; the table has it in the literal one only.
    """
    unit = np.array([x / np.linalg.norm(x) if np.linalg.norm(x) > 0 else x for x in np.asarray(vectors, float)])
    delta = min(float(np.linalg.norm(unit[i] - unit[j])) for i in range(len(unit)) for j in range(i))
    return _means([separability_row(a, x, n, delta) for a, x in _rows(weights, visible, unit, n, reading)])


def random_gradient(
    logits: Array, visible: Mask, normals: Array, temperature: float, step: float, reading: Reading
) -> float:
    """Algorithm 5: the mean of g(T, eps) over a head's rows, with each row of `normals` as direction of its row.

    A direction is scaled to unit length over the row's tokens: all L keys, or those that the row sees.
    """
    rows = []
    for z, seen, v in zip(np.asarray(logits, float), visible, np.asarray(normals, float), strict=True):
        unit = v / np.linalg.norm(v) if reading == "literal" else v / np.linalg.norm(v[seen])
        rows.append(_response(z[seen], unit[seen], temperature, step))
    return math.fsum(rows) / len(rows)


def worst_gradient(logits: Array, visible: Mask, temperature: float, step: float) -> float:
    """The same in the direction of the top eigenvector of each row's Jacobian, with the sign that gives more."""
    rows = []
    for z, seen in zip(np.asarray(logits, float), visible, strict=True):
        a = _softmax(z[seen] / temperature)
        top = np.linalg.eigh(np.diag(a) - np.outer(a, a))[1][:, -1]
        rows.append(max(_response(z[seen], sign * top, temperature, step) for sign in (1, -1)))
    return math.fsum(rows) / len(rows)


def critical_sizes(
    distance: Array, expected: Array, sizes: Sequence[int], significance: float
) -> tuple[int | None, int | None]:
    """Algorithm 3: the first N accepted by the KS test over heads, and the first from which on all are.

    `distance` and `expected` are row averages, (sizes, heads), for ascending N.
    """
    accepted = [
        stats.ks_2samp(d, e, method="exact").pvalue >= significance for d, e in zip(distance, expected, strict=True)
    ]
    first = next((n for n, yes in zip(sizes, accepted, strict=True) if yes), None)
    persistent = None
    for n, yes in zip(reversed(sizes), reversed(accepted), strict=True):
        if not yes:
            break
        persistent = n
    return first, persistent


def distance_row(a: Array, x: Array, n: int) -> dict[str, float]:
    """Distance, printed bound and the three expectations of one row's tokens, 1 <= n < L."""
    chosen, others = _top_set(a, n)
    y = a[:, None] * x
    s = y[chosen].sum(0)
    length = len(a)
    mass = math.fsum(a[chosen])
    farthest = max(float(np.linalg.norm(x[i] - x[j])) for i in others for j in chosen)
    longest = max(float(np.linalg.norm(x[j])) for j in chosen)
    xbar = y.sum(0)
    p = n / (length - 1)
    printed, lower, upper = [], [], []
    for i in range(length):
        rest = [j for j in range(length) if j != i]
        mu = float(np.linalg.norm(y[i] - p * y[rest].sum(0)))
        squares = math.fsum(float(y[j] @ y[j]) for j in rest)
        mean = y[rest].sum(0)
        spread = squares - float(mean @ mean) / (length - 1)
        share = n * (length - 1 - n) / ((length - 1) * (length - 2)) if length > 2 else 0.0
        triangle = float(np.linalg.norm(y[i])) + p * math.fsum(float(np.linalg.norm(y[j])) for j in rest)
        printed.append(float(np.linalg.norm((a[i] + p) * x[i] - xbar)))
        lower.append(mu)
        upper.append(min(math.sqrt(mu * mu + max(share * spread, 0.0)), triangle))
    left_out = 1 - n / length
    return {
        "distance": math.fsum(float(np.linalg.norm(y[i] - s)) for i in others),
        "bound_printed": (1 - mass) * farthest + longest * (mass * (length - n) - (1 - mass)),
        "expected_printed": left_out * math.fsum(printed),
        "expected_lower": left_out * math.fsum(lower),
        "expected_upper": left_out * math.fsum(upper),
    }


def separability_row(a: Array, x: Array, n: int, delta: float) -> dict[str, float]:
    """Ns/N in the open and the closed ball and both printed bounds of one row, for unit vectors x."""
    chosen, others = _top_set(a, n)
    y = a[:, None] * x
    s = y[chosen].sum(0)
    # |y - s|^2 without |s|^2, so that tokens with y = 0 are at exactly the same distance
    phi = [float(v @ (v - 2 * s)) for v in y]
    nearest = min(phi[j] for j in others)
    r = min(float(np.linalg.norm(s - y[j])) for j in others)
    xi = []
    for i in chosen:
        rest = [a[j] for j in chosen if j != i]
        squares, total = math.fsum(v * v for v in rest), math.fsum(rest)
        xi.append(math.sqrt(max(squares + (1 - delta**2 / 2) * (total * total - squares), 0.0)))
    spread = math.fsum(xi)
    penalty = 0.0 if spread == 0 else math.inf if r == 0 else spread / (r * n)
    return {
        "separability": sum(phi[i] < nearest for i in chosen) / n,
        "separability_closed": sum(phi[i] <= nearest for i in chosen) / n,
        "lower_printed": 1 - penalty,
        "upper_printed": math.fsum(math.exp(-((r - v) ** 2) / 16) for v in xi) / n,
    }


def _rows(weights: Array, visible: Mask, vectors: Array, n: int, reading: Reading) -> Iterator[tuple[Array, Array]]:
    """Weights and vectors of the tokens of each row that counts."""
    x = np.asarray(vectors, float)
    for a, seen in zip(np.asarray(weights, float), visible, strict=True):
        tokens = np.arange(len(a)) if reading == "literal" else np.flatnonzero(seen)
        if len(tokens) > n:
            yield np.where(seen, a, 0.0)[tokens], x[tokens]


def _top_set(a: Array, n: int) -> tuple[list[int], list[int]]:
    order = sorted(range(len(a)), key=lambda i: (-a[i], i))
    return sorted(order[:n]), sorted(order[n:])


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    if not rows:
        return {"rows": 0}
    means = {name: _mean([row[name] for row in rows]) for name in rows[0]}
    return {**means, "rows": len(rows)}


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else float(np.mean(values))


def _response(z: Array, direction: Array, temperature: float, step: float) -> float:
    moved = _softmax((z + step * direction) / temperature)
    return float(np.linalg.norm(moved - _softmax(z / temperature))) / step


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return e / e.sum()
