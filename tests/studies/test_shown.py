"""Results of studies in the terminal, on a page and in Markdown: all three have the same verdicts and numbers."""

from __future__ import annotations

import polars as pl
import pytest

from attnscope.show import html, markdown, terminal
from attnscope.show.result import Result
from attnscope.studies.audit import AuditReport, ClaimReport, Counterexample, Trial
from attnscope.studies.audit.view import claim_blocks
from attnscope.studies.compare.comparing import SCHEMA, Comparison
from attnscope.studies.compare.guidelines import Finding, Guidelines
from attnscope.studies.recall.running import TABLE, Recall, summarize

RUN = {
    "model": "some/model",
    "text": {"source": "book.txt"},
    "settings": {"windows": 2, "length": 1024},
    "normalizers": ["softmax"],
    "calibration": [],
}


def trial(violations: int) -> Trial:
    example = Counterexample({"weights": [0.5, 0.5]}, 0.5, 0.25) if violations else None
    return Trial("a <= b", 1000, 12, violations, violations > 0, 1.25, 1.0, 0.0, example)


def audit() -> AuditReport:
    claim = ClaimReport("lemma-9", "Lemma 9", "rows", "fails", trial(345), (trial(0),), None, None, "")
    return AuditReport("quick", 3, (claim,))


def guidelines() -> Guidelines:
    sweep = [{"length": 1024, "entropy_ratio": 0.123, "separability": None}]
    finding = Finding("watch the entropy", "it falls", "it fell", "agrees", sweep)
    return Guidelines([finding], Comparison(pl.DataFrame(schema=SCHEMA), RUN))


def recall() -> Recall:
    same = {"task": "needle", "normalizer": "ssmax", "position_encoding": "none", "qk_norm": True, "length": 32}
    same |= {"length_ratio": 1, "ceiling": 1.0, "jacobian_norm": 2.0, "budget": 3.0, "learning_rate": 0.01}
    lines = [same | {"seed": seed, "accuracy": 0.75 + seed / 100} for seed in (0, 1)]
    table = pl.DataFrame(lines, schema=TABLE)
    return Recall(table, summarize(table), {})


SHOWN = {
    "audit": (audit, ["lemma-9", "34.5%", "1 fails", "Effort quick, seed 3"]),
    "guidelines": (guidelines, ["some/model", "1 agrees with the model", "0.123", "1,024"]),
    "recall": (recall, ["needle: Jacobian norm at most 3", "ssmax", "75.5", "mean over 2 seeds"]),
}


@pytest.mark.parametrize("name", SHOWN)
def test_every_backend_has_the_same_words_and_numbers(name: str) -> None:
    make, expected = SHOWN[name]
    result = make()
    assert isinstance(result, Result)
    written = (terminal.text(result.blocks()), html.body(result.blocks()), markdown.text(result.blocks()))
    for text in written:
        assert [words for words in expected if words not in " ".join(text.split())] == []
    assert max(map(len, written[0].splitlines())) <= 80


def test_a_claim_in_full_has_numbers_to_check_by_hand() -> None:
    text = terminal.text(claim_blocks(audit().claims[0]))
    assert "violated in 345 of 1,000 drawn (34.5%; accepted: 0%)" in " ".join(text.split())
    assert "weights = (0.5, 0.5)" in text
    assert "claimed 0.5 <= 0.25, off by 0.25" in text


def test_recall_says_what_was_trained_and_explains_the_columns_that_it_has() -> None:
    result = recall()
    shown = repr(result)
    assert shown.startswith("Recall with 1 normalizer, needle; 2 seeds, tested at 1 times the training length")
    assert "Best reader" not in html.body(result.blocks())
    assert "Verdict" not in shown  # there is no other normalizer
    other = result.table.with_columns(normalizer=pl.lit("softmax"), accuracy=pl.col("accuracy") - 0.5)
    table = pl.concat([result.table, other]).with_columns(ceiling=0.9)
    both = Recall(table, summarize(table), {})
    assert "Verdict: At the training length, ssmax is among the best in 1 of 1 setting." in repr(both)
    assert "Best reader" in html.body(both.blocks())
