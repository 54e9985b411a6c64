"""The verdict: which heads matter, why two numbers of a head differ, what to type next."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model
from models import build, byte_tokenizer
from token_lists import tokenized_list

from attnscope.capture import modules
from attnscope.capture.models import load_model
from attnscope.cli.app import app
from attnscope.diagnosis.findings import needs_finding, separability_finding
from attnscope.diagnosis.heads import participation_explained, percent
from attnscope.diagnosis.observing import HeadOutputs, sink_columns
from attnscope.diagnosis.result import Diagnosis
from attnscope.diagnosis.running import choose_windows, diagnose
from attnscope.diagnosis.situation import Situation, situation
from attnscope.diagnosis.states import STATES, Thresholds
from attnscope.diagnosis.verdict import next_step, ranked_heads, too_short, withdraw
from attnscope.diagnosis.verify import Trial
from attnscope.engine.blocks import LocalEngine
from attnscope.swapping import top_share

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9
OPTIONS: dict[str, Any] = {"length": 64, "windows": 2, "rows": 16}
AGREED = {"share": 0.9, "kappa": 0.85}


def head(state: str | None = "selective", **evidence: float) -> dict[str, Any]:
    return {"layer": 0, "head": 0, "state": state, "edge": None, "evidence": evidence}


def at(length: int = 512, **changes: Any) -> Situation:
    usual = Situation("model", "book.txt", (), length, 4, 100_000, 8192, causal=True, unverifiable=None)
    return replace(usual, **changes)


@pytest.fixture(scope="module")
def labeled() -> Diagnosis:
    return diagnose(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), **OPTIONS)


@pytest.fixture(scope="module")
def verified() -> dict[str, Any]:
    return diagnose(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), verify=True, **OPTIONS)


def changes_by_hand(module: Any, ids: list[int], layer: int, head: int, rows: range) -> list[float]:
    """|W_O (c - c_top)| / |h| of each row: GPT-2's weights, values and projection read off with hooks."""
    block = module.transformer.h[layer]
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        block.register_forward_pre_hook(lambda m, a: seen.update(stream=a[0][0])),
        block.attn.c_attn.register_forward_hook(lambda m, a, out: seen.update(qkv=out[0])),
    ]
    with torch.no_grad():
        module(input_ids=torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    place = slice(7 * head, 7 * head + 7)
    query, key, value = (part[:, place].double() for part in seen["qkv"].split(35, -1))
    projection = block.attn.c_proj.weight[place].detach().double()
    found = []
    for row in rows:
        weights = (query[row] @ key[: row + 1].T / 7**0.5).softmax(-1)
        top = weights.topk(int(np.ceil(0.05 * (row + 1)))).indices
        few = torch.zeros_like(weights)
        few[top] = weights[top] / weights[top].sum()
        change = (weights - few) @ value[: row + 1] @ projection
        found.append(float(change.norm() / seen["stream"][row].double().norm()))
    return found


def test_the_change_of_the_residual_stream_is_what_projecting_by_hand_gives(labeled: dict[str, Any]) -> None:
    module, tokenizer = build("gpt2"), byte_tokenizer()
    model = load_model(module, tokenizer=tokenizer)
    windows = choose_windows(
        LocalEngine(model), tokenized_list(tokenizer(TEXT)["input_ids"]), 64, 2, False, False
    ).labeled
    for entry in (labeled["heads"][3], labeled["heads"][11]):
        expected = [
            change
            for ids in windows
            for change in changes_by_hand(module, ids, entry["layer"], entry["head"], range(33, 64, 2))
        ]
        assert entry["evidence"]["residual_change"] == pytest.approx(np.mean(expected), rel=1e-4)


def test_without_a_test_heads_are_ranked_by_the_change_of_the_residual_stream(labeled: dict[str, Any]) -> None:
    changes = sorted((head["evidence"]["residual_change"] for head in labeled["heads"]), reverse=True)
    assert [one["residual_change"] for one in labeled["verdict"]["heads"]] == changes[:5]
    assert all(one["kl"] is None for one in labeled["verdict"]["heads"])


def test_a_test_ranks_heads_by_their_effect_one_at_a_time(verified: dict[str, Any]) -> None:
    tried = {(one["layer"], one["head"]): one["kl"] for one in verified["verification"]["heads"]}
    ranked = [(one["layer"], one["head"]) for one in verified["verdict"]["heads"]]
    assert ranked == sorted(tried, key=lambda head: -tried[head])[:5]
    module, tokenizer = build("gpt2"), byte_tokenizer()
    model = load_model(module, tokenizer=tokenizer)
    held_out = choose_windows(
        LocalEngine(model), tokenized_list(tokenizer(TEXT)["input_ids"]), 64, 2, False, True
    ).held_out
    assert tried[ranked[0]] == pytest.approx(Trial(model, held_out).kl({ranked[0]: top_share(0.05)}).mean())


@pytest.mark.parametrize("kind", ["labeled", "verified"])
def test_every_ranked_head_says_why_what_and_when_in_its_own_numbers(kind: str, request: Any) -> None:
    found = request.getfixturevalue(kind)
    by_name = {(head["layer"], head["head"]): head for head in found["heads"]}
    for one in found["verdict"]["heads"]:
        described = by_name[one["layer"], one["head"]]
        evidence = described["evidence"]
        assert one["name"] == f"L{one['layer']}H{one['head']}"
        assert one["state"] == described["state"]
        assert f"changes its output by {evidence['error_top_share']:.0%}" in one["why"]
        assert f"residual stream by {percent(evidence['residual_change'])}" in one["why"]
        assert f"{evidence['share_needed']:.0%} of those it sees" in one["why"]
        assert one["what"].startswith("Keep ")
        assert one["when"] is None or one["when"].startswith("Beyond 64 tokens it would need more: about ")
    assert found["verdict"]["heads_when"].startswith("When keys are dropped (")


def ranked(largest: float, kl: float | None = None) -> dict[str, Any]:
    """The ranking of three heads: without a test by the change of the residual stream, or with one by their KL."""
    evidence = {"error_top_share": 0.2, "tokens_needed": 9.0, "share_needed": 0.02, "max_weight": 0.5}
    evidence |= {"growth_exponent": None, "growth_exponent_low": None}
    heads = [head(residual_change=largest / (1 + i), **evidence) | {"head": i} for i in range(3)]
    tried = [{"layer": 0, "head": i, "kl": kl / (1 + i), "kl_windows": [kl]} for i in range(3)] if kl else []
    return ranked_heads(heads, at(), Thresholds(), {"heads": tried} if kl else None)


@pytest.mark.parametrize(("largest", "kl"), [(0.0011, None), (1e-5, 1.1e-4)])
def test_heads_that_change_something_are_called_those_that_matter_most(largest: float, kl: float | None) -> None:
    found = ranked(largest, kl)
    assert (found["heads_title"], found["heads_note"]) == ("The 3 heads that matter most", None)


@pytest.mark.parametrize(
    ("largest", "kl", "note"),
    [
        (4.2e-4, None, "None changes the residual stream by more than 0.042% of its size; below 0.1% "),
        (0.5, 2.1e-5, "None of the 3 heads tried changes the next-token distribution by more than a KL of 2.1e-05; "),
    ],
)
def test_where_no_single_head_matters_the_ranking_says_so(largest: float, kl: float | None, note: str) -> None:
    found = ranked(largest, kl)
    assert found["heads_title"] == "No single head matters much at 512 tokens"
    assert found["heads_note"].startswith(note)
    assert [one["name"] for one in found["heads"]] == ["L0H0", "L0H1", "L0H2"]


@pytest.mark.parametrize(("marked", "most"), [(1, False), (3, True)])
def test_the_papers_rule_is_called_useless_only_where_it_marks_most_heads(marked: int, most: bool) -> None:
    numbers = {"separability": 0.7, "separability_low": 0.6, "null_uniform": 0.1, "null_random": 0.1}
    heads = [head(**numbers, separability_without_sink=0.7, paper_saturated=i < marked) for i in range(4)]
    found = separability_finding(heads, Thresholds())
    assert found
    assert ("decides nothing" in found["advice"]) == most


@pytest.mark.parametrize(
    ("intervals", "advice"),
    [
        ([(0.0, 0.2), (0.1, 0.3)], "For every head a number of keys that grows like the square root"),
        ([(0.6, 0.9), (0.1, 0.3)], "For the heads listed here, keep a share .* For 1 head a number of keys that grows"),
        ([(0.6, 0.9), (0.3, 0.7)], "For the heads listed here, keep a share .* For 1 head these lengths do not tell"),
        ([None, None], "For these heads these lengths do not tell"),
    ],
    ids=["slower", "both", "undecided", "not measured"],
)
def test_what_to_keep_as_the_text_grows_follows_from_the_intervals(intervals: list[Any], advice: str) -> None:
    ends = [interval or (None, None) for interval in intervals]
    numbers = [{"growth_exponent": low, "growth_exponent_low": low, "growth_exponent_high": high} for low, high in ends]
    heads = [head(tokens_needed=9.0, **number) for number in numbers]
    assert re.match(advice, needs_finding(heads, 512, Thresholds())["advice"])


def test_a_title_and_a_note_are_shown_everywhere(labeled: Diagnosis) -> None:
    words = {"heads_title": "No single head matters much", "heads_note": "None changes it by more than a little."}
    found = Diagnosis(labeled.content | {"verdict": labeled["verdict"] | words})
    assert words["heads_title"] in repr(found)
    for shown in (found._repr_html_(), str(found.summary())):
        assert all(part in shown for part in words.values())
        assert "matter most" not in shown


def test_a_model_that_hides_its_projection_is_ranked_by_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "OUTPUT_PROJECTIONS", ())
    found = diagnose(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), **OPTIONS)
    assert all(head["evidence"]["residual_change"] is None for head in found["heads"])
    assert any("residual stream is not measured" in warning for warning in found["verdict"]["warnings"])
    errors = sorted((head["evidence"]["error_top_share"] for head in found["heads"]), reverse=True)
    by_name = {(head["layer"], head["head"]): head["evidence"]["error_top_share"] for head in found["heads"]}
    assert [by_name[one["layer"], one["head"]] for one in found["verdict"]["heads"]] == errors[:5]
    assert "residual" not in json.dumps(found["verdict"]["ranked_by"])


