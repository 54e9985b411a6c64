"""Predictions tried inside a model, and a diagnosis end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import build, byte_tokenizer
from token_lists import tokenized_list

import attnscope
from attnscope.capture.models import load_model
from attnscope.capture.tokens import WindowChoice, window_tokens
from attnscope.cli import run
from attnscope.diagnosis.running import choose_windows, diagnose
from attnscope.diagnosis.states import STATES, Thresholds
from attnscope.diagnosis.verify import Trial, judged, top_shares, verify
from attnscope.engine.blocks import LocalEngine
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import Softmax
from attnscope.swapping import first_key, top_share


def changed_by_hand(model: Any, ids: list[int], layer: int, head: int) -> torch.Tensor:
    """GPT-2's logits when one head outputs the first key's value, set at the input of its output projection."""
    block = model.transformer.h[layer].attn
    values: list[torch.Tensor] = []
    place = slice(7 * head, 7 * head + 7)
    keep = block.c_attn.register_forward_hook(lambda m, a, out: values.append(out[0, 0, 70:][place]))

    def put(module: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        outputs = args[0].clone()
        outputs[..., place] = values[-1]
        return (outputs,)

    change = block.c_proj.register_forward_pre_hook(put)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    keep.remove()
    change.remove()
    return logits


def test_a_trial_measures_what_a_change_by_hand_does(text: str) -> None:
    module, tokenizer = build("gpt2"), byte_tokenizer()
    ids = tokenizer(text)["input_ids"][:41]
    trial = Trial(load_model(module, tokenizer=tokenizer), [ids])
    with torch.no_grad():
        own = module(input_ids=torch.tensor([ids])).logits[0]
    other = changed_by_hand(module, ids, layer=1, head=3)
    p, q = (torch.distributions.Categorical(logits=z[20:].double()) for z in (own, other))
    expected = float(torch.distributions.kl_divergence(p, q).mean())
    assert expected > 1e-4
    assert trial.kl({(1, 3): first_key}).tolist() == pytest.approx([expected], rel=1e-3)
    assert trial.kl({}).tolist() == [0]
    assert trial.kl({(1, 3): top_share(1.0)})[0] < 1e-9


def test_every_head_keeps_its_own_share_of_the_largest_logits() -> None:
    logits = torch.randn(1, 2, 3, 11, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    visible = torch.arange(11) <= torch.tensor([0, 6, 10])[:, None]
    shown = logits.masked_fill(~visible, -torch.inf)
    weights = top_shares(torch.tensor([0.3, 1.0]))(shown, visible.expand_as(logits))
    for head, row, count in ((0, 0, 1), (0, 1, 3), (0, 2, 4), (1, 0, 1), (1, 1, 7), (1, 2, 11)):
        z = shown[0, head, row].tolist()
        top = sorted(range(11), key=lambda i: -z[i])[:count]
        expected = torch.zeros(11, dtype=torch.float64)
        expected[top] = torch.tensor([z[i] for i in top], dtype=torch.float64).softmax(-1)
        torch.testing.assert_close(weights[0, head, row], expected)


def test_another_normalizer_is_tried_in_every_head(text: str) -> None:
    module, tokenizer = build("gpt2"), byte_tokenizer()
    ids = tokenizer(text)["input_ids"][:41]
    model = load_model(module, tokenizer=tokenizer)
    checked = verify(model, lambda _: None, [ids], {}, Thresholds(), 0, (), {"colder": Softmax(temperature=0.5)})
    with torch.no_grad():
        own = module(input_ids=torch.tensor([ids])).logits[0]
        for block in module.transformer.h:
            block.attn.c_attn.weight[:, :35] *= 2  # queries twice as long are logits at half the temperature
            block.attn.c_attn.bias[:35] *= 2
        other = module(input_ids=torch.tensor([ids])).logits[0]
    p, q = (torch.distributions.Categorical(logits=z[20:].double()) for z in (own, other))
    expected = float(torch.distributions.kl_divergence(p, q).mean())
    assert checked["normalizers"]["colder"] == pytest.approx(expected, rel=1e-3)
    assert checked["untested"] == list(STATES)


def by_draw(*windows: float) -> np.ndarray[Any, Any]:
    """KL divergences of two draws whose means over draws are these, one for each window."""
    return np.array([[0.8 * kl for kl in windows], [1.2 * kl for kl in windows]])


def test_a_prediction_holds_when_random_heads_suffer_more_and_for_broad_heads_less() -> None:
    limits = Thresholds()
    enough = judged(STATES["local"], 4, [4, 4], by_draw(0.1), by_draw(0.5), limits)
    assert (enough["held"], enough["ratio"], enough["kl_random"]) == (True, pytest.approx(5.0), pytest.approx(0.5))
    assert "5.0 times (one window) as much as in 4 local heads (KL 0.5 against 0.1)" in enough["sentence"]
    assert not judged(STATES["local"], 4, [4, 4], by_draw(0.4), by_draw(0.5), limits)["held"]
    broad = judged(STATES["broad"], 4, [4, 4], by_draw(2.0), by_draw(0.5), limits)
    assert (broad["held"], broad["ratio"]) == (True, pytest.approx(4.0))
    part = judged(STATES["local"], 9, [4, 4], by_draw(0.1), by_draw(0.5), limits)
    assert "4 of the 9 local heads" in part["sentence"]
    wrong = judged(STATES["broad"], 4, [4], by_draw(0.1), by_draw(0.5), limits)
    assert not wrong["held"]
    assert "0.2 times (one window)" in wrong["sentence"]


def test_a_prediction_states_its_ratio_over_windows_and_no_window_may_show_the_opposite() -> None:
    limits = Thresholds()
    steady = judged(STATES["local"], 4, [4, 4], by_draw(0.1, 0.1), by_draw(0.2, 0.6), limits)
    assert (steady["held"], steady["ratio"]) == (True, pytest.approx(4.0))
    assert steady["ratio_windows"] == pytest.approx([2.0, 6.0])
    assert "4.0 times (2.0 to 6.0 over 2 windows)" in steady["sentence"]
    mixed = judged(STATES["local"], 4, [4, 4], by_draw(0.1, 0.1), by_draw(0.09, 0.9), limits)
    assert (mixed["held"], mixed["ratio"], mixed["ratio_low"]) == (False, pytest.approx(4.95), pytest.approx(0.9))
    short = judged(STATES["broad"], 4, [4, 4], by_draw(0.17, 0.19), by_draw(0.1, 0.1), limits)
    assert not short["held"]
    assert "1.8 times (1.7 to 1.9 over 2 windows) as much" in short["sentence"]
    assert "A label needs 2 times" in short["sentence"]
    assert judged(STATES["local"], 1, [1], by_draw(0.0), by_draw(0.1), limits)["ratio"] is None  # infinite
    nothing = judged(STATES["local"], 1, [1], by_draw(0.0), by_draw(0.0), limits)
    assert (nothing["held"], nothing["ratio"]) == (False, 1.0)


def test_windows_are_held_out_evenly_between_those_that_give_the_labels() -> None:
    model = load_model(build("gpt2"), tokenizer=byte_tokenizer())

    def firsts(tokens: int, windows: int | None, verify: bool = True) -> tuple[list[int], list[int]]:
        chosen = choose_windows(LocalEngine(model), tokenized_list(list(range(tokens))), 10, windows, False, verify)
        return [window[0] for window in chosen.labeled], [window[0] for window in chosen.held_out]

    assert firsts(80, None) == ([0, 20, 40, 60], [10, 30, 50, 70])
    assert firsts(800, None) == ([45, 245, 445, 645], [145, 345, 545, 745])
    assert firsts(50, 4) == ([0, 10, 30, 40], [20])
    assert firsts(30, None) == ([0, 20], [10])
    assert firsts(40, None) == ([0, 20], [10, 30])
    assert firsts(40, None, verify=False) == ([0, 10, 20, 30], [])


@pytest.fixture(scope="module")
def verified() -> dict[str, Any]:
    text = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9
    return diagnose(build("gpt2"), text, tokenizer=byte_tokenizer(), length=64, windows=2, rows=16, verify=True)


def test_findings_keep_to_their_contract(verified: dict[str, Any]) -> None:
    assert json.loads(json.dumps(dict(verified), allow_nan=False)) == verified
    assert verified["schema"] == 2
    assert [(h["layer"], h["head"]) for h in verified["heads"]] == [(a, b) for a in range(3) for b in range(5)]
    for head in verified["heads"]:
        assert (head["state"] or head["withdrawn"]) in STATES
        assert all(0 <= head[name] <= 1 for name in ("off_share", "over_sharp_share"))
        if head["state"] is not None:
            assert all(0 <= head[name] <= 1 for name in ("sureness", "state_share"))
            assert (head["edge"] is None) == (head["sureness"] >= 0.95)
        evidence = head["evidence"]
        assert evidence["separability_low"] <= evidence["separability"] <= evidence["separability_high"]
        assert 1 <= evidence["tokens_needed"] <= 64
        assert evidence["growth_exponent_low"] <= evidence["growth_exponent_high"]
    assert set(verified["agreement"]) == {"share", "kappa", "windows", "sure_heads", "sure_share"}
    assert [finding["rank"] for finding in verified["findings"]] == list(range(1, len(verified["findings"]) + 1))
    order = ["act", "watch", "note"]
    severities = [order.index(finding["severity"]) for finding in verified["findings"]]
    assert severities == sorted(severities)
    for finding in verified["findings"]:
        assert finding["sentence"]
        assert finding["advice"]
        assert all(len(place) == 2 for place in finding["heads"])


def test_the_verdict_counts_every_head_once(verified: dict[str, Any]) -> None:
    verdict = verified["verdict"]
    states = [head["state"] for head in verified["heads"]]
    for group in verdict["groups"]:
        assert group["heads"] == sum(state in group["states"] for state in states)
    assert sum(one["heads"] for one in (*verdict["groups"], *verdict["withdrawn"])) == len(states)
    assert verdict["headline"].startswith(
        f"{states.count('broad')} of" if "broad" in states else ("No head", "None of the 15")
    )


def test_every_state_is_tried_or_said_to_be_untested(verified: dict[str, Any]) -> None:
    checked = verified["verification"]
    assert sorted([p["state"] for p in checked["predictions"]] + checked["untested"]) == sorted(STATES)
    for prediction in checked["predictions"]:
        place = "state" if prediction["held"] else "withdrawn"
        carrying = sum(head[place] == prediction["state"] for head in verified["heads"])
        assert prediction["heads"] == carrying
        assert all(drawn <= carrying for drawn in prediction["random_heads"])
        assert len(prediction["kl_state_draws"]) == (1 if prediction["random_heads"][0] == carrying else 3)
        assert prediction["kl_random"] == pytest.approx(np.mean(prediction["kl_random_draws"]))
    for budget in checked["budgets"]:
        assert 0 < budget["share"] <= 1
        assert budget["kl_by_need"] >= 0
        assert budget["kl_uniform"] >= 0


def test_a_diagnosis_is_repeatable_and_leaves_the_model_as_it_was(text: str) -> None:
    model = build("llama-gqa").train()
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "length": 48, "windows": 2, "rows": 8, "verify": True}
    first, second = (diagnose(model, text, **options) for _ in range(2))
    assert first == second
    assert model.training
    assert not any("replacement" in name for name, _ in model.named_modules())


def test_models_that_cannot_be_verified_are_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="next-token"):
        diagnose(build("bert"), text, tokenizer=byte_tokenizer(special=True), length=32, verify=True)
    with pytest.raises(ModelError, match="sink logits"):
        diagnose(build("gpt-oss-sinks", "eager"), text, tokenizer=byte_tokenizer(), length=32, verify=True)
    found = diagnose(build("gpt-oss-sinks", "eager"), text, tokenizer=byte_tokenizer(), length=32, windows=2, rows=4)
    assert len(found["heads"]) == 12


def test_windows_lie_evenly_over_the_text_and_do_not_overlap() -> None:
    model = load_model(build("gpt2"), tokenizer=byte_tokenizer())
    text, even = tokenized_list(list(range(100))), WindowChoice("even")
    cut = window_tokens(model, text, 20, 5, False, even)[:].tolist()
    assert [(w[0], w[-1]) for w in cut] == [(0, 19), (20, 39), (40, 59), (60, 79), (80, 99)]
    assert [w[0] for w in window_tokens(model, text, 20, 2, False, even)[:].tolist()] == [15, 65]
    with_begin = window_tokens(model, text, 20, 2, True, even)[:].tolist()
    assert all(w[0] == 256 and len(w) == 20 for w in with_begin)


def test_a_head_with_nan_is_named_and_the_others_are_diagnosed(text: str) -> None:
    model = build("llama-mqa")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[14:28] = torch.nan
    found = diagnose(model, text, tokenizer=byte_tokenizer(), length=32, windows=2, rows=4)
    assert [(head["layer"], head["head"]) for head in found["skipped_heads"]] == [(1, 1)]
    assert len(found["heads"]) == 9


def test_the_command_line_writes_and_prints_findings(
    model_folder: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    command = ["scan", str(model_folder), "--text", str(book), "--length", "64", "--out", str(out)]
    assert run([*command, "--verify", "--threshold", "local=0.2", "--normalizer", "sparsemax", "--verbose"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "Map: ",
        "Verdict: ",
        "selective",
        "Labels tested inside the model",
        "What if: sparsemax",
        "findings.json",
    ):
        assert part in printed
    stored = json.loads((out / "findings.json").read_text("utf-8"))
    assert stored["thresholds"]["local"] == 0.2
    assert attnscope.ScanResult.load(out).findings == stored
    assert run([*command, "--diagnose", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["findings"]["verification"] is None
    assert Path(answer["files"]["findings.json"]).is_file()
    assert run([*command, "--json"]) == 0  # findings of an older run do not stay beside new tables
    assert "findings" not in json.loads(capsys.readouterr().out)
    assert not (out / "findings.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--diagnose", "--threshold", "lokal=1"], "lokal=1"),
        (["--diagnose", "--threshold", "top_share=3"], "share below 1"),
        (["--threshold", "local=0.2"], "add --diagnose"),
        (["--diagnose", "--length", "400"], "too few"),
    ],
)
def test_bad_wishes_are_one_line_and_exit_code_2(
    options: list[str], message: str, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.txt"
    book.write_text("not much of a text " * 9, encoding="utf-8")
    length = [] if "--length" in options else ["--length", "32"]
    options = ["--length", "120", *options[:1]] if "--length" in options else options
    assert run(["scan", str(model_folder), "--text", str(book), "--out", str(tmp_path / "o"), *length, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "o").exists()
