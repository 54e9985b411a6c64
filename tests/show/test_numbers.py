"""Numbers as texts: no number that is not zero is written as zero."""

from __future__ import annotations

import pytest

from attnscope.show.numbers import counted, number, short_path
from attnscope.studies.paper.view import measured_and_accepted


@pytest.mark.parametrize(
    ("value", "style", "words"),
    [
        (None, "number", "-"),
        (float("nan"), "number", "-"),
        (0.0, "number", "0"),
        (4e-7, "number", "<1e-06"),
        (2.1e-5, "number", "2.1e-05"),
        (0.000213, "number", "0.000213"),
        (12.345, "number", "12.3"),
        (1234.5, "number", "1,234"),
        (0.0, "share", "0%"),
        (0.0004, "share", "<0.1%"),
        (0.0123, "share", "1.2%"),
        (0.567, "share", "57%"),
    ],
)
def test_a_number_has_three_figures_and_is_never_zero_by_rounding(value: float | None, style: str, words: str) -> None:
    assert number(value, style) == words


def test_nouns_agree_with_their_number() -> None:
    assert (counted(1), counted(2, "window"), counted(1234, "row")) == ("1 head", "2 windows", "1,234 rows")


def test_a_range_that_begins_above_zero_says_so() -> None:
    measured = [{"value": 0.5, "interval": None, "accepted": [5e-324, None]}]
    claim = {"readings": [{"form": "printed", "measured": measured, "nearest": True}]}
    assert measured_and_accepted(claim) == ("0.5", "> 0")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai-community/gpt2", "openai-community/gpt2"),
        ("gpt2", "gpt2"),
        ("sample", "sample"),
        ("./my/stories15M/", "stories15M"),
        ("/data/minilm/model", "minilm/model"),
        ("~/llama.gguf", "llama.gguf"),
        ("runs/of/mine", "mine"),
        ("C:\\models\\bert\\checkpoint", "bert/checkpoint"),
        ("/", "/"),
    ],
)
def test_a_path_is_named_by_its_last_part_that_says_something(name: str, expected: str) -> None:
    assert short_path(name) == expected
