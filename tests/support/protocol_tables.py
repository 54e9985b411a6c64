"""Seeded tables of the protocol with known laws: what is read from them can be written down beforehand.

Heads differ by a factor around 1 (their median is exactly 1), windows by one percent. With u the window's factor:

- distance = u L^0.97, flat in N; printed expectation = L^1.02 sqrt(N), E1 from 0.8 to 1.25 N: not growing with L;
  literal rows are twice the visible ones. The bound is 3 / sqrt(N) distances, at least 1.5.
- critical N = L/16 at 0.01 and L/8 at 0.05 with the printed expectation, 0.75 L with E1 lower, none with E1 upper.
- separability = 1 - 0.05 log2 N until N = 16, then flat; 0.1 lower in visible rows; the closed ball 0.02 higher.
- max weight = L^-0.5, falling entropy for heads of high separability; the top set has 1.5 times its uniform weight.
- at N = L/8 the distance is L^0.5; the KS test accepts at N = 100.
- one head tells 0.8 of its tokens apart at T = 1, 0.9 at 0.2, 0.95 below; three heads together 0.9.
- g = 0.02 T^-0.5 in a random direction, 0.9 min(1/(2T), sqrt 2 / eps) in the worst.
"""

from __future__ import annotations

import math
from itertools import product

import polars as pl

LENGTHS = (32, 64, 128, 256, 512, 1024)
SIZES = (1, 5, 10, 20, 100)
SEPARABILITY_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
HEADS = (0.5, 1.0, 1.0, 2.0, 0.9, 1.1)
READINGS = ("literal", "visible")
TEMPERATURES = tuple(10 ** (k / 4) for k in range(-8, 5))
STEPS = (1e-3, 1e-1, 10.0)


def protocol_tables(windows: int = 6, vectors: tuple[str, ...] = ("value", "hidden")) -> dict[str, pl.DataFrame]:
    """The tables of the protocol."""
    return {
        "protocol_distance": pl.DataFrame(_distance(windows, vectors)),
        "protocol_separability": pl.DataFrame(_separability(windows, vectors)),
        "protocol_rows": pl.DataFrame(_rows(windows)),
        "protocol_tests": pl.DataFrame(_tests(windows, vectors)),
        "sharpness": pl.DataFrame(_sharpness(windows, vectors)),
        "coverage": pl.DataFrame(_coverage(windows, vectors)),
        "circle": pl.DataFrame(),
        "protocol_gradient": pl.DataFrame(_gradient(windows)),
        "protocol_critical": pl.DataFrame(_critical(windows, vectors, (len(HEADS),))),
        "protocol_subsets": pl.DataFrame(_critical(windows, vectors, (3, len(HEADS)))),
    }


def window_factor(window: int, windows: int) -> float:
    """Around 1, in steps of one percent."""
    return 1 + 0.01 * (window - (windows - 1) / 2)


