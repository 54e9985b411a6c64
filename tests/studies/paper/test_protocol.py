"""The paper's protocol over all rows against a slow oracle that shares no code with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import protocol_oracle as oracle
import pytest
from models import build
from protocol_heads import PlainHead, plain_heads
from reproductions import BOOK, collect

from attnscope.studies.paper.settings import PAPER_N, SEPARABILITY_N, STEPS, TEMPERATURES

LENGTHS = (8, 16, 21)
CLOSE = 2e-5


def tables_and_heads(
    family: str, kinds: tuple[str, ...], lengths: tuple[int, ...] = LENGTHS
) -> tuple[dict[str, pl.DataFrame], dict[Any, PlainHead]]:
    module = build(family, "eager")
    tables = collect(module, length=lengths[-1], windows=1, vectors=kinds)
    return tables, plain_heads(module, BOOK, lengths, kinds)


def block(head: PlainHead, kind: str, length: int) -> tuple[Any, Any, Any]:
    return head.weights[:length, :length], head.visible[:length, :length], head.vectors[kind][:length]


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("llama-gqa", ("value", "hidden_unit")),
        ("mistral-window", ("hidden",)),
        ("gpt-oss-sinks", ("output",)),
        ("gpt2", ("embedding",)),
    ],
)
def test_means_over_rows_of_causal_models(family: str, kinds: tuple[str, ...]) -> None:
    """Grouped queries, a sliding window, sinks; every length is a leading block of the window."""
    tables, heads = tables_and_heads(family, kinds)
    lines = 0
    for name, sizes, expected in (
        ("protocol_distance", PAPER_N, oracle.distance_columns),
        ("protocol_separability", SEPARABILITY_N, oracle.separability_columns),
    ):
        measured = {tuple(line[k] for k in ("reading", "vectors", "length", "layer", "head", "n")): line
                    for line in tables[name].iter_rows(named=True)}  # fmt: skip
        for (_, layer, number), head in heads.items():
            if number % 3:
                continue
            for kind in kinds:
                for length in LENGTHS:
                    for n in (size for size in sizes if size < length):
                        for reading in ("literal", "visible"):
                            right = expected(*block(head, kind, length), n, reading)
                            line = measured.pop((reading, kind, length, layer, number, n), {"rows": 0})
                            assert line["rows"] == right["rows"]
                            if reading == "visible":
                                assert line.get("separability_closed") is None
                                right.pop("separability_closed", None)
                            for column, value in right.items():
                                assert line[column] == pytest.approx(value, rel=CLOSE, abs=1e-9), (column, line)
                            lines += 1
        assert all(key[4] % 3 for key in measured)
    assert lines > 50


def test_critical_sizes_at_every_n() -> None:
    """Rows of a sliding window reach fewer N in the visible reading."""
    tables, heads = tables_and_heads("mistral-window", ("value",), (8, 16))
    for length in (8, 16):
        for reading in ("literal", "visible"):
            every = [
                [oracle.distance_columns(*block(head, "value", length), n, reading) for n in range(1, length)]
                for head in heads.values()
            ]
            sizes = [n for n in range(1, length) if every[0][n - 1]["rows"]]
            columns = {
                name: np.array([[head[n - 1][name] for head in every] for n in sizes])
                for name in ("distance", "expected_printed", "expected_lower", "expected_upper")
            }
            lines = tables["protocol_critical"].filter(length=length, reading=reading)
            assert len(lines) == 3 * 2
            for line in lines.iter_rows(named=True):
                expected = columns[f"expected_{line['expectation']}"]
                right = oracle.critical_sizes(columns["distance"], expected, sizes, line["significance"])
                assert (line["first"], line["persistent"], line["heads"]) == (*right, len(heads))


def test_responses_of_all_rows() -> None:
    """The worst direction by an eigenvalue solver; random ones drawn by the seed of the head."""
    tables, heads = tables_and_heads("llama-gqa", ("value",))
    measured = {tuple(line[k] for k in line if k not in ("window", "g")): line["g"]
                for line in tables["protocol_gradient"].iter_rows(named=True)}  # fmt: skip
    assert len(measured) == 2 * 2 * 2 * len(TEMPERATURES) * len(STEPS) * len(heads)
    compared = 0
    for (_, layer, number), head in heads.items():
        normals = np.random.default_rng((0, 0, layer, number)).standard_normal(head.logits.shape)
        for logits, z in (("scaled", head.logits), ("raw", head.logits / head.scale)):
            ordered = np.sort(np.where(head.visible, z, -np.inf), -1)[1:]
            gap = (ordered[:, -1] - ordered[:, -2]).max()
            for temperature in TEMPERATURES[:: 3 + number]:
                for step in STEPS:
                    for reading in ("literal", "visible"):
                        key = (temperature, step, layer, number)
                        random = oracle.random_gradient(z, head.visible, normals, temperature, step, reading)
                        assert measured[reading, logits, "random", *key] == pytest.approx(random, rel=CLOSE, abs=1e-9)
                        if number < 2 and gap < 13 * temperature:  # else the solver's eigenvector is rounding
                            compared += 1
                            worst = oracle.worst_gradient(z, head.visible, temperature, step)
                            assert measured[reading, logits, "worst", *key] == pytest.approx(worst, rel=CLOSE, abs=1e-9)
    assert compared > 50


def test_an_encoder_has_one_reading() -> None:
    """Every token sees every other: nothing is hidden, and each length is a forward of its own."""
    tables, heads = tables_and_heads("bert", ("value",))
    for name, columns in (("protocol_distance", 9), ("protocol_separability", 4)):
        both = tables[name].partition_by("reading")
        assert len(both) == 2
        keys = ["length", "layer", "head", "n"]
        literal, visible = (part.sort(keys).drop("reading", "separability_closed", strict=False) for part in both)
        assert literal.columns[-columns:] == visible.columns[-columns:]
        for column in literal.columns[-columns:]:
            assert literal[column].to_numpy() == pytest.approx(visible[column].to_numpy(), rel=1e-9)
    head = heads[16, 1, 2]
    line = tables["protocol_distance"].filter(length=16, layer=1, head=2, n=5, reading="visible").row(0, named=True)
    right = oracle.distance_columns(head.weights, head.visible, head.vectors["value"], 5, "visible")
    for column, value in right.items():
        assert line[column] == pytest.approx(value, rel=CLOSE)
