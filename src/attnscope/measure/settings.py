"""What a scan measures: settings checked, and completed with defaults."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from attnscope.columns import VECTOR_KINDS, VectorKind
from attnscope.errors import LARGEST, InputError, parameter, plain, shown, whole_number
from attnscope.intervals import evenly_spaced

if TYPE_CHECKING:
    from attnscope.normalizers import Normalizer

DEFAULT_LENGTH = 1024
DEFAULT_LENGTHS = (32, 64, 128, 256, 512, 1024)
DEFAULT_TOP_N = (1, 5, 10, 20, 100)
DEFAULT_MEMORY = 256 * 2**20
# The paper's bounds need all pairs of keys: they are missing in longer rows.
DEFAULT_DELTA_MAX_LENGTH = 8192

Bounds = Literal["paper"]

RowChoice = int | Literal["last", "all"]

_MEMORY_UNITS = {"": 1, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}


@dataclass(frozen=True)
class Settings:
    """What a scan measures."""

    length: int
    lengths: tuple[int, ...]
    top_n: tuple[int, ...]
    windows: int = 1
    vectors: VectorKind = "value"
    bos: bool = False
    rows: RowChoice = "last"
    memory_budget: int = DEFAULT_MEMORY
    normalizers: dict[str, Normalizer] = field(default_factory=dict)  # measured besides the model's own, by label
    temperatures: tuple[float, ...] = ()
    bounds: Bounds | None = None
    delta_max_length: int = DEFAULT_DELTA_MAX_LENGTH

    @property
    def paper_bounds_length(self) -> int:
        """The longest rows in which the paper's bounds are measured; 0 for none."""
        return self.delta_max_length if self.bounds == "paper" else 0

    def positions(self, length: int) -> tuple[int, ...]:
        """The rows to measure in an input of `length` tokens that is measured as a whole."""
        if self.rows == "last":
            return (length - 1,)
        return evenly_spaced(length, length if self.rows == "all" else self.rows)

    def as_json(self) -> dict[str, Any]:
        """The settings for `run.json`."""
        return {
            "length": self.length,
            "lengths": list(self.lengths),
            "top_n": list(self.top_n),
            "windows": self.windows,
            "vectors": self.vectors,
            "bos": self.bos,
            "rows": self.rows,
            "normalizers": list(self.normalizers),
            "temperatures": list(self.temperatures),
            "bounds": self.bounds,
            "delta_max_length": self.delta_max_length,
        }


def plan(
    positions: int | None,
    length: int | None = None,
    lengths: Sequence[int] | None = None,
    top_n: Sequence[int] | None = None,
    vectors: str = "value",
    windows: int = 1,
    bos: bool = False,
    rows: RowChoice = "last",
    normalizers: Sequence[str | Normalizer] = (),
    temperatures: Sequence[float] = (),
    memory_budget: int | str = DEFAULT_MEMORY,
    bounds: str | None = None,
    delta_max_length: int = DEFAULT_DELTA_MAX_LENGTH,
    *,
    causal: bool = True,
) -> Settings:
    """Check the settings of a scan and fill in defaults; raises InputError for invalid values."""
    length = None if length is None else whole_number("length", length)
    lengths, top_n = _whole_numbers("lengths", lengths), _whole_numbers("top_n", top_n)
    windows = whole_number("windows", windows)
    settings = plan_inputs(top_n, vectors, rows, normalizers, temperatures, memory_budget, bounds, delta_max_length)
    rows = settings.rows
    if rows != "last" and lengths and causal:
        raise InputError(
            f"{parameter('rows', rows)} measures rows of every length up to the window's; leave {parameter('lengths')} "
            f"out, or use {parameter('rows', 'last')}"
        )
    size = length or (max(lengths) if lengths else min(DEFAULT_LENGTH, positions or DEFAULT_LENGTH))
    if positions is not None and size > positions:
        raise InputError(f"length {size} is beyond the model's {positions} positions; use {positions} or less")
    if lengths and max(lengths) > size:
        raise InputError(
            f"{parameter('lengths')} has {max(lengths)}, more than the window of {size} tokens; raise "
            f"{parameter('length')}"
        )
    usual = {n for n in DEFAULT_LENGTHS if n < size and rows == "last"} | {size}
    chosen = sorted(set(lengths)) if lengths else sorted(usual)
    top_sizes = _top_sizes(top_n, chosen[-1])
    return replace(settings, length=size, lengths=tuple(chosen), top_n=top_sizes, windows=windows, bos=bos)


