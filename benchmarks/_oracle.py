"""Weights of every benchmarked normalizer from its definition, with numpy, float64 and bisection.

Shares no code with `attnscope.normalizers`, so that an error there cannot go unnoticed. Slow by design.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float64]]
_HALVINGS = 200  # the interval shrinks to neighboring floats long before


def softmax(z: Rows, sink: float = -math.inf) -> Rows:
    """exp(z) / (exp(sink) + sum exp(z)) of each row."""
    top = np.maximum(z.max(-1, keepdims=True), sink)
    e = np.exp(z - top)
    return np.asarray(e / (e.sum(-1, keepdims=True) + np.exp(sink - top)))


def entmax(z: Rows, alpha: float) -> Rows:
    """max((alpha-1) z - tau, 0)^(1/(alpha-1)), tau bisected between max - 1 and max."""
    x = (alpha - 1) * (z - z.max(-1, keepdims=True))
    power = 1 / (alpha - 1)
    low, high = np.full((len(z), 1), -1.0), np.zeros((len(z), 1))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = (np.maximum(x - middle, 0) ** power).sum(-1, keepdims=True) >= 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.maximum(x - low, 0) ** power)


def topk(z: Rows, k: int) -> Rows:
    """Softmax over the first k of the row in stable descending order."""
    w = np.zeros_like(z)
    for row, target in zip(z, w, strict=True):
        chosen = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        target[chosen] = softmax(row[None, chosen])[0]
    return w


def adaptive_temperature(z: Rows) -> Rows:
    """softmax(beta z), beta the published polynomial of the entropy."""
    p = softmax(z)
    h = -(p * np.log(np.where(p > 0, p, 1))).sum(-1, keepdims=True)
    beta = np.where(h > 0.5, np.maximum(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h), 1), 1)
    return softmax(beta * z)


def sa_softmax(z: Rows) -> Rows:
    """(z - lo) / (hi - lo) softmax(z), the range widened to hold 0."""
    low = np.minimum(z.min(-1, keepdims=True), 0)
    high = np.maximum(z.max(-1, keepdims=True), 0)
    return np.asarray((z - low) / (high - low) * softmax(z))


def _log_n(z: Rows) -> float:
    return math.log(z.shape[-1])


def lipmix(z: Rows) -> Rows:
    """0.9 sparsemax(theta z) + 0.1 / n, theta the 4-norm minimum of 2 and n^0.15 / 2."""
    n = z.shape[-1]
    return np.asarray(0.9 * entmax((2.0**-4 + (n**0.15 / 2) ** -4) ** -0.25 * z, 2.0) + 0.1 / n)


def _capped(z: Rows) -> float:
    """lipmax's scale at its defaults, K = 2 and kappa = 1/4: the 4-norm minimum of K and kappa ln n."""
    return 0.0 if z.shape[-1] == 1 else (2.0**-4 + (_log_n(z) / 4) ** -4) ** -0.25


# normalizer of the benchmark -> weights of float64 rows
ORACLES: dict[str, Callable[[Rows], Rows]] = {
    "softmax": softmax,
    "ssmax": lambda z: softmax(0.43 * _log_n(z) * z),
    "power_softmax": lambda z: softmax(z.shape[-1] ** 0.1 * z),
    "logn:n_train=512": lambda z: softmax(max(1.0, _log_n(z) / math.log(512)) * z),
    "softmax1": lambda z: softmax(z, 0.0),
    "sink_softmax:sink=0.5": lambda z: softmax(z, 0.5),
    "sigmoid": lambda z: np.asarray(1 / (1 + z.shape[-1] * np.exp(-z))),
    "topk:k=64": lambda z: topk(z, 64),
    "sparsemax": lambda z: entmax(z, 2.0),
    "entmax15": lambda z: entmax(z, 1.5),
    "entmax:alpha=1.2": lambda z: entmax(z, 1.2),
    "entmax:alpha=1.6": lambda z: entmax(z, 1.6),
    "entmax:alpha=1.9": lambda z: entmax(z, 1.9),
    "lipmax": lambda z: entmax(_capped(z) * z, 2.0),
    "lipmix": lipmix,
    "asentmax": lambda z: entmax((1 + (_log_n(z) if z.shape[-1] > 1 else 1.0)) * z, 1.5),
    "adaptive_temperature": adaptive_temperature,
    "f_normalizer": lambda z: np.asarray(np.logaddexp(0, z) / np.logaddexp(0, z).sum(-1, keepdims=True)),
    "sa_softmax": sa_softmax,
}
