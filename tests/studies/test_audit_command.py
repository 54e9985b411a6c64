"""`attnscope audit` as a user types it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_options import assert_parameters

import attnscope
from attnscope.cli import run
from attnscope.studies.audit import referee
from attnscope.studies.audit.verb import AuditOptions
from attnscope.theory import gradient

CLAIMS_FILE = """
from attnscope.theory import distance
from attnscope.studies.audit import TOP_SETS, Claim, Form, at_most


def bound(c):
    return (c.length - c.count) * c.context.norm(dim=-1)


mine = Claim("mine", "my notebook", TOP_SETS, Form("d~ <= (L-N)|s|", at_most(distance.distance, bound)))
"""


@pytest.fixture
def three_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three claims with few trials."""
    names = ("lemma-1", "theorem-1-fixed", "corollary-3")
    short = [replace(c, space=replace(c.space, trials=300)) for c in map(referee.find_claim, names)]
    monkeypatch.setattr(referee, "CLAIMS", tuple(short))


@pytest.mark.usefixtures("three_claims")
def test_every_claim_has_its_statement_verdict_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit"]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith(
        "Verdict: Of 3 claims as the paper prints them, 1 fails, 1 holds with a condition, 1 holds."
    )
    by_claim = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert by_claim["corollary-3"].split()[1] == "fails"
    assert by_claim["theorem-1-fixed"].split()[-1] == "0.0%"  # of the corrected form
    assert "|J|_2 <= min{ 1/(4T), sqrt 2 }" in out
    assert "holds with condition: none that meets a condition does" in " ".join(out.split())


@pytest.mark.usefixtures("three_claims")
def test_counterexamples_and_places_come_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit"]) == 0
    assert "1 > -1" not in capsys.readouterr().out
    assert run(["audit", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "1 > -1" in out
    assert "Theorem 1(1)" in out


def test_one_claim_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--claim", "corollary-3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("corollary-3: fails")
    assert "smallest counterexample:" in out
    assert "accepted: 0%" in out
    assert "claimed 0.5 <= 0.25, off by 0.25" in out


@pytest.mark.usefixtures("three_claims")
def test_json_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--json", "--seed", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] is True
    assert report["seed"] == 3
    assert [claim["id"] for claim in report["claims"]] == ["lemma-1", "theorem-1-fixed", "corollary-3"]
    fixed = report["claims"][1]
    assert fixed["verdict"] == "holds with condition"
    assert fixed["printed"]["rate"] > 0
    assert fixed["printed"]["counterexample"]["larger"] == -1


@pytest.mark.usefixtures("three_claims")
def test_a_violated_correction_ends_with_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gradient, "softmax_bound", lambda t: torch.full_like(t, 1e-3))
    assert run(["audit"]) == 1
    assert "A corrected form was violated: corollary-3." in capsys.readouterr().out


def test_an_unknown_claim_ends_with_code_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--claim", "lemma-9"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "lemma-1, " in captured.err


def test_own_claims_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my bounds.py"
    file.write_text(CLAIMS_FILE)
    assert run(["audit", "--own", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"][0]["verdict"] == "fails"


def test_a_file_without_claims_or_no_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert run(["audit", "--own", str(empty)]) == 2
    assert run(["audit", "--own", str(tmp_path / "none.py")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "defines no attnscope.studies.audit.Claim" in lines[0]
    assert "none.py" in lines[1]


def test_a_negative_seed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--seed=-1"]) == 2
    assert "received -1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [b"def broken(:", b"\x00\x01", b"raise ValueError('on purpose')", b"import sys; sys.exit(7)"],
    ids=["syntax", "binary", "raises", "exits"],
)
def test_a_file_of_own_claims_that_cannot_be_run_is_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    file.write_bytes(content)
    assert run(["audit", "--own", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("attnscope: ")


def test_options_of_the_command_are_parameters_with_the_same_defaults() -> None:
    assert_parameters(attnscope.audit, AuditOptions())