def test_a_projection_that_returns_more_than_its_output_is_not_used() -> None:
    """I-BERT's gives a scale too: a diagnosis ended in a TypeError."""
    found = diagnose(tiny_model("ibert"), TEXT, tokenizer=byte_tokenizer(special=True), length=32, windows=2, rows=4)
    assert all(head["evidence"]["residual_change"] is None for head in found["heads"])


def test_the_first_token_is_measured_by_what_it_contributes() -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.rand(1, 1, 11, generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    values = torch.randn(1, 11, 5, generator=generator, dtype=torch.float64)
    first = torch.arange(11)[None, None] == 0
    found = sink_columns(HeadOutputs.of(weights, values), first)
    alpha, x = weights[0, 0].tolist(), values[0].tolist()
    output = [sum(a * row[d] for a, row in zip(alpha, x, strict=True)) for d in range(5)]
    size = sum(value**2 for value in output) ** 0.5
    part = alpha[0] * sum(value**2 for value in x[0]) ** 0.5
    assert found["sink_contribution"].item() == pytest.approx(part / size)
    rest = [a / (1 - alpha[0]) for a in alpha[1:]]
    assert found["participation_without_sink"].item() == pytest.approx(1 / sum(a**2 for a in rest))


def test_participation_and_tokens_needed_are_explained_where_they_differ() -> None:
    sink = {"sink_weight": 0.45, "max_weight": 0.45, "sink_contribution": 0.018, "participation_without_sink": 118.0}
    words = participation_explained({"participation": 4.9, "tokens_needed": 148.0, **sink}, 0.1)
    assert words is not None
    for part in (
        "is 4.9 and tokens needed 148",
        "takes 45% of the weight",
        "almost nothing",
        "1.8%",
        "participation is 118",
    ):
        assert part in words
    words = participation_explained(
        {"participation": 4.9, "tokens_needed": 148.0, **sink, "sink_contribution": 0.6}, 0.1
    )
    assert words is not None
    assert "a part of 60% of the output's size" in words
    assert "nothing to" not in words
    few = {"sink_weight": 0.02, "max_weight": 0.4, "sink_contribution": 0.02, "participation_without_sink": 5.0}
    words = participation_explained({"participation": 4.9, "tokens_needed": 148.0, **few}, 0.1)
    assert words is not None
    assert "max weight 40%" in words
    assert "first token" not in words
    words = participation_explained({"participation": 200.0, "tokens_needed": 3.0, **few}, 0.1)
    assert words is not None
    assert "average to nearly the same" in words
    assert participation_explained({"participation": 40.0, "tokens_needed": 148.0, **sink}, 0.1) is None
    assert participation_explained({"participation": None, "tokens_needed": 148.0, **sink}, 0.1) is None


def test_windows_too_short_to_tell_are_warned_of_with_a_length_that_the_model_takes() -> None:
    limits = Thresholds()
    assert too_short(at(400), limits) is None
    warned = too_short(at(128), limits)
    assert warned is not None
    assert "5% of 128 keys are 6" in warned.sentence
    assert "at least 400 tokens" in warned.advice
    nearer = too_short(at(128, positions=256), limits)
    assert nearer is not None
    assert "at least 256 tokens" in nearer.advice
    longest = too_short(at(128, positions=128), limits)
    assert longest is not None
    assert "at least" not in longest.advice
    assert too_short(at(128), Thresholds(top_share=0.2)) is None


@pytest.mark.parametrize(
    ("where", "agreed", "tested", "state", "expected"),
    [
        pytest.param(at(128), {}, False, "broad", "--length 400 --diagnose", id="too short"),
        pytest.param(at(128, positions=128), {}, False, "broad", "--verify", id="the model takes no longer input"),
        pytest.param(at(128, tokens=500), {}, False, "broad", "--text LONGER_TEXT.txt", id="the text is too short"),
        pytest.param(at(), {"kappa": 0.5}, False, "broad", "--diagnose --windows 8", id="labels disagree"),
        pytest.param(at(tokens=2048), {"kappa": 0.5}, False, "broad", "LONGER_TEXT.txt", id="no room for windows"),
        pytest.param(at(), {}, False, "broad", "--verify", id="not tested"),
        pytest.param(at(unverifiable="it cannot be"), {}, False, "broad", "--normalizer", id="cannot be tested"),
        pytest.param(at(), {}, True, "broad", "--verify --normalizer ssmax,topk:k=64", id="broad heads"),
        pytest.param(at(700), {}, True, "selective", "--length 1400 --diagnose", id="no broad head"),
    ],
)
def test_the_next_command_fits_the_result(
    where: Situation, agreed: dict[str, float], tested: bool, state: str, expected: str
) -> None:
    verification = {"predictions": [{"state": "broad", "held": True}]} if tested else None
    step = next_step([head(state)], AGREED | agreed, where, Thresholds(), verification)
    command = step["command"]
    assert expected in command
    if where.unverifiable:
        assert "--verify" not in command
    app.parse_args(shlex.split(command)[1:], print_error=False, exit_on_error=False)


def test_a_command_names_the_model_and_the_options_it_was_run_with() -> None:
    module = load_model(build("gpt2"), tokenizer=byte_tokenizer())
    tokens = byte_tokenizer()(TEXT)["input_ids"]
    chosen = choose_windows(LocalEngine(module), tokenized_list(tokens, "my book.txt"), 64, 2, False, False)
    where = situation(module, print, chosen, Thresholds(local=0.2))
    command = where.command("--verify")
    assert command == "attnscope scan MODEL --text 'my book.txt' --length 64 --threshold local=0.2 --verify"
    sample = replace(at(1024), model=None, text=None)
    assert sample.command("--verify") == "attnscope scan --verify"


def test_a_call_names_the_model_and_the_text_that_were_given() -> None:
    own = replace(at(1024), model="MODEL", text="book.txt")
    sample = replace(own, model=None, text=None)
    assert own.call("diagnose", "verify=True") == "attnscope.diagnose(model, text, verify=True)"
    assert replace(own, text=None).call("diagnose", "verify=True") == "attnscope.diagnose(model, verify=True)"
    assert replace(own, model=None).call("diagnose") == "attnscope.diagnose(text=text)"
    assert sample.call("diagnose", "verify=True") == "attnscope.diagnose(verify=True)"
    assert sample.call("diagnose", text="longer_text") == "attnscope.diagnose(text=longer_text)"


@pytest.mark.parametrize(
    ("family", "kernel", "special"), [("bert", None, True), ("gpt-oss-sinks", "eager", False)], ids=["encoder", "sinks"]
)
def test_a_model_that_cannot_be_tested_is_never_told_to(family: str, kernel: str | None, special: bool) -> None:
    module = build(family) if kernel is None else build(family, kernel)
    found = diagnose(module, TEXT, tokenizer=byte_tokenizer(special=special), length=32, windows=2, rows=4)
    assert "--verify" not in json.dumps(dict(found))
    assert "cannot be tested inside the model" in found["verdict"]["trust"]
    if family == "bert":
        assert "key cache" not in json.dumps(dict(found))


def test_a_withdrawn_label_is_not_the_edge_of_another_head() -> None:
    heads = [{"state": "local", "edge": "broad", "sureness": 0.7, "state_share": 0.6, "withdrawn": None}]
    refuted = {"predictions": [{"state": "broad", "held": False}]}
    (found,) = withdraw(heads, refuted)
    assert (found["state"], found["edge"]) == ("local", "no label")


def test_no_ranked_head_carries_a_withdrawn_label(verified: dict[str, Any]) -> None:
    withdrawn = {one["state"] for one in verified["verdict"]["withdrawn"]}
    assert withdrawn
    for one in verified["verdict"]["heads"]:
        assert one["state"] not in withdrawn
        assert not any(state in f"{one['why']} {one['what']} {one['when']}" for state in withdrawn)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (0.0003, "less than 0.1%"), (0.004, "0.4%"), (0.01, "1%"), (0.126, "13%"), (1, "100%")],
)
def test_a_small_share_is_never_written_as_none(share: float, text: str) -> None:
    assert percent(share) == text


def test_a_head_whose_gate_is_shut_is_idle_and_adds_nothing() -> None:
    """The gate of one head of a Qwen 3.5 model is forced shut: before, it was as broad as when it is open."""
    model = tiny_model("qwen3_5_text")
    module = model.base_model.layers[1].self_attn
    dims = module.head_dim

    def shut(projection: torch.nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        given = args[0].clone()
        given[..., dims : 2 * dims] = 0
        return (given,)

    options = {"tokenizer": byte_tokenizer(), "length": 64, "windows": 2, "rows": 8}
    opened = diagnose(model, TEXT, **options)["heads"]
    hook = module.o_proj.register_forward_pre_hook(shut)
    closed = diagnose(model, TEXT, **options)["heads"]
    hook.remove()
    assert closed[1]["evidence"]["residual_share"] == 0 == closed[1]["evidence"]["gate"]
    assert closed[1]["evidence"]["gate_shut"] == 1
    assert STATES[closed[1]["state"]].group.name == "idle"
    assert opened[1]["evidence"]["residual_share"] > 0
    for head in (0, 2, 3):
        assert closed[head]["evidence"] == opened[head]["evidence"]
