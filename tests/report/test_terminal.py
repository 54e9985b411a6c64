"""Words of the terminal: names of models, and the verdict of a comparison."""

from __future__ import annotations

import polars as pl
import pytest

from attnscope.report.terminal import short_path
from attnscope.studies.compare.view import _verdict


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


def compared(**kl: float) -> pl.DataFrame:
    names = list(kl)
    return pl.DataFrame(
        {
            "mode": "swapped",
            "normalizer": names,
            "name": names,
            "kl": list(kl.values()),
            "perplexity": [10 + value for value in kl.values()],
            "separability": 0.5,
            "defined": 1.0,
        }
    )


def test_a_comparison_names_what_changes_nothing_and_what_changes_least() -> None:
    words = _verdict(compared(own=0.0, softmax=0.0, ssmax=0.5, sparsemax=0.25))
    assert words.startswith("without training, softmax leaves the model as it is; of the others sparsemax changes it")
    assert "KL 0.25, perplexity 10.2 instead of 10." in words
    words = _verdict(compared(own=0.0, ssmax=0.5))
    assert words.startswith("without training, ssmax changes the model least: KL 0.5")
    words = _verdict(compared(own=0.0, softmax=0.0, topk=0.0))
    assert words.startswith("without training, softmax and topk leave the model as it is.")
