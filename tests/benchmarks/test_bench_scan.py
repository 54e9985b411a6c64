"""The scan's benchmark: its report, and its naive way as an oracle for the scan."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable

import polars as pl
import pytest
import torch
import transformers

from attnscope.capture.models import Model
from attnscope.capture.text import Text
from attnscope.errors import InputError
from attnscope.scanning import scan
from benchmarks import naive, peers
from benchmarks.__main__ import run
from benchmarks.resident import PLAIN_ALLOCATOR, environment
from benchmarks.scan import measure
from benchmarks.timing import RandomTokens, run_again

LENGTH, LAYERS, HEADS = 131, 2, 3


def gpt2() -> transformers.PreTrainedModel:
    config = transformers.GPT2Config(
        n_positions=LENGTH, n_layer=LAYERS, n_head=HEADS, n_embd=33, vocab_size=97, initializer_range=0.15
    )
    return transformers.GPT2LMHeadModel(config)


def grouped_llama() -> transformers.PreTrainedModel:
    """Three heads that share one head of keys and values."""
    config = transformers.LlamaConfig(
        max_position_embeddings=LENGTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=1,
        hidden_size=42, intermediate_size=53, vocab_size=97, initializer_range=0.15,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("family", [gpt2, grouped_llama])
def test_the_naive_way_gives_the_columns_of_the_scan(family: Callable[[], transformers.PreTrainedModel]) -> None:
    torch.manual_seed(3)
    module = family().eval().double()
    tokens = RandomTokens(97, LENGTH)
    top_n = [1, 5, 10, 20, 100]
    expected = naive.scan_all(module, tokens.ids, top_n)
    result = scan(
        Model(module, tokens, "tiny", None), Text("x", "random"), length=LENGTH, top_n=top_n, rows="all", bounds="paper"
    )
    # The model's own weights are float32: the columns agree as far as those agree with ours.
    for name in ("entropy", "max_weight", "participation", "weight_sum", "jacobian_bound", "sink_weight"):
        measured = torch.tensor(result.rows[name].to_list(), dtype=torch.float64).view(LAYERS, HEADS, LENGTH)
        right = torch.stack([layer[name] for layer in expected])
        torch.testing.assert_close(measured, right, rtol=2e-4, atol=1e-6, msg=name)
    for index, n in enumerate(top_n):
        table = result.topn.filter(pl.col("n") == n)
        for name in table.columns[7:]:
            measured = torch.tensor(table[name].to_list(), dtype=torch.float64).view(LAYERS, HEADS, LENGTH - n)
            right = torch.stack([layer[name][:, n:, index] for layer in expected]).double()
            close = torch.isclose(measured, right, rtol=2e-3, atol=1e-5)
            # Counts may differ by a token where two distances tie in float32, and L - 1 = N leaves no spread.
            assert close[..., 1:].double().mean() > 0.99, name


def test_the_time_of_some_heads_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks ten seconds a head, and one for the model."""
    ticks, seen = [0.0], []

    def head_columns(weights: torch.Tensor, values: torch.Tensor, top_n: list[int]) -> None:
        seen.append((weights, values, top_n))
        ticks[0] += 10

    captured = naive._captured
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=9, n_layer=2, n_head=3, n_embd=6)).eval()
    monkeypatch.setattr(naive, "head_columns", head_columns)
    monkeypatch.setattr(naive, "_captured", lambda *given: (captured(*given), ticks.__setitem__(0, ticks[0] + 1))[0])
    monkeypatch.setattr(naive.time, "perf_counter", lambda: ticks[0])
    assert naive.timed(module, range(9), [1, 5], 25) == (61, 3)
    assert [(weights.shape, values.shape) for weights, values, _ in seen] == [((9, 9), (9, 2))] * 3
    assert naive.timed(module, range(9), [1, 5], 0) == (61, 1)
    assert naive.timed(module, range(9), [1, 5], 1e9) == (61, 6)


@pytest.mark.thorough
def test_one_result_for_each_subject_with_the_growth_of_memory() -> None:
    report = measure(
        length=600, layers=2, heads=2, width=256, rows=3, repeats=1, subjects=[], models=["random"],
        shorter=150,
    )  # fmt: skip
    assert [(result["model"], result["subject"]) for result in report["results"]] == [("random", "rows=3")]
    result = report["results"][0]
    assert result["time_ratio"] == pytest.approx(statistics.median(result["time_ratios"]), abs=1e-3)
    if sys.platform == "linux":
        # At the least, a layer's four times wider states: 600 x 1024 numbers of four bytes.
        assert result["forward_peak_bytes"] > 600 * 1024 * 4
        assert 1 < result["forward_growth"] < 8
        assert result["peak_bytes"] > 0
        assert result["memory_ratio"] == pytest.approx(result["peak_bytes"] / result["forward_peak_bytes"], abs=1e-3)
        assert result["growth"] == pytest.approx(result["peak_bytes"] / result["shorter_peak_bytes"], abs=1e-3)


def test_quick_subjects_are_run_more_often_and_slow_ones_less() -> None:
    def count(seconds: float, repeats: int) -> int:
        runs: list[float] = []
        while run_again(runs, repeats):
            runs.append(seconds)
        return len(runs)

    assert count(0.1, 5) == 20
    assert count(2.0, 5) == 10
    assert count(6.0, 5) == 5
    assert count(45.0, 5) == 2
    assert count(500.0, 5) == 1


MEMORY = """
import torch
from benchmarks.resident import resident_peak
torch.ones(100 << 20, dtype=torch.uint8)  # freed: must not hide what comes
def work():
    first = torch.ones(60 << 20, dtype=torch.uint8)
    del first
    return torch.ones(40 << 20, dtype=torch.uint8)
print(resident_peak(work), resident_peak(lambda: None))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_the_peak_is_what_was_resident_at_one_time() -> None:
    given = environment(PLAIN_ALLOCATOR)
    done = subprocess.run([sys.executable, "-c", MEMORY], env=given, capture_output=True, text=True, check=True)
    peak, nothing = map(int, done.stdout.split())
    assert peak == pytest.approx(60 << 20, rel=0.05)
    assert nothing < 1 << 20


@pytest.mark.parametrize("package", ["transformer_lens", "nnsight"])
def test_other_tools_capture_the_weights_of_the_same_model(package: str) -> None:
    pytest.importorskip(package)
    torch.manual_seed(5)
    config = transformers.GPT2Config(n_positions=41, n_layer=2, n_head=3, n_embd=33, initializer_range=0.15)
    module = transformers.GPT2LMHeadModel(config).eval()
    ids = RandomTokens(997, 41).ids
    kernel = module.config._attn_implementation
    kept = getattr(peers, f"capture_with_{package}")(module, ids)()
    assert module.config._attn_implementation == kernel
    module.set_attn_implementation("eager")
    with torch.no_grad():
        own = module(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    assert len(kept["weights"]) == len(kept["values"]) == 2
    for mine, expected in zip(kept["weights"], own, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


def test_the_command_prints_one_json_object(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--length", "13", "--layers", "1", "--heads", "1", "--width", "4", "--repeats", "1", "--models", "random"]
    assert run(["scan", *sizes, "--only", "last", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["benchmark"] == "scan"
    assert report["results"][0]["forward_seconds"] > 0


def test_an_unknown_subject_is_named() -> None:
    with pytest.raises(InputError, match="no benchmark is named magic: choose from last, last\\+bounds, all"):
        measure(subjects=["magic"])