def _heads(windows: int) -> list[tuple[int, dict[str, int], float]]:
    return [(w, {"layer": h // 3, "head": h % 3}, size) for w in range(windows) for h, size in enumerate(HEADS)]


def _distance(windows: int, vectors: tuple[str, ...]) -> list[dict[str, object]]:
    lines = []
    for (w, head, size), reading, kind, length in product(_heads(windows), READINGS, vectors, LENGTHS):
        scale = window_factor(w, windows) * size * (2 if reading == "literal" else 1)
        for n in SIZES:
            if n >= length:
                continue
            distance = scale * length**0.97
            lines.append(
                {
                    "window": w, "reading": reading, "vectors": kind, "length": length, **head, "n": n,
                    "distance": distance, "bound_printed": distance * max(1.5, 3 / math.sqrt(n)),
                    "expected_printed": scale * length**1.02 * math.sqrt(n), "expected_lower": scale * 0.8 * n,
                    "expected_upper": scale * 1.25 * n, "epsilon_printed": scale, "top_mass_ratio": 1.5,
                    "scaled_sum": scale * length**1.02 * math.sqrt(5),
                    "rows": length if reading == "literal" else length - n,
                }
            )  # fmt: skip
    return lines


def _separability(windows: int, vectors: tuple[str, ...]) -> list[dict[str, object]]:
    lines = []
    for (w, head, size), reading, kind in product(_heads(windows), READINGS, vectors):
        for n in SEPARABILITY_SIZES:
            share = 1 - 0.05 * math.log2(min(n, 16)) - (0.1 if reading == "visible" else 0)
            share = min(share * (1 + 0.02 * math.log(size)) * window_factor(w, windows), 1.0)
            lines.append(
                {
                    "window": w, "reading": reading, "vectors": kind, "length": LENGTHS[-1], **head, "n": n,
                    "separability": share,
                    "separability_closed": min(share + 0.02, 1.0) if reading == "literal" else None,
                    "lower_printed": share - 0.5, "upper_printed": 0.97,
                    "rows": LENGTHS[-1] - (n if reading == "visible" else 0),
                }
            )  # fmt: skip
    return lines


def _rows(windows: int) -> list[dict[str, object]]:
    return [
        {
            "window": w, "reading": reading, "length": length, **head, "entropy_ratio": 0.5 - 0.1 * math.log(size),
            "max_weight": window_factor(w, windows) * size * length**-0.5, "rows": length - 1,
        }
        for (w, head, size), reading, length in product(_heads(windows), READINGS, LENGTHS)
    ]  # fmt: skip


def _tests(windows: int, vectors: tuple[str, ...]) -> list[dict[str, object]]:
    return [
        {
            "window": w, "reading": reading, "vectors": kind, "length": length, "expectation": "printed",
            "heads": len(HEADS), "n": n, "distance": window_factor(w, windows) * length**0.5, "p": 0.5,
        }
        for w, reading, kind, length in product(range(windows), READINGS, vectors, LENGTHS)
        for n in (length // 8, 100)
        if n < length
    ]  # fmt: skip


def _sharpness(windows: int, vectors: tuple[str, ...]) -> list[dict[str, object]]:
    shares = {0.05: 0.95, 0.1: 0.95, 0.2: 0.9, 1.0: 0.8}
    return [
        {"window": w, "vectors": kind, **head, "temperature": t, "separability": share, "jacobian_norm": 0.5 / t}
        for (w, head, _), kind, (t, share) in product(_heads(windows), vectors, shares.items())
    ]


def _coverage(windows: int, vectors: tuple[str, ...]) -> list[dict[str, object]]:
    return [
        {"window": w, "layer": layer, "vectors": kind, "heads": 3, "coverage": 0.9, "independent": 0.992}
        for w, layer, kind in product(range(windows), range(2), vectors)
    ]


def _gradient(windows: int) -> list[dict[str, object]]:
    lines = []
    for (w, head, size), reading, logits in product(_heads(windows), READINGS, ("raw", "scaled")):
        for t, step in product(TEMPERATURES, STEPS):
            cap = math.sqrt(2) / step
            random = min(0.02 * size / 2 * t**-0.5, cap) * window_factor(w, windows)
            worst = 0.9 * size / 2 * min(1 / (2 * t), cap)
            shared = {"window": w, "reading": reading, "logit_scale": logits, "temperature": t, "step": step, **head}
            lines += [shared | {"direction": "random", "g": random}, shared | {"direction": "worst", "g": worst}]
    return lines


def _critical(windows: int, vectors: tuple[str, ...], heads: tuple[int, ...]) -> list[dict[str, object]]:
    lines = []
    for w, reading, kind, length in product(range(windows), READINGS, vectors, LENGTHS):
        for expectation, level, count in product(("printed", "lower", "upper"), (0.05, 0.01), heads):
            first = {"printed": length // (16 if level == 0.01 else 8), "lower": 3 * length // 4, "upper": None}
            n = first[expectation]
            found = None if n is None else n * count // len(HEADS)  # fewer heads have less power
            lines.append(
                {
                    "window": w, "reading": reading, "vectors": kind, "length": length, "expectation": expectation,
                    "significance": level, "first": found,
                    "persistent": None if found is None else min(2 * found, length - 1), "heads": count,
                }
            )  # fmt: skip
    return lines
