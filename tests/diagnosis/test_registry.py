"""The registry of states: what is declared there reaches every reader, and nobody else knows the names."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import build, byte_tokenizer
from rich.console import Console

from attnscope.diagnosis.heads import state_of
from attnscope.diagnosis.result import Diagnosis, state_looks, state_rules
from attnscope.diagnosis.running import diagnose
from attnscope.diagnosis.states import GROUPS, MANY_TOKENS, RULES, STATES, TOP_SHARE, Finding, State, Thresholds
from attnscope.errors import OutputError
from attnscope.scanning.overview import explained_evidence
from attnscope.store import tables

HOPELESS = State(
    "hopeless",
    TOP_SHARE,
    "broad",
    MANY_TOKENS,
    part="everything",
    color="#000000",
    mark="H",
    short="not even the top {top} help",
    sentence="No rule helps.",
    enough=False,
    finding=Finding("hopeless-heads", "Hopeless heads", "{count} of {total} need{s} everything.", "Keep {top}."),
)


@pytest.fixture
def one_more_state() -> Iterator[None]:
    """One more state, tried last but two, which takes the heads of the next."""
    declared = dict(STATES)
    *first, broad, last = declared.values()
    STATES.clear()
    STATES.update({state.name: state for state in (*first, HOPELESS, broad, last)})
    yield
    STATES.clear()
    STATES.update(declared)


@pytest.mark.usefixtures("one_more_state")
def test_a_new_state_is_one_object(text: str) -> None:
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "length": 64, "windows": 2, "rows": 16}
    found = diagnose(build("gpt2"), text, **options)
    heads = [(head["layer"], head["head"]) for head in found["heads"] if head["state"] == "hopeless"]
    assert 0 < len(heads) < 15
    group = next(group for group in found["verdict"]["groups"] if group["name"] == "many-tokens")
    assert "hopeless" in group["states"]
    finding = next(finding for finding in found["findings"] if finding["id"] == "hopeless-heads")
    assert (finding["advice"], finding["evidence"]["count"]) == ("Keep 5%.", len(heads))
    console = Console(record=True, width=120, file=io.StringIO())
    Diagnosis(found).print_summary(console)
    assert re.search(rf"H +hopeless +{len(heads)}  not even the top 5% help", console.export_text())
    checked = diagnose(build("gpt2"), text, **options, verify=True)["verification"]
    prediction = next(one for one in checked["predictions"] if one["state"] == "hopeless")
    assert prediction["sentence"].startswith("hopeless: ")
    assert state_looks(found["thresholds"])["hopeless"]["mark"] == "H"


def test_conditions_follow_the_registry() -> None:
    limits = Thresholds()
    errors = {rule.name: np.array([1.0, 1.0]) for rule in RULES}
    assert state_of(errors, limits).tolist() == ["broad", "broad"]
    for state in STATES.values():
        limit = getattr(limits, state.limit)
        at = errors | {state.rule.name: np.array([limit * 0.999, limit])}
        expected = [state.name, "broad"] if state.enough else ["selective", state.name]
        assert state_of(at, limits).tolist() == expected


def test_the_page_gets_rules_in_the_order_in_which_they_are_tried() -> None:
    rules = state_rules({"near_keys": 16})
    assert [(rule["error"], rule["limit"]) for rule in rules] == [
        ("error_first_key", "sink_bound"),
        ("error_mean_output", "constant"),
        ("error_local", "local"),
        ("error_top_share", "broad"),
    ]
    assert rules[2]["words"] == "the first token and the nearest 16"
    assert [name for name in explained_evidence({}, 20) if name.startswith("error")] == [
        rule["error"] for rule in rules
    ]
    assert list(state_looks({})) == ["broad", "sink-bound", "constant", "local", "selective"]
    assert list(GROUPS) == ["many-tokens", "idle", "few-tokens"]


def test_the_scripts_of_the_page_name_no_state_and_no_error() -> None:
    names = [f"{quote}{name}{quote}" for name in STATES for quote in "\"'`"] + [rule.error for rule in RULES]
    for script in (resources.files("attnscope.show.page") / "js").iterdir():
        source = script.read_text("utf-8").replace('model.revision ?? "local"', "")
        assert not [name for name in names if name in source], script.name


def test_findings_of_an_older_format_are_refused(tmp_path: Path) -> None:
    assert tables.load_findings(tmp_path) is None
    (tmp_path / "findings.json").write_text(json.dumps({"schema": 1, "heads": []}), encoding="utf-8")
    with pytest.raises(OutputError, match=r"findings\.json .* is damaged, or of another version; diagnose again"):
        tables.load_findings(tmp_path)
