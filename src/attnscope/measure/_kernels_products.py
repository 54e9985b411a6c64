"""Compiled loops: products of a few vectors with all vectors of a group, in float32.

The group is packed in panels of `PANEL` keys, one line of keys for each dimension, so that a panel stays in the
nearest cache while all the few are multiplied with it, and the compiler works on several keys at once. Within a loop
that runs for microseconds a call of a matrix library would cost more than it saves, and would need the interpreter.
"""

from __future__ import annotations

from typing import Any

from attnscope.normalizers._kernels import helper

PANEL = 64
UNROLLED = 4  # dimensions at a time: panels have a multiple of it
PAIR = 2  # vectors at a time


def panels_shape(keys: int, dims: int) -> tuple[int, int]:
    """The shape of the packed vectors of a group."""
    return -(-keys // PANEL), -(-dims // UNROLLED) * UNROLLED * PANEL


@helper
def pack(vector: Any, key: int, panels: Any) -> None:
    """Put one vector into its place."""
    panel, place = panels[key // PANEL], key % PANEL
    for k in range(vector.size):
        panel[k * PANEL + place] = vector[k]


@helper
def multiply(few: Any, panels: Any, begin: int, end: int, out: Any) -> None:
    """out[i, j] = few[i] . x, x the j-th vector from panel `begin` on, up to panel `end`.

    `few` has an even number of rows and a multiple of four columns, those behind the vectors' own being zero.
    """
    count, dims = few.shape
    for p in range(begin, end):
        panel = panels[p]
        first = (p - begin) * PANEL
        for i in range(0, count, PAIR):
            u, v = few[i], few[i + 1]
            out_u, out_v = out[i, first : first + PANEL], out[i + 1, first : first + PANEL]
            for j in range(PANEL):
                out_u[j] = 0
            for j in range(PANEL):
                out_v[j] = 0
            for k in range(0, dims, UNROLLED):
                lines = panel[k * PANEL : (k + UNROLLED) * PANEL]
                u0, u1, u2, u3 = u[k], u[k + 1], u[k + 2], u[k + 3]
                v0, v1, v2, v3 = v[k], v[k + 1], v[k + 2], v[k + 3]
                for j in range(PANEL):
                    a, b, c, d = lines[j], lines[PANEL + j], lines[2 * PANEL + j], lines[3 * PANEL + j]
                    out_u[j] += (u0 * a + u1 * b) + (u2 * c + u3 * d)
                    out_v[j] += (v0 * a + v1 * b) + (v2 * c + v3 * d)
