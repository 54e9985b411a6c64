"""Settings of a reproduction: lengths, sizes of the top set, temperatures and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from attnscope.columns import VECTOR_KINDS, VectorKind
from attnscope.errors import InputError, listed_names, parameter, whole_number
from attnscope.measure.settings import RowChoice, row_choice

Sink = Literal["kept", "dropped"]
SINKS: tuple[Sink, ...] = get_args(Sink)
Reading = Literal["literal", "visible"]  # of a row, see `experiments.protocol`
READINGS: tuple[Reading, ...] = get_args(Reading)

# Section 3: N = 5 for every L, several N at the longest L, and "N of about 16" for separability.
FIXED_N = 5
PAPER_N = (1, 5, 10, 20, 100)
SEPARABILITY_N = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SATURATION_N = 16
PAPER_LENGTHS = (32, 64, 128, 256, 512, 1024)
# Sizes of random sets: DRAWN_N at every length, and DRAWN_N_LONGEST in addition at the longest.
DRAWN_N = (1, 5, 20, 100)
DRAWN_N_LONGEST = (10, 200, 500)
STEPS = (1e-3, 1e-1, 10.0)
TEMPERATURES = tuple(10 ** (k / 4) for k in range(-8, 5))
SHARPNESS_TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SHORTEST = 8


@dataclass(frozen=True)
class Settings:
    """The settings that determine the numbers: a run with equal settings reuses the tables."""

    lengths: tuple[int, ...]
    windows: int
    rows: int  # last ones of each length
    vectors: tuple[VectorKind, ...]
    draws: int
    seed: int
    bos: bool
    dtype: str
    protocol: bool  # whether all rows are measured too

    @property
    def longest(self) -> int:
        """The number of tokens in a window."""
        return self.lengths[-1]

    def positions(self, length: int) -> tuple[int, ...]:
        """Positions of the last rows of a prefix, the very last first."""
        return tuple(length - 1 - row for row in range(self.rows))

    def top_n(self, length: int) -> list[int]:
        """The sizes of the top set that are measured in a row of `length` keys."""
        return [n for n in sorted({*PAPER_N, *SEPARABILITY_N}) if n < length]

    def drawn_n(self, length: int, longest: bool) -> list[int]:
        """The sizes for which random sets are drawn in a row of `length` keys."""
        return [n for n in sorted({*DRAWN_N, *(DRAWN_N_LONGEST if longest else ())}) if n < length]

    def as_dict(self) -> dict[str, Any]:
        """The settings as written to run.json."""
        return asdict(self)


def plan(
    positions: int | None,
    *,
    length: int | None = None,
    windows: int = 8,
    rows: RowChoice = "all",
    vectors: str | Sequence[str] = ("value",),
    draws: int = 99,
    seed: int = 0,
    bos: bool = False,
    dtype: str = "float32",
) -> Settings:
    """Check the settings of a reproduction and fill in defaults; raises InputError for invalid values."""
    chosen = row_choice(rows)
    last = chosen if isinstance(chosen, int) else 1
    windows, draws, seed = (
        whole_number("windows", windows),
        whole_number("draws", draws, 2),
        whole_number("seed", seed, 0),
    )
    wanted = listed_names("vectors", vectors, VECTOR_KINDS)
    asked = length if length is not None else min(PAPER_LENGTHS[-1], positions or PAPER_LENGTHS[-1])
    size = whole_number("length", asked, SHORTEST)
    if positions is not None and size > positions:
        raise InputError(f"length {size} is beyond the model's {positions} positions; use {positions} or less")
    # Powers of two up to the longest length, as in the paper.
    powers = [2**k for k in range(5, size.bit_length()) if 2**k < size] or [2**k for k in range(3, 5) if 2**k < size]
    lengths = (*powers, size)
    if last > lengths[0] // 4:
        raise InputError(
            f"{parameter('rows', rows)} is more than a quarter of the shortest length, {lengths[0]}; use fewer rows"
        )
    kinds = tuple(kind for kind in VECTOR_KINDS if kind in wanted)
    return Settings(lengths, windows, last, kinds, draws, seed, bos, dtype, chosen == "all")
