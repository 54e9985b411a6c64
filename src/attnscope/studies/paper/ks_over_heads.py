"""Exact two-sample Kolmogorov-Smirnov test for two samples of the same size.

The paper's critical N is defined by it. With n values in each sample, n D is an integer h, and the probability of
D >= h/n under equal continuous distributions counts lattice paths that leave a strip (Gnedenko and Korolyuk, 1951):

    p(h) = 2 sum_{k >= 1} (-1)^(k+1) C(2n, n - k h) / C(2n, n),    p(0) = 1.

Printed: "the smallest N for which the empirical and expected distance distributions are indistinguishable under a
two-sample Kolmogorov-Smirnov test (alpha = 0.01)", both over heads. A test that does not reject is no evidence of
equality, and more heads give more power; so the persistent N and the critical N of subsets of the heads are computed as
well.
"""

from __future__ import annotations

from functools import lru_cache
from math import lgamma
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope._numerics import loop

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@lru_cache(maxsize=64)
def exact_p_values(n: int) -> Float[np.ndarray, " n_plus_one"]:
    """The p-values p(h) for h = 0 ... n."""
    log_factorial = np.array([lgamma(k + 1) for k in range(2 * n + 1)])
    # C(2n, n - j) / C(2n, n) for j = 0 ... n, as n! n! / ((n-j)! (n+j)!)
    j = np.arange(n + 1)
    share = np.exp(2 * log_factorial[n] - log_factorial[n - j] - log_factorial[n + j])
    p = np.ones(n + 1)
    for h in range(1, n + 1):
        terms = share[h::h]
        p[h] = min(1.0, 2 * float(np.sum(terms[0::2]) - np.sum(terms[1::2])))
    return p


def largest_gaps(
    first: Float[np.ndarray, "tests n"], second: Float[np.ndarray, "tests n"]
) -> Int[np.ndarray, " tests"]:
    """h = n D of each test: the largest difference of the two empirical distribution functions, in units of 1/n."""
    gaps = np.empty(len(first), dtype=np.int64)
    _gaps(np.ascontiguousarray(first), np.ascontiguousarray(second), gaps)
    return gaps


def p_values(first: Float[np.ndarray, "tests n"], second: Float[np.ndarray, "tests n"]) -> Float[np.ndarray, " tests"]:
    """The exact p-value of each test."""
    return exact_p_values(first.shape[1])[largest_gaps(first, second)]


@loop
def _gaps(first: Any, second: Any, gaps: Any) -> None:
    n = first.shape[1]
    for test in range(first.shape[0]):
        a = np.sort(first[test])
        b = np.sort(second[test])
        i = 0
        j = 0
        widest = 0
        while i < n and j < n:
            value = min(a[i], b[j])
            # Skip all copies of the value in both samples before comparing: ties must not count as a difference.
            while i < n and a[i] <= value:
                i += 1
            while j < n and b[j] <= value:
                j += 1
            widest = max(widest, abs(i - j))
        gaps[test] = widest


LEVEL = 0.01  # of the text and the caption of Figure 2
LEVELS = (0.05, LEVEL)  # Algorithm 3 says 0.05


class Critical(NamedTuple):
    """The smallest N that is not rejected, and the smallest N from which none is rejected; None if there is none."""

    first: int | None
    persistent: int | None


def critical_n(p: Float[np.ndarray, " sets"], n: Float[np.ndarray, " sets"], level: float = LEVEL) -> Critical:
    """The critical N from the p-values of ascending N."""
    accepted = p >= level
    first = int(n[int(np.argmax(accepted))]) if accepted.any() else None
    rejected = np.flatnonzero(~accepted)
    after = int(rejected[-1]) + 1 if len(rejected) else 0
    return Critical(first, int(n[after]) if after < len(n) else None)


def subset_p_values(
    distance: Float[np.ndarray, "sets heads"],
    expected: Float[np.ndarray, "sets heads"],
    size: int,
    repeats: int,
    seed: int,
) -> list[Float[np.ndarray, " sets"]]:
    """The p-values of `repeats` random subsets of the heads, each of `size`."""
    random = np.random.default_rng(seed)
    subsets = [random.choice(distance.shape[1], size=size, replace=False) for _ in range(repeats)]
    return [p_values(distance[:, heads], expected[:, heads]) for heads in subsets]
