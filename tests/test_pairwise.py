"""The choice of cases where parameters are crossed (tests/support/pairwise.py)."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from pairwise import cover

CASES: list[dict[str, Any]] = [
    {"test": test, "normalizer": normalizer, "mask": mask, "dtype": dtype}
    for test, normalizer, mask, dtype in product("ab", range(9), ("none", "causal", "padded"), ("float32", "float64"))
] + [{"test": "c", "normalizer": normalizer} for normalizer in range(9)]


def pairs(cases: list[dict[str, Any]]) -> set[Any]:
    return {two for case in cases for two in combinations(sorted(case.items(), key=str), 2)}


def test_every_pair_of_values_is_in_some_case() -> None:
    chosen = [CASES[number] for number in cover(CASES, "test")]
    assert pairs(chosen) == pairs(CASES)


def test_far_fewer_cases_run() -> None:
    assert len(cover(CASES, "test")) <= len(CASES) / 2


def test_the_choice_is_the_same_each_time() -> None:
    assert cover(CASES, "test") == cover(CASES, "test")


def test_a_test_with_one_parameter_keeps_all_its_cases() -> None:
    assert len([number for number in cover(CASES, "test") if CASES[number]["test"] == "c"]) == 9