def plan_inputs(
    top_n: Sequence[int] | None = None,
    vectors: str = "value",
    rows: RowChoice = "last",
    normalizers: Sequence[str | Normalizer] = (),
    temperatures: Sequence[float] = (),
    memory_budget: int | str = DEFAULT_MEMORY,
    bounds: str | None = None,
    delta_max_length: int = DEFAULT_DELTA_MAX_LENGTH,
) -> Settings:
    """The settings for a module on inputs; the length of its rows is known only when it runs."""
    sizes = _whole_numbers("top_n", top_n)
    delta_max_length = whole_number("delta_max_length", delta_max_length)
    return Settings(
        0,
        (),
        tuple(sorted(set(sizes))) if sizes else DEFAULT_TOP_N,
        vectors=_vector_kind(vectors),
        rows=row_choice(rows),
        memory_budget=memory_size(memory_budget),
        normalizers=_labelled(normalizers),
        temperatures=_temperatures(temperatures),
        bounds=_bounds(bounds),
        delta_max_length=delta_max_length,
    )


def _vector_kind(vectors: str) -> VectorKind:
    if vectors not in VECTOR_KINDS:
        raise InputError(f"unknown vectors {vectors!r}; use one of {', '.join(VECTOR_KINDS)}")
    return vectors


def _bounds(bounds: str | None) -> Bounds | None:
    if bounds not in (None, "paper"):
        raise InputError(f"{parameter('bounds')} takes paper; received {shown(bounds)}")
    return "paper" if bounds else None


def _top_sizes(top_n: list[int] | None, longest: int) -> tuple[int, ...]:
    if longest < 2:
        raise InputError(f"a row of {longest} key has no top set to leave out; use a length of at least 2")
    if top_n and max(top_n) >= longest:
        raise InputError(
            f"{parameter('top_n', max(top_n))} leaves nothing out of a row of {longest} keys; use one below {longest}"
        )
    counts = sorted(set(top_n)) if top_n else [n for n in DEFAULT_TOP_N if n < longest]
    return tuple(counts)


def row_choice(rows: object) -> RowChoice:
    """`last`, `all`, or a whole number of rows, also as text."""
    if isinstance(rows, str) and rows in ("last", "all"):
        return cast(Literal["last", "all"], rows)
    number = plain(rows)
    if isinstance(number, str):
        with suppress(ValueError):  # too many digits
            number = int(number) if number.isdecimal() else number
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= LARGEST:
        raise InputError(f"{parameter('rows')} takes last, all or a whole number from 1 up; received {shown(rows)}")
    return number


def memory_size(budget: int | str) -> int:
    """Bytes, from a number or a text such as 512MB or 2GB."""
    if isinstance(budget, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?b?)", budget.strip().lower())
        unit = match and (match[2] if match[2] in _MEMORY_UNITS else match[2] + "b")
        size = int(min(float(match[1]), 2.0**60) * _MEMORY_UNITS[unit]) if match and unit is not None else 0
    else:
        number = plain(budget)
        size = number if isinstance(number, int) and not isinstance(number, bool) else 0
    if size < 1:
        raise InputError(f"{parameter('memory_budget')} takes a size such as 512MB or 2GB; received {shown(budget)}")
    return size


def _labelled(normalizers: Sequence[str | Normalizer]) -> dict[str, Normalizer]:
    """Normalizers by the label that the tables show."""
    from attnscope.normalizers import Normalizer, parse

    if isinstance(normalizers, str | Normalizer) or not isinstance(normalizers, Iterable):
        normalizers = [normalizers]
    found: dict[str, Normalizer] = {}
    for wanted in normalizers:
        if not isinstance(wanted, str | Normalizer):
            raise InputError(f"a normalizer is a name such as entmax:alpha=1.3 or a Normalizer; received {wanted!r}")
        label = wanted.strip() if isinstance(wanted, str) else _unused(wanted.name, found)
        found[label] = parse(wanted) if isinstance(wanted, str) else wanted
    return found


def _unused(name: str, taken: dict[str, Normalizer]) -> str:
    number = sum(label.split("#")[0] == name for label in taken)
    return f"{name}#{number + 1}" if number else name


def _temperatures(values: Any) -> tuple[float, ...]:
    from attnscope.normalizers._arguments import check_temperature

    values = plain(values)
    listed = [values] if isinstance(values, int | float) else [plain(value) for value in values]
    for value in listed:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise InputError(f"{parameter('temperatures')} takes positive numbers; received {shown(value)}")
        check_temperature(value)
    return tuple(dict.fromkeys(float(value) for value in listed))


def _whole_numbers(name: str, values: Any) -> list[int] | None:
    """The values as a list, every one a whole number from 1 up."""
    if values is None:
        return None
    values = plain(values)
    items = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    if not items:
        raise InputError(f"{parameter(name)} takes at least one number; received none")
    return [whole_number(name, value) for value in items]
