"""The columns of attnscope's tables, computed slowly from their definitions.

Decisions:

- One row at a time, with loops that follow the sums of the mathematics. Nothing is shared with the package.
- Numbers are float64. Sums are `math.fsum` (correctly rounded) and norms `math.hypot` (no overflow, no
  underflow), so that only the weights, the products a_i x_i and their differences are rounded.
- Theorem 2 compares lengths with a radius strictly, and in a saturated row they differ by far less than
  float64 can tell. That section alone computes in decimals of 800 digits and rounds its results.
- A sum over "all but i" really leaves i out; one minus a weight is the sum of the other weights.
- Of two expressions that are equal in exact arithmetic the one that does not cancel is used.

Symbols: a_i a weight, x_i a vector, y_i = a_i x_i, I the top set of N tokens, s = sum of y_j over I,
xbar = sum of all y_j, L the row's length, p = N/(L-1).
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Exact = list[Decimal]

DIGITS = 800
TIE = Decimal(10) ** -780  # relative difference below which two exact numbers count as equal


def weights(logits: Vector) -> Vector:
    """Softmax of one row: a_i = exp(l_i - max l) / sum_j exp(l_j - max l)."""
    top = max(float(z) for z in logits)
    exps = [math.exp(float(z) - top) for z in logits]
    total = math.fsum(exps)
    return np.array([e / total for e in exps])


def row_columns(logits: Vector) -> dict[str, float | None]:
    """The columns of rows.parquet for one row of visible keys under softmax, its temperature in the logits.

    The entropy is sum_i a_i (ln Z + max l - l_i) with Z = sum_j exp(l_j - max l). It equals -sum a_i ln a_i
    and keeps the part of the largest weight when that weight rounds to one.
    """
    z = [float(v) for v in logits]
    length = len(z)
    a = [float(v) for v in weights(logits)]
    first = z.index(max(z))
    log_total = math.log1p(math.fsum(math.exp(z[j] - z[first]) for j in range(length) if j != first))
    entropy = math.fsum(a[i] * (log_total + (z[first] - z[i])) for i in range(length) if a[i] > 0)
    return {
        "length": length,
        "entropy": entropy,
        "entropy_ratio": None if length == 1 else entropy / math.log(length),
        "max_weight": max(a),
        "sink_weight": a[0],
        "participation": 1 / math.fsum(v * v for v in a),
        "support": sum(v > 0 for v in a),
        "weight_sum": math.fsum(a),
        "logit_range": max(z) - min(z),
        "jacobian_norm": _jacobian_norm(a),
        "jacobian_bound": _jacobian_bound(a),
    }


def topn_columns(weights: Vector, vectors: Matrix, n: int) -> dict[str, float]:
    """The columns of topn.parquet for one row and one N = n, with 1 <= n < L.

    Distances and expectations take the vectors as they are. The radius, delta and all of separability take
    them scaled to the unit sphere (M = 1), a zero vector staying zero.
    """
    a = [float(v) for v in weights]
    length = len(a)
    if not 1 <= n < length:
        raise ValueError(f"n must be at least 1 and below the row's length {length}, got {n}")
    x = np.asarray(vectors, dtype=np.float64)
    chosen, others = top_set(a, n)
    return {
        "n": n,
        "top_mass": math.fsum(a[i] for i in chosen),
        **_distance_columns(a, x, chosen, others),
        **_expected_columns(a, x, n),
        **_separability_columns(a, x, chosen, others),
    }


def expected_exhaustive(weights: Vector, vectors: Matrix, n: int) -> float:
    """E of the distance (eq. 7) over a uniform N-subset, by visiting every subset; meant for L <= 10."""
    y = _scaled([float(v) for v in weights], np.asarray(vectors, dtype=np.float64))
    length = len(y)
    distances = []
    for chosen in combinations(range(length), n):
        s = _vector_sum(y, chosen)
        distances.append(math.fsum(_norm(y[i] - s) for i in range(length) if i not in chosen))
    return math.fsum(distances) / len(distances)


def top_set(a: Sequence[float], n: int) -> tuple[list[int], list[int]]:
    """Positions of the n largest weights (ties: the earlier position first), and all other positions."""
    order = sorted(range(len(a)), key=lambda i: (-a[i], i))
    return sorted(order[:n]), sorted(order[n:])


def undecided(weights: Vector, vectors: Matrix, n: int, tolerance: float = 1e-12) -> set[str]:
    """Names of the separability columns that float64 arithmetic may count differently.

    Such a column has a comparison with the radius nearer to a tie than `tolerance` times the size of the
    terms compared. For `separability` these are the terms of the better of two ways: the distances, or
    y.(y - 2s), which is the squared distance without ||s||^2. Two tokens with the very same weight and
    vector, or two with y = 0, tie by definition and leave the column decided.
    """
    a = [float(v) for v in weights]
    x = np.asarray(vectors, dtype=np.float64)
    chosen, others = top_set(a, n)
    found = set()
    with localcontext(prec=DIGITS):
        ball = _Ball(a, x, chosen, others)
        limit = Decimal(tolerance)
        context = _length(ball.s)
        size = [_length(v) for v in ball.y]
        far = [_between(v, ball.s) for v in ball.y]
        nearest = [j for j in others if far[j] <= ball.radius * (1 + limit)]
        for i in chosen:
            for j in nearest:
                same = (a[i] == a[j] and np.array_equal(x[i], x[j])) or size[i] == size[j] == 0
                direct = max(far[k] * (size[k] + context) for k in (i, j))
                expanded = max(size[k] * (size[k] + context) for k in (i, j))
                if not same and abs(far[i] ** 2 - far[j] ** 2) <= limit * min(direct, expanded):
                    found.add("separability")
            for name, value in (("separability_lower", ball.xi(i)), ("separability_upper", ball.least(i))):
                if value > 0 and abs(value - ball.radius) <= limit * (value + ball.radius + context):
                    found.add(name)
    return found


# Rows


def _jacobian_norm(a: list[float]) -> float:
    """Largest singular value of J = diag(a) - a a^T (theory, section 8), built entry by entry.

    The diagonal a_i (1 - a_i) takes 1 - a_i as the sum of the other weights.
    """
    length = len(a)
    jacobian = np.zeros((length, length))
    for i in range(length):
        for j in range(length):
            jacobian[i, j] = a[i] * _sum_without(a, i) if i == j else -a[i] * a[j]
    return float(np.linalg.svd(jacobian, compute_uv=False)[0])


def _jacobian_bound(a: list[float]) -> float:
    """h(max a): h(u) = u for u <= 1/2, and 2u(1-u) above (theory, section 8, J1)."""
    top = a.index(max(a))
    return a[top] if a[top] <= 0.5 else 2 * a[top] * _sum_without(a, top)


# Distance: Theorem 1(1) and theory, section 3


def _distance_columns(a: list[float], x: Matrix, chosen: list[int], others: list[int]) -> dict[str, float]:
    """Eq. 7 and its bounds.

    - distance: sum over i not in I of ||y_i - s||.
    - printed, Theorem 1(1): (1 - abar) d1 + max_I ||x_j|| (abar (L-N) - (1 - abar)), with d1 the largest
      distance between a selected and another vector, and 1 - abar the sum of the other weights.
    - lower (B4): ||(L-N+1) s - xbar||, which is the norm of the sum over i not in I of (y_i - s).
    - upper (B3): sqrt((L-N) D2), D2 being the sum over i not in I of ||y_i - s||^2.
    """
    y = _scaled(a, x)
    s = _vector_sum(y, chosen)
    differences = np.array([y[i] - s for i in others])
    abar = math.fsum(a[i] for i in chosen)
    rest = math.fsum(a[i] for i in others)
    d1 = max(_norm(x[i] - x[j]) for i in others for j in chosen)
    largest = max(_norm(x[j]) for j in chosen)
    return {
        "distance": math.fsum(_norm(v) for v in differences),
        "distance_bound_printed": rest * d1 + largest * (abar * len(others) - rest),
        "distance_lower": _norm(_vector_sum(differences, range(len(others)))),
        "distance_upper": math.sqrt(len(others)) * _norm(differences),
    }


# Expectation: Theorem 1(2) and theory, section 4


def _expected_columns(a: list[float], x: Matrix, n: int) -> dict[str, float]:
    """The expectation of the distance over a uniform N-subset.

    - printed main term: (L-N)/L sum_i ||(a_i + N/(L-1)) x_i - xbar||.
    - lower (E1, left): (1 - N/L) sum_i ||mu_i||, mu_i = y_i - p sum_{j != i} y_j.
    - upper (E1, right): (1 - N/L) sum_i min(sqrt(||mu_i||^2 + V_i), ||y_i|| + p sum_{j != i} ||y_j||).
    - printed bound on epsilon: (1/2)(1 - N/L) sum_i p sum_{j != i} ||y_j||^2 / ||mu_i||; 0/0 counts as 0.
    """
    length = len(a)
    y = _scaled(a, x)
    norms = [_norm(v) for v in y]
    xbar = _vector_sum(y, range(length))
    share = (length - n) / length
    p = n / (length - 1)
    printed, lower, upper, epsilon = [], [], [], []
    for i in range(length):
        rest = [j for j in range(length) if j != i]
        rest_sum = _vector_sum(y, rest)
        # Both products are scaled by L-1, so that a mean that vanishes does so exactly.
        mean = _norm((length - 1) * y[i] - n * rest_sum) / (length - 1)
        spread = _spread(y, rest, rest_sum, n)
        triangle = norms[i] + p * math.fsum(norms[j] for j in rest)
        printed.append(_norm((a[i] + p) * x[i] - xbar))
        lower.append(mean)
        upper.append(min(math.hypot(mean, spread), triangle))
        epsilon.append(_ratio(p * math.fsum(norms[j] ** 2 for j in rest), mean))
    return {
        "expected_printed": share * math.fsum(printed),
        "expected_lower": share * math.fsum(lower),
        "expected_upper": share * math.fsum(upper),
        "epsilon_printed": 0.5 * share * math.fsum(epsilon),
    }


def _spread(y: Matrix, rest: list[int], rest_sum: Vector, n: int) -> float:
    """sqrt(V_i): V_i = N(n-N)/(n(n-1)) sum_{j != i} ||y_j - mean||^2 over the n = L-1 other tokens.

    The sum of squares about the mean equals sum_{j != i} ||y_j||^2 - ||xbar - y_i||^2 / n. With N = n the
    subset is all of them and nothing varies; that covers L = 2.
    """
    count = len(rest)
    if n == count:
        return 0.0
    mean = rest_sum / count
    about = np.array([y[j] - mean for j in rest])
    return math.sqrt(n * (count - n) / (count * (count - 1))) * _norm(about)


# Separability: Theorem 2 and theory, section 6


def _separability_columns(a: list[float], x: Matrix, chosen: list[int], others: list[int]) -> dict[str, float]:
    """Eq. 10 with the strict ball, eqs. 11 and 12 as printed, and T2a, for vectors on the unit sphere.

    - separability: share of I with ||y_i - s|| < r.
    - printed (eq. 11): 1 - (1/(rN)) sum xi_i and (1/N) sum exp(-(r - xi_i)^2 / 16), neither clipped.
      At r = 0 the former is -inf if some xi_i > 0, and 1 if all are 0.
    - deterministic (T2a, made strict): i is inside for sure if xi_i < r, and outside for sure unless the
      least norm that its W_i can have is below r.
    """
    n = len(chosen)
    with localcontext(prec=DIGITS):
        ball = _Ball(a, x, chosen, others)
        xis = [ball.xi(i) for i in chosen]
        exponents = [float(-((ball.radius - xi) ** 2) / 16) for xi in xis]
        if ball.radius > 0:  # noqa: SIM108
            lower_printed = float(1 - sum(xis) / (ball.radius * n))
        else:
            lower_printed = -math.inf if any(xis) else 1.0
        return {
            "separability": sum(_below(_between(ball.y[i], ball.s), ball.radius) for i in chosen) / n,
            "radius": float(ball.radius),
            "delta": float(ball.delta),
            "separability_lower_printed": lower_printed,
            "separability_upper_printed": math.fsum(math.exp(v) for v in exponents) / n,
            "separability_lower": sum(_below(xi, ball.radius) for xi in xis) / n,
            "separability_upper": sum(_below(ball.least(i), ball.radius) for i in chosen) / n,
        }


class _Ball:
    """The quantities of Theorem 2 for one row and one top set, in exact numbers, with M = 1.

    - radius r: min over j not in I of ||s - y_j|| (section 3.2 of the paper).
    - delta (A2): the least distance between two of the row's vectors.
    """

    def __init__(self, a: list[float], x: Matrix, chosen: list[int], others: list[int]) -> None:
        self.a = [Decimal(v) for v in a]
        self.x = [_on_sphere(v) for v in x.tolist()]
        self.chosen = chosen
        self.y = [[weight * c for c in v] for weight, v in zip(self.a, self.x, strict=True)]
        self.s = [sum((self.y[j][c] for j in chosen), Decimal(0)) for c in range(x.shape[1])]
        self.radius = min(_between(self.s, self.y[j]) for j in others)
        self.delta = self._delta()

    def _delta(self) -> Decimal:
        """Float64 finds the candidates for the closest pair, exact numbers choose among them."""
        x = np.array([[float(c) for c in v] for v in self.x])
        rough = {(i, j): _norm(x[i] - x[j]) for i in range(len(x)) for j in range(i)}
        limit = min(rough.values()) + 1e-12
        return min(_between(self.x[i], self.x[j]) for (i, j), gap in rough.items() if gap <= limit)

    def xi(self, i: int) -> Decimal:
        """Eq. 12 over I: xi_i^2 = sum_j a_j^2 + (1 - delta^2/2) sum_{j != k} a_j a_k, j and k not i.

        The double sum over ordered pairs is twice the sum over k of a_k times the a_j before it.
        """
        squares = pairs = before = Decimal(0)
        for k in self.chosen:
            if k != i:
                squares += self.a[k] * self.a[k]
                pairs += 2 * self.a[k] * before
                before += self.a[k]
        return max(squares + (1 - self.delta * self.delta / 2) * pairs, Decimal(0)).sqrt()

    def least(self, i: int) -> Decimal:
        """T2a, lower side: max(0, 2 m_i - A_i), the largest and the sum of the other ||y_j|| in I.

        On the sphere ||y_j|| = a_j; a zero vector counts with 0, as the triangle inequality asks.
        """
        sizes = [self.a[j] if any(self.x[j]) else Decimal(0) for j in self.chosen if j != i]
        return max(2 * max(sizes) - sum(sizes), Decimal(0)) if sizes else Decimal(0)


def _on_sphere(v: list[float]) -> Exact:
    """The vector divided by its norm; a zero vector stays zero."""
    exact = [Decimal(c) for c in v]
    length = _length(exact)
    return [c / length for c in exact] if length else exact


def _length(v: Exact) -> Decimal:
    return sum((c * c for c in v), Decimal(0)).sqrt()


def _between(u: Exact, v: Exact) -> Decimal:
    """||u - v||, zero if the difference is only what the last digits left over."""
    distance = _length([b - c for b, c in zip(u, v, strict=True)])
    return Decimal(0) if distance <= TIE * max(map(abs, u + v)) else distance


def _below(a: Decimal, b: Decimal) -> bool:
    """a < b, not counting a tie."""
    return b - a > TIE * b


# Arithmetic


def _scaled(a: Sequence[float], x: Matrix) -> Matrix:
    """y_i = a_i x_i."""
    return np.array([a[i] * x[i] for i in range(len(a))])


def _norm(v: NDArray[np.float64]) -> float:
    """Euclidean norm of a vector, Frobenius norm of a matrix."""
    return math.hypot(*v.ravel().tolist())


def _vector_sum(y: Matrix, indices: Iterable[int]) -> Vector:
    """Sum of the named rows of y, each coordinate correctly rounded."""
    picked = y[list(indices)]
    return np.array([math.fsum(column) for column in picked.T.tolist()])


def _sum_without(a: list[float], i: int) -> float:
    return math.fsum(a[:i] + a[i + 1 :])


def _ratio(numerator: float, denominator: float) -> float:
    """A quotient of nonnegative numbers with 0/0 = 0 and c/0 = +inf."""
    if denominator > 0:
        return numerator / denominator
    return 0.0 if numerator == 0 else math.inf
