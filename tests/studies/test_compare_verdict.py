"""The verdict of a comparison in words."""

from __future__ import annotations

import polars as pl

from attnscope.studies.compare.view import _verdict


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
    assert words.startswith("Without training, softmax leaves the model as it is; of the others sparsemax changes it")
    assert "KL 0.25, perplexity 10.2 instead of 10." in words
    words = _verdict(compared(own=0.0, ssmax=0.5))
    assert words.startswith("Without training, ssmax changes the model least: KL 0.5")
    words = _verdict(compared(own=0.0, softmax=0.0, topk=0.0))
    assert words.startswith("Without training, softmax and topk leave the model as it is.")
