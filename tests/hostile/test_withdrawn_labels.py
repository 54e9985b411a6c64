"""Labels that did not hold inside the model: no reader of a diagnosis shows them as if they did."""

from __future__ import annotations

import copy
import io
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from models import build, byte_tokenizer
from rich.console import Console

from attnscope.capture.models import load_model
from attnscope.diagnosis.heads import Labels
from attnscope.diagnosis.result import Diagnosis
from attnscope.diagnosis.running import diagnose
from attnscope.diagnosis.states import NO_LABEL, STATES, Thresholds
from attnscope.diagnosis.verify import verify
from attnscope.errors import ModelError
from attnscope.scanning import ScanResult, scan
from attnscope.scanning.page_data import page_data

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9
REFUTED, HELD = "broad", "constant"  # of this model, with these limits


@pytest.fixture(scope="module")
def result() -> ScanResult:
    return scan(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), length=64, top_n=[5], normalizers=["sparsemax"])


@pytest.fixture(scope="module")
def labeled(result: ScanResult) -> dict[str, Any]:
    return diagnosed(result, verify=False)


@pytest.fixture(scope="module")
def verified(result: ScanResult) -> dict[str, Any]:
    return diagnosed(result, verify=True)


def diagnosed(result: ScanResult, verify: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"length": 64, "windows": 2, "rows": 16, "thresholds": Thresholds(held_ratio=1.3)}
    return diagnose(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), what_if=result.rows, verify=verify, **options)


def heads_of(found: dict[str, Any], state: str) -> list[list[int]]:
    return [[head["layer"], head["head"]] for head in found["heads"] if head["state"] == state]


def printed(found: dict[str, Any]) -> str:
    console = Console(record=True, width=500, file=io.StringIO())
    Diagnosis(found).print_summary(console)
    return console.export_text()


def test_the_model_refutes_one_label_and_confirms_another(labeled: dict[str, Any], verified: dict[str, Any]) -> None:
    outcomes = {one["state"]: one["held"] for one in verified["verification"]["predictions"]}
    assert outcomes == {REFUTED: False, HELD: True}
    assert heads_of(labeled, REFUTED)
    assert heads_of(verified, HELD) == heads_of(labeled, HELD) != []


def test_heads_lose_a_refuted_label_and_say_which(labeled: dict[str, Any], verified: dict[str, Any]) -> None:
    """Fault 31."""
    without = [head for head in verified["heads"] if head["state"] is None]
    assert [[head["layer"], head["head"]] for head in without] == heads_of(labeled, REFUTED)
    for head in without:
        assert head["withdrawn"] == REFUTED
        assert head["sureness"] is head["edge"] is head["state_share"] is None
    assert all(head["withdrawn"] is None for head in verified["heads"] if head["state"])


def test_no_finding_counts_or_advises_on_a_refuted_label(labeled: dict[str, Any], verified: dict[str, Any]) -> None:
    """Fault 31."""
    template = STATES[REFUTED].finding
    assert template is not None
    assert template.id in {finding["id"] for finding in labeled["findings"]}
    assert template.id not in {finding["id"] for finding in verified["findings"]}
    spoken_of = {finding["id"] for finding in verified["findings"] if REFUTED in json.dumps(finding)}
    assert spoken_of <= {"predictions", "labels"}  # where it says that the label did not hold, and counts none
    labels = next(finding for finding in verified["findings"] if finding["id"] == "labels")
    assert labels["evidence"]["counts"][REFUTED] == 0
    assert f"{len(heads_of(labeled, REFUTED))} without a label" in labels["sentence"]
    assert REFUTED not in labels["sentence"]
    what_if = next(finding for finding in verified["findings"] if finding["id"] == "what-if:sparsemax")
    assert "unlabeled" in what_if["evidence"]["states"]
    assert "many-tokens" not in {group["name"] for group in verified["verdict"]["groups"]}


def test_what_was_withdrawn_states_the_ratio_and_its_range(verified: dict[str, Any]) -> None:
    """Fault 31."""
    prediction = next(one for one in verified["verification"]["predictions"] if not one["held"])
    windows = [a / b for a, b in zip(prediction["kl_state_windows"], prediction["kl_random_windows"], strict=True)]
    ratio = sum(prediction["kl_state_windows"]) / sum(prediction["kl_random_windows"])
    words = f"{ratio:.1f} times ({min(windows):.1f} to {max(windows):.1f} over {len(windows)} windows)"
    assert len(windows) > 1
    assert "did not hold inside the model" in verified["verdict"]["headline"]
    assert words in verified["verdict"]["withdrawn"][0]["sentence"]
    assert words in prediction["sentence"]
    assert words in next(finding for finding in verified["findings"] if finding["id"] == "predictions")["sentence"]


def test_the_terminal_marks_heads_without_a_label(labeled: dict[str, Any], verified: dict[str, Any]) -> None:
    """Fault 31."""
    mark = STATES[REFUTED].mark
    count = len(heads_of(labeled, REFUTED))
    assert f"{mark}  {REFUTED}" in printed(labeled)
    shown = printed(verified)
    assert f"{mark}  {REFUTED}" not in shown
    assert re.search(rf"x  {NO_LABEL} +{count}  {REFUTED} did not hold inside the model", shown)
    rows = [line.split(maxsplit=1)[1] for line in shown.splitlines() if re.match(r" +L\d+ ", line)]
    assert len(rows) == 3
    assert sum(line.count("x") for line in rows) == count
    assert not any(mark in line for line in rows)


def test_the_page_has_no_refuted_state(result: ScanResult, verified: dict[str, Any]) -> None:
    """Fault 31."""
    data = page_data(result.overview, verified)
    assert REFUTED not in data["states"]
    assert HELD in data["states"]
    assert data["states"][NO_LABEL]["mark"] == "x"


def test_a_label_of_whole_layers_is_untested_and_not_confirmed() -> None:
    """Without other heads in its layers to compare with, two effects of zero are no evidence."""
    module, tokenizer = build("gpt2"), byte_tokenizer()
    states = {(layer, head): "local" if layer == 1 else "selective" for layer in range(3) for head in range(5)}
    labels = {head: Labels(state, {}, 1.0, None, 1.0, 0.0, 0.0, np.zeros(7)) for head, state in states.items()}
    model = load_model(module, tokenizer=tokenizer)
    checked = verify(model, lambda _: None, [tokenizer(TEXT)["input_ids"][:32]], labels, Thresholds(), 0)
    assert checked["predictions"] == []
    assert checked["untested"] == list(STATES)


def test_a_model_without_finite_logits_is_not_verified() -> None:
    """Fault 11. NaN compares as neither more nor less: no label may hold or fail by it."""
    model = build("llama-mqa")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[14:28] = torch.nan
    with pytest.raises(ModelError, match="not finite; leave verify out"):
        diagnose(model, TEXT, tokenizer=byte_tokenizer(), length=32, windows=2, rows=4, verify=True)


def test_findings_of_older_runs_are_still_shown(result: ScanResult, labeled: dict[str, Any]) -> None:
    older = copy.deepcopy(labeled)
    del older["verdict"]["withdrawn"]
    for head in older["heads"]:
        del head["withdrawn"]
    assert f"{STATES[REFUTED].mark}  {REFUTED}" in printed(older)
    data = page_data(result.overview, older)
    assert list(data["states"]) == ["broad", "sink-bound", "constant", "local", "selective"]
