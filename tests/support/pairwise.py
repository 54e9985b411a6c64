"""Fewer cases where parameters are crossed: pairs of values instead of all combinations.

A module or test with `pytest.mark.pairwise` runs as many of its cases as are needed for every test to meet every value
of each of its parameters, and for any two parameters to meet each other's values somewhere in the module. `--all` runs
all cases. The choice depends on nothing but the list of cases.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations, groupby
from typing import Any

Pair = frozenset[tuple[str, Hashable]]


def cover(cases: Sequence[dict[str, Hashable]], first: str) -> list[int]:
    """Numbers of cases in which all pairs of values occur; cases with the same value of `first` follow each other.

    Within such a group, cases are taken that bring the most new pairs, until none brings a pair with `first`. Pairs of
    the others that are still missing at the end take the first case that has them.
    """
    pairs: list[set[Pair]] = [{frozenset(two) for two in combinations(case.items(), 2)} for case in cases]
    missing: set[Pair] = set().union(*pairs)
    chosen: list[int] = []

    def take(number: int) -> None:
        chosen.append(number)
        missing.difference_update(pairs[number])

    for value, group in groupby(range(len(cases)), lambda number: cases[number][first]):
        numbers = list(group)
        own = {pair for number in numbers for pair in pairs[number] if (first, value) in pair}
        while own & missing:
            bringing = [number for number in numbers if pairs[number] & own & missing]
            take(max(bringing, key=lambda number: (len(pairs[number] & missing), -number)))
    for number in range(len(cases)):
        if pairs[number] & missing:
            take(number)
    return sorted(chosen)


def deselected(items: Iterable[Any]) -> set[Any]:
    """The marked test items that need not run."""
    left_out: set[Any] = set()
    marked = [item for item in items if item.get_closest_marker("pairwise") and hasattr(item, "callspec")]
    for _, group in groupby(marked, lambda item: item.path):
        members = list(group)
        cases = [_values(item) for item in members]
        kept = set(cover(cases, "test"))
        left_out |= {item for number, item in enumerate(members) if number not in kept}
    return left_out


def _values(item: Any) -> dict[str, Hashable]:
    given = item.callspec.params
    plain = {name: str(value) if isinstance(value, str | float | bool) else id(value) for name, value in given.items()}
    return {"test": item.originalname} | plain
