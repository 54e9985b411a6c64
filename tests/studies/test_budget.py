"""Budgets of keys: how they are allocated, what the compared methods keep, and what is written."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command_options import assert_parameters
from models import build, byte_tokenizer
from scipy import stats

from attnscope.capture.models import Model
from attnscope.cli import run
from attnscope.errors import InputError
from attnscope.intervals import paired_mean
from attnscope.options import Loading
from attnscope.studies.budget import running
from attnscope.studies.budget.allocation import (
    allocate,
    beyond_window,
    duo_attention,
    layer_budgets,
    measure_needs,
    measured_sizes,
)
from attnscope.studies.budget.comparison import APPLIED, OURS, OWN, compare_window, recall_task, summarize
from attnscope.studies.budget.running import FILES, budget
from attnscope.studies.budget.selection import SELECTIONS, Allocation, BudgetSettings, Context, KeptKeys, with_total
from attnscope.studies.budget.verb import BudgetOptions
from attnscope.swapping import HeadBudget, KeyBudget, load_budget

SETTINGS = BudgetSettings(0.25, length=64, windows=3, calibration_windows=1, seed=5)


def random_context(kv_heads: list[int]) -> Context:
    torch.manual_seed(3)
    scores = [torch.rand(count, SETTINGS.length, dtype=torch.float64).square() / 10 for count in kv_heads]
    return Context(scores, [torch.rand_like(each) for each in scores])


def random_plan(kv_heads: list[int]) -> KeptKeys:
    draw = np.random.default_rng(2)
    counts = draw.integers(1, 32, sum(kv_heads))
    return KeptKeys(SETTINGS, kv_heads, Allocation(counts, draw.integers(0, 2, len(counts))))


# Allocation


def test_the_allocation_has_nearly_the_smallest_total_error() -> None:
    sizes, draw = measured_sizes(SETTINGS.length), np.random.default_rng(1)
    powers, scales = draw.uniform(0.3, 2, (3, 2)), draw.uniform(0.1, 10, (3, 2))
    size = np.asarray(sizes, dtype=np.float64)
    errors = scales[..., None] * (size ** -powers[..., None] - 64 ** -powers[..., None])
    found = allocate([torch.from_numpy(errors)], SETTINGS)
    total = round(0.25 * 64 * 3)
    assert found.counts.sum() == total

    def at(head: int, kind: int, count: int) -> float:
        return float(np.interp(np.log(count), np.log(sizes), errors[head, kind]))

    best = min(
        sum(min(at(head, kind, count) for kind in (0, 1)) for head, count in enumerate((a, b, total - a - b)))
        for a, b in itertools.product(range(1, total - 1), repeat=2)
        if 1 <= total - a - b <= 64
    )
    mine = sum(at(head, int(found.kinds[head]), int(count)) for head, count in enumerate(found.counts))
    assert best <= mine <= 1.05 * best


def test_a_head_that_needs_three_quarters_of_its_keys_gets_them_from_heads_that_need_none() -> None:
    sizes = measured_sizes(64)
    easy = [[0.0] * len(sizes)] * 2
    hard = [[float(size < 48) for size in sizes]] * 2
    found = allocate([torch.tensor([easy, hard, easy, easy], dtype=torch.float64)], SETTINGS)
    assert found.counts.sum() == 64
    assert found.counts[1] >= 48


@pytest.mark.parametrize(("total", "most"), [(7, 64), (100, 64), (447, 64), (448, 64)])
def test_whole_numbers_with_a_total(total: int, most: int) -> None:
    wanted = np.array([0.0, 1e-9, 1.0, 2.0, 3.0, 50.0, 64.0])
    counts = with_total(wanted, total, most)
    assert counts.sum() == total
    assert counts.min() >= 1
    assert counts.max() <= most
    assert (np.diff(counts) >= 0).all()


def test_errors_are_those_of_attention_written_out() -> None:
    """One kind and size, from the model's own weights, hidden states and projections."""
    model = build("llama-gqa", "eager").double()
    tokens = torch.randint(256, (72,), generator=torch.Generator().manual_seed(8))
    loaded = Model(model, byte_tokenizer(), "tiny", None)
    needs = measure_needs(loaded, [tokens.tolist()], SETTINGS, lambda step: None)
    size = 12
    column = measured_sizes(64).index(size)
    with torch.no_grad():
        result = model(tokens[None], output_attentions=True, output_hidden_states=True)
        for layer, found in enumerate(needs):
            block, stream = model.model.layers[layer], result.hidden_states[layer][0]
            values = block.self_attn.v_proj(block.input_layernorm(stream)).unflatten(-1, (2, 14))
            errors = torch.zeros(6, dtype=torch.float64)
            for head in range(6):
                project = block.self_attn.o_proj.weight[:, head * 14 : (head + 1) * 14]
                for row in range(64, 72):
                    weights = result.attentions[layer][0, head, row, : row + 1]
                    kept = [j for j in range(row + 1) if j < 4 or j > row - 8]
                    mine = torch.zeros_like(weights)
                    mine[kept] = weights[kept] / weights[kept].sum()
                    change = project @ ((mine - weights) @ values[: row + 1, head // 3])
                    errors[head] += change.square().sum() / stream[row].square().sum() / 8
            expected = errors.unflatten(0, (2, 3)).amax(-1)
            torch.testing.assert_close(found[:, 0, column], expected, rtol=1e-6, atol=0)


# Methods


def test_all_methods_keep_the_same_number_of_pairs() -> None:
    kv_heads = [2, 3, 1]
    plan, context = random_plan(kv_heads), random_context(kv_heads)
    for name, select in SELECTIONS.items():
        masks = [each.kept(torch.arange(64, 72), 72) for each in select(context, plan, np.random.default_rng(0))]
        assert [mask.shape for mask in masks] == [(count, 8, 72) for count in kv_heads], name
        pairs = torch.cat(masks).sum(-1).sum(0)
        assert pairs.tolist() == [plan.ours.counts.sum()] * 8, name


def test_what_methods_keep_is_what_their_papers_say() -> None:
    plan, context = KeptKeys(SETTINGS, [2], Allocation(np.array([20, 12]), np.array([0, 1]))), random_context([2])
    row = 66
    kept = {}
    for name, select in SELECTIONS.items():
        (choice,) = select(context, plan, np.random.default_rng(0))
        kept[name] = [set(mask.nonzero().flatten().tolist()) for mask in choice.kept(torch.tensor([row]), 70)[:, 0]]
    nearest = set(range(row - 7, row + 1))  # an eighth of the context is observed
    protected = {*range(4), *nearest}

    def best(numbers: torch.Tensor, head: int, count: int) -> set[int]:
        order = sorted(range(4, row - 7), key=lambda j: -float(numbers[head, j]) if j < 64 else 0)
        return protected | set(order[: count - 12])

    scores, small = context.scores[0], -context.norms[0]
    assert kept["streaming"] == [{*range(4), *range(row - 11, row + 1)}] * 2
    assert kept["snapkv-like"] == [best(scores, 0, 16), best(scores, 1, 16)]
    assert kept["key norm"] == [best(small, 0, 16), best(small, 1, 16)]
    assert kept["ours"] == [{*range(4), *range(row - 15, row + 1)}, best(scores, 1, 12)]
    assert kept["uniform"] == [{*range(4), *range(row - 11, row + 1)}, best(scores, 1, 16)]
    at_the_end = ((head, key) for head in (0, 1) for key in range(4, 56))
    pooled = sorted(at_the_end, key=lambda place: -float(scores[place]))[:8]
    extra = [sum(head == each for head, _ in pooled) for each in (0, 1)]
    assert kept["adakv-like"] == [best(scores, head, 12 + extra[head]) for head in (0, 1)]


def test_a_recall_task_repeats_passages_of_the_context() -> None:
    context = list(range(1000, 1064))
    task = recall_task(context, 9, np.random.default_rng(4))
    assert [len(piece) for piece in task.pieces] == [9] * 4
    assert all(piece == list(range(piece[0], piece[0] + 9)) for piece in task.pieces)
    assert [(piece[0] - 1000) // 16 for piece in task.pieces] == [(piece[-1] - 1000) // 16 for piece in task.pieces]
    assert [(piece[0] - 1000) // 16 for piece in task.pieces] == [0, 1, 2, 3]
    assert task.asked == [token for piece in task.pieces for token in piece[3:]]


# The comparison


def test_a_method_in_the_model_is_attention_with_a_mask() -> None:
    """The dense oracle: one forward over context and continuation with the mask written out."""
    model = build("llama-gqa").double()
    tokens = torch.randint(256, (72,), generator=torch.Generator().manual_seed(1))
    plan = KeptKeys(SETTINGS, [2, 2], Allocation(np.full(4, 16), np.array([0, 1, 0, 1])))
    everywhere = KeyBudget((HeadBudget(0, 0, "first_recent", first=1, recent=95), HeadBudget(0, 1, "all")), 64)
    table = compare_window(model, plan, everywhere, tokens.tolist(), 0).filter(task="text")
    rows, keys = torch.arange(72)[:, None], torch.arange(72)
    visible = keys <= rows
    kept = visible & ((rows < 64) | (keys < 4) | (keys > rows - 12))
    found = {}
    for name, mask in ((OWN, visible), ("streaming", kept)):
        hidden = torch.zeros(72, 72, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float64).min)
        with torch.no_grad():
            logits = model(tokens[None], attention_mask=hidden[None, None], use_cache=False).logits[0, 64:-1]
        found[name] = logits.log_softmax(-1)
    own, streaming = found[OWN], found["streaming"]
    lines = {line["method"]: line for line in table.to_dicts()}
    assert lines["streaming"]["kl"] == pytest.approx(float((own.exp() * (own - streaming)).sum(-1).mean()), rel=1e-9)
    loss = float(torch.nn.functional.nll_loss(streaming, tokens[65:]))
    assert lines["streaming"]["loss"] == pytest.approx(loss, rel=1e-9)
    assert lines["streaming"]["accuracy"] == float((streaming.argmax(-1) == tokens[65:]).double().mean())
    assert lines[OWN]["kl"] == 0
    assert abs(lines[APPLIED]["kl"]) < 1e-12


def test_paired_intervals_are_those_of_students_t() -> None:
    values = np.random.default_rng(0).normal(0.3, 1, 8)
    low, high = stats.t.interval(0.95, 7, values.mean(), stats.sem(values))
    assert paired_mean(values) == pytest.approx((values.mean(), low, high), rel=1e-3)
    assert not paired_mean(values[:2]).has_interval


def test_a_gain_is_claimed_only_where_the_interval_excludes_zero() -> None:
    kl = {OURS: [1.0, 2.0, 3.0], "a": [2.0, 3.1, 4.0], "b": [0.5, 2.4, 3.1], "c": [0.0, 1.1, 2.0]}
    lines = [
        {"task": task, "window": w, "method": name, "kept_pairs": 1, "all_pairs": 4, "kl": v, "loss": v, "accuracy": -v}
        for task in ("text", "recall")
        for name, values in kl.items()
        for w, v in enumerate(values)
    ]
    summary = {line["method"]: line for line in summarize(pl.DataFrame(lines))}
    for measure in ("kl", "loss", "accuracy"):
        verdicts = [summary[name][f"{measure}_gain"]["verdict"] for name in "abc"]
        assert verdicts == ["better", "no gain", "worse"]


# Files and the command


def test_files_for_other_programs(tmp_path: Path) -> None:
    heads = (
        HeadBudget(0, 0, "first_recent", first=4, recent=6),
        HeadBudget(0, 1, "top", share=0.5),
        HeadBudget(1, 0, "first_recent", first=2, recent=18),
        HeadBudget(1, 1, "all"),
    )
    made = KeyBudget(heads, 40)
    text, sizes = duo_attention(made)
    (tmp_path / "heads.tsv").write_text(text)
    full = np.loadtxt(tmp_path / "heads.tsv", dtype=float, delimiter="\t")  # as DuoAttention reads it
    assert full.tolist() == [[0, 1], [0, 1]]
    assert sizes == {"sink_size": 4, "recent_size": 18}
    assert [(line["mean_keys"], line["share"], line["stored_share"]) for line in layer_budgets(made)] == [
        (15.0, 0.375, 0.625),
        (30.0, 0.75, 0.75),
    ]


def test_heads_that_reach_beyond_their_window_are_listed() -> None:
    near = {"kind": "first_recent", "first": 4}
    heads = [HeadBudget(0, 0, recent=6, **near), HeadBudget(0, 1, recent=9, **near), HeadBudget(0, 2, "all")]
    table = pl.DataFrame({"layer": [0] * 6, "head": range(6), "reach": [5.0, 7.0, 9.0, 1.0, None, None]})
    (line,) = beyond_window(KeyBudget(tuple(heads), 40), table, "it")
    assert line == {"layer": 0, "kv_head": 0, "recent": 6, "reach": 7.0}
    unknown = table.with_columns(reach=pl.lit(None, pl.Float64))
    assert [one["reach"] for one in beyond_window(KeyBudget(tuple(heads), 40), unknown, "it")] == [None, None]
    with pytest.raises(InputError, match="not a prediction for the same model"):
        beyond_window(KeyBudget(tuple(heads), 40), table.with_columns(layer=pl.lit(3)), "it")


@pytest.fixture
def book(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(text * 2, encoding="utf-8")
    return path


def command(model: Path, book: Path, out: Path, *more: str) -> list[str]:
    sizes = {"--length": "64", "--windows": "3", "--calibration-windows": "2"}
    options = [word for name, value in sizes.items() if name not in more for word in (name, value)]
    return ["budget", str(model), "--text", str(book), "--out", str(out), *options, *more]


def test_a_share_above_one_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(InputError, match="a share of the keys above 0 and at most 1; received 2"):
        budget("no/such-model", "a text", keep=2)


def test_the_command_writes_its_files(
    model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(command(model_folder, book, out, "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == sorted([*FILES, "run.json"])
    made = load_budget(out)
    assert answer["budget"]["heads"] == json.loads((out / "budget.json").read_text())["heads"]
    assert made.share() == pytest.approx(0.25, abs=0.0025)
    stored = sum(head.stored(64) for head in made.heads)
    assert made.about["cache"] == {
        "tokens": 64,
        "bytes": 2 * 15 * 64 * 7 * 4,
        "bytes_with_budget": 2 * stored * 7 * 4,
    }
    table = pl.read_parquet(out / "comparison.parquet")
    assert set(table["window"]) == {0, 1, 2}
    shares = table.filter(pl.col("method") != OWN).select(pl.col("kept_pairs") / pl.col("all_pairs")).to_series()
    assert shares.to_list() == pytest.approx([0.25] * len(shares), rel=0.01)
    assert run(command(model_folder, book, out, "--keep", "1")) == 0  # a budget may be replaced
    assert {head.kind for head in load_budget(out).heads} == {"all"}


def test_the_same_seed_gives_the_same_numbers(tokenizer: Any, text: str) -> None:
    options: Any = {"length": 64, "windows": 3, "calibration_windows": 1, "tokenizer": tokenizer, "progress": False}
    one, same, other = (budget(build("llama-gqa"), text * 2, seed=seed, **options) for seed in (1, 1, 2))
    assert one.table.equals(same.table)
    assert one.budget.heads == other.budget.heads
    assert not one.table.equals(other.table)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--keep", "0"], "--keep takes a share of the keys above 0 and at most 1; received 0.0: use --keep 0.25"),
        (["--keep", "1.5"], "above 0 and at most 1; received 1.5"),
        (["--keep", "-0.1"], "above 0 and at most 1"),
        (["--keep", "nan"], "above 0 and at most 1"),
        (["--keep", "some"], "--keep"),
        (["--keep", "0.01"], "fewer than 5 for a head; use --keep 0.08 or more"),
        (["--length", "100"], "more than the 128 positions"),
        (["--windows", "2"], "--windows takes a whole number from 3 up"),
        (["--windows", "30"], "too few for 30 windows of 72 tokens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_settings_are_refused_in_one_line(
    more: list[str], reason: str, model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(model_folder, book, tmp_path / "out", *more)) == 2
    error = capsys.readouterr().err
    assert reason in " ".join(error.split())
    assert not (tmp_path / "out").exists()


def test_an_encoder_is_refused(tmp_path: Path, tokenizer: Any, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("bert").save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    assert run(command(tmp_path / "bert", book, tmp_path / "out")) == 2
    assert "is an encoder, which caches no keys" in " ".join(capsys.readouterr().err.split())


def test_a_folder_of_something_else_is_left_alone(
    model_folder: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (model_folder / "config.json").read_bytes()
    assert run(command(model_folder, book, model_folder)) == 2
    assert "holds something else than a budget" in " ".join(capsys.readouterr().err.split())
    assert (model_folder / "config.json").read_bytes() == before


def test_options_of_the_command_are_parameters_with_the_same_defaults() -> None:
    assert_parameters(running.budget, BudgetOptions(), Loading())
