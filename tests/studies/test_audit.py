"""The audit: verdicts follow from its trials, and change when a formula does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscope.errors import InputError
from attnscope.studies.audit import Claim, ClaimReport, Form, at_least, at_most, audit, between
from attnscope.studies.audit.contract import Inequality
from attnscope.studies.audit.referee import CLAIMS, find_claim, relative_excess
from attnscope.studies.audit.rows import TOP_SETS
from attnscope.theory import appendix, distance, expectation, geometry, gradient, vanishing
from attnscope.theory.configuration import Configuration, Interval

EXPECTED = {
    "lemma-1": "holds",
    "any-normalizer-vanishes": "fails",
    "corollary-1": "holds",
    "corollary-1-own-key": "fails",
    "theorem-1-fixed": "holds with condition",
    "distance-collapses": "fails",
    "theorem-1-random": "fails",
    "theorem-1-random-gap": "fails",
    "theorem-1-random-epsilon": "holds",
    "epsilon-small": "fails",
    "corollary-2-few": "fails",
    "expectation-grows-linearly": "fails",
    "corollary-2-full": "vacuous",
    "theorem-2-lower": "holds",
    "theorem-2-upper": "fails",
    "eighty-percent": "fails",
    "two-logit-distance": "holds",
    "two-logit-response": "fails",
    "lemma-2-entry": "holds",
    "lemma-2-spectral": "holds with condition",
    "lemma-2-cap": "fails",
    "vanishing-minimum": "fails",
    "corollary-3-entry": "holds",
    "corollary-3": "fails",
    "figure-4-bound": "fails",
    "coverage-up-to": "fails",
    "coverage-independent": "holds with condition",
    "appendix-significance": "fails",
    "appendix-hoeffding": "fails",
    "appendix-random-direction": "fails",
    "appendix-literal-distance": "fails",
    "appendix-literal-radius": "fails",
}

# The linear normalizer of Lemma 2 needs long rows, which a short draw reaches late. The bounds of
# the normalizers' weights are computed row by row, which is slow.
TRIALS = {"lemma-2-spectral": 1600, "separability-failure": 20, "normalizer-weights": 60}


def tried(claim: Claim[Any], trials: int = 400, seed: int = 1) -> ClaimReport:
    """The report on a claim after a short audit."""
    return audit([replace(claim, space=replace(claim.space, trials=trials))], seed=seed).claims[0]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_short_audit_finds_the_verdict_and_no_flaw_in_the_corrected_form(claim: Claim[Any]) -> None:
    report = tried(claim, TRIALS.get(claim.id, 400))
    assert report.verdict == EXPECTED.get(claim.id, "holds")
    assert not report.corrected_violated
    examples = [trial.counterexample for trial in (report.printed, *report.corrected) if trial and trial.violated]
    assert all(example is not None and example.excess > 0 for example in examples)


def test_an_audit_is_reproducible() -> None:
    """Fault 15: seeds."""
    claim = find_claim("theorem-1-random")
    assert tried(claim) == tried(claim)
    assert tried(claim, seed=2) != tried(claim)


def test_counterexamples_are_small_enough_to_check_by_hand() -> None:
    example = tried(find_claim("theorem-1-fixed")).printed.counterexample  # type: ignore[union-attr]
    assert example is not None
    assert sorted(example.values["weights"]) == [0, 1]
    assert example.values["vectors"] == [[1.0], [1.0]]
    assert (example.smaller, example.larger) == (1, -1)
    tie = tried(find_claim("corollary-3")).printed.counterexample  # type: ignore[union-attr]
    assert tie is not None
    assert len(tie.values["logits"]) == 2
    assert tie.larger < tie.smaller


# Mutations: a changed formula changes the verdict.


def test_a_corrected_printed_formula_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "fixed_set_upper_printed", distance.fixed_set_upper_any)
    assert tried(find_claim("theorem-1-fixed")).verdict == "holds"
    monkeypatch.setattr(expectation, "random_set_main_printed", expectation.random_set_lower)
    assert tried(find_claim("theorem-1-random")).verdict == "holds"
    assert tried(find_claim("theorem-1-random-gap")).verdict == "holds"
    monkeypatch.setattr(gradient, "softmax_bound_printed", gradient.softmax_bound)
    assert tried(find_claim("corollary-3")).verdict == "holds"


def test_a_wrong_printed_formula_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = vanishing.weight_bounds_printed

    def halved(*args: torch.Tensor) -> Interval:
        return Interval(exact(*args).lower, exact(*args).upper / 2)

    monkeypatch.setattr(vanishing, "weight_bounds_printed", halved)
    assert tried(find_claim("lemma-1")).verdict == "fails"


@pytest.mark.parametrize(
    ("module", "name", "claim", "factor"),
    [
        pytest.param(vanishing, "logit_sandwich", "corollary-1-own-key", 0.9, id="logit sandwich"),
        pytest.param(expectation, "random_set_upper", "theorem-1-random", 0.99, id="E1 upper"),
        pytest.param(expectation, "random_set_lower_moments", "theorem-1-random-gap", 1.01, id="E3"),
        pytest.param(expectation, "random_set_variance_upper", "distance-variance", 0.5, id="E4"),
        pytest.param(gradient, "softmax_bound", "corollary-3", 0.99, id="1/(2T)"),
        pytest.param(gradient, "finite_difference_bound", "figure-4-bound", 0.99, id="tanh"),
        pytest.param(geometry, "separability_certain", "theorem-2-lower", 1.5, id="T2a"),
        pytest.param(appendix, "lower_tail_hoeffding", "appendix-hoeffding", 0.99, id="Hoeffding"),
        pytest.param(appendix, "lower_tail_markov", "appendix-hoeffding", 0.99, id="Markov"),
        pytest.param(gradient, "random_direction_bounds", "appendix-random-direction", 1.2, id="random direction"),
        pytest.param(appendix, "literal_distance", "appendix-literal-distance", 1.01, id="literal distance"),
        pytest.param(appendix, "literal_radius", "appendix-literal-radius", 0.99, id="literal radius"),
    ],
)
def test_a_wrong_corrected_formula_is_violated(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, claim: str, factor: float
) -> None:
    exact = getattr(module, name)

    def spoiled(*args: Any) -> Any:
        value = exact(*args)
        return Interval(factor * value[0], factor * value[1]) if isinstance(value, tuple) else factor * value

    monkeypatch.setattr(module, name, spoiled)
    assert tried(find_claim(claim)).corrected_violated


@pytest.mark.parametrize("index", range(4), ids=["B1", "B2", "B3", "B4"])
def test_a_tightened_bound_on_the_distance_fails(index: int) -> None:
    claim = find_claim("theorem-1-sharper")
    form = claim.corrected[index]

    def tightened(c: Configuration) -> Inequality:
        exact = form.inequality(c)
        return exact._replace(larger=0.99 * exact.larger)

    spoiled = replace(claim, corrected=(replace(form, inequality=tightened),))
    assert tried(spoiled).verdict == "fails"


# A user's claim


def context_bound(c: Configuration) -> torch.Tensor:
    return (c.length - c.count) * c.context.norm(dim=-1)


def test_a_users_claim_gets_the_same_treatment() -> None:
    claimed = Form("d~ <= (L-N)|s|", at_most(distance.distance, context_bound))
    report = tried(Claim("mine", "my notebook", TOP_SETS, claimed))
    assert report.verdict == "fails"
    assert report.printed is not None
    assert report.printed.counterexample is not None
    corrected = Form("d~ <= sum |y_i| + (L-N)|s|", at_most(distance.distance, distance.fixed_set_upper_triangle))
    assert tried(Claim("mine", "my notebook", TOP_SETS, corrected)).verdict == "holds"


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    exec(compile(example, "docs/theory.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("fails Counterexample(")


def test_a_trivial_bound_is_vacuous() -> None:
    weights = Form(
        "alpha_i <= 2",
        at_most(lambda c: c.weights, lambda c: torch.full_like(c.weights, 2)),
        empty=lambda c: torch.ones_like(c.weights, dtype=torch.bool),
    )
    assert tried(Claim("mine", "my notebook", TOP_SETS, weights)).verdict == "vacuous"


def test_nan_on_either_side_is_a_violation() -> None:
    nan = torch.full((3, 2), torch.nan)
    assert (relative_excess(Inequality(nan, torch.ones(3, 2))) > 0).all()
    assert (relative_excess(Inequality(torch.ones(3, 2), nan)) > 0).all()


def test_infinite_bounds_hold_and_rounding_is_tolerated() -> None:
    ones = torch.ones(3, 2, dtype=torch.float64)
    assert (relative_excess(Inequality(ones, ones * torch.inf)) <= 0).all()
    assert (relative_excess(Inequality(ones * torch.inf, ones * torch.inf)) <= 0).all()
    assert (relative_excess(Inequality(ones * (1 + 1e-12), ones)) <= 0).all()
    assert (relative_excess(Inequality(ones * (1 + 1e-6), ones)) > 0).all()
    assert (relative_excess(Inequality(ones * 1.1, ones, 0.2)) <= 0).all()


def test_one_sided_and_two_sided_helpers_agree() -> None:
    half = torch.full((2, 3), 0.5)
    for helper, bound, good in (
        (at_most, 0.6, True),
        (at_most, 0.4, False),
        (at_least, 0.4, True),
        (at_least, 0.6, False),
    ):
        inequality = helper(lambda s: s, lambda s, b=bound: torch.full_like(s, b))(half)
        assert bool((relative_excess(inequality) <= 0).all()) == good
    two = between(lambda s: s, lambda s: Interval(0.4 * torch.ones_like(s), 0.45 * torch.ones_like(s)))(half)
    assert (relative_excess(two) > 0).all()


def test_invalid_input_raises_an_input_error() -> None:
    with pytest.raises(InputError, match="no claim is called 'lemma-9'; the claims are lemma-1, "):
        find_claim("lemma-9")
    with pytest.raises(InputError, match="no form to test"):
        audit([Claim("empty", "nowhere", TOP_SETS)])
    with pytest.raises(InputError, match="quick or full, received 'much'"):
        audit([], effort="much")  # type: ignore[arg-type]
