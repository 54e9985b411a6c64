"""The names of the kinds of vectors, in a file of their own so that settings can be read without torch."""

from __future__ import annotations

from typing import Literal, get_args

VectorKind = Literal["value", "output", "hidden", "hidden_unit", "embedding"]
VECTOR_KINDS: tuple[VectorKind, ...] = get_args(VectorKind)
