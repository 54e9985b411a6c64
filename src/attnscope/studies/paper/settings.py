"""Settings of a reproduction: lengths, sizes of the top set, temperatures and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from attnscope.columns import VECTOR_KINDS, VectorKind
from attnscope.errors import InputError, listed_names, parameter, whole_number

FirstKey = Literal["kept", "dropped"]
Reading = Literal["literal", "visible"]  # of a row: with the keys that it does not see, at weight zero, or without them
READINGS: tuple[Reading, ...] = get_args(Reading)

# Section 3: N = 5 for every L, several N at the longest L, and "N of about 16" for separability.
FIXED_N = 5
PAPER_N = (1, 5, 10, 20, 100)
SEPARABILITY_N = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SATURATION_N = 16
PAPER_LENGTHS = (32, 64, 128, 256, 512, 1024)
STEPS = (1e-3, 1e-1, 10.0)
TEMPERATURES = tuple(10 ** (k / 4) for k in range(-8, 5))
SHARPNESS_TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SHORTEST = 8
TABLE_NAMES = (
    *(f"protocol_{name}" for name in ("distance", "separability", "rows", "gradient", "critical", "tests", "subsets")),
    *("sharpness", "coverage", "circle"),
)


@dataclass(frozen=True)
class Settings:
    """The settings that determine the numbers: a run with equal settings reuses the tables."""

    lengths: tuple[int, ...]
    windows: int
    vectors: tuple[VectorKind, ...]
    first_key: FirstKey  # of the window: whether rows may attend to it
    seed: int
    bos: bool
    dtype: str

    @property
    def longest(self) -> int:
        """The number of tokens in a window."""
        return self.lengths[-1]

    @property
    def first(self) -> int:
        """The first key that counts."""
        return int(self.first_key == "dropped")

    def positions(self, length: int) -> tuple[int, ...]:
        """The position of the last row of a prefix; the rows before it are measured with it."""
        return (length - 1,)

    def top_n(self, length: int) -> list[int]:
        """The sizes of the top set that are measured in a row of `length` keys."""
        return [n for n in sorted({*PAPER_N, *SEPARABILITY_N}) if n < length]


def plan(
    positions: int | None,
    *,
    length: int | None = None,
    windows: int = 8,
    vectors: str | Sequence[str] = ("value",),
    first_key: FirstKey = "kept",
    seed: int = 0,
    bos: bool = False,
    dtype: str = "float32",
) -> Settings:
    """Check the settings of a reproduction and fill in defaults; raises InputError for invalid values."""
    windows, seed = whole_number("windows", windows), whole_number("seed", seed, 0)
    wanted = listed_names("vectors", vectors, VECTOR_KINDS)
    if first_key not in get_args(FirstKey):
        raise InputError(f"{parameter('first_key', first_key)} is not one of {', '.join(get_args(FirstKey))}")
    asked = length if length is not None else min(PAPER_LENGTHS[-1], positions or PAPER_LENGTHS[-1])
    size = whole_number("length", asked, SHORTEST)
    if positions is not None and size > positions:
        raise InputError(f"length {size} is beyond the model's {positions} positions; use {positions} or less")
    # Powers of two up to the longest length, as in the paper.
    powers = [2**k for k in range(5, size.bit_length()) if 2**k < size] or [2**k for k in range(3, 5) if 2**k < size]
    lengths = (*powers, size)
    kinds = tuple(kind for kind in VECTOR_KINDS if kind in wanted)
    return Settings(lengths, windows, kinds, first_key, seed, bos, dtype)
