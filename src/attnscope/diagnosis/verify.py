"""Test every state as a prediction: replace heads' weights by its rule inside the model, on held-out windows.

The effect is the KL divergence of the next-token distribution from the unmodified model's, mean over the second half of
each window. A rule that is enough for the heads of its state must change little there, and much in other heads: the
same number of heads is drawn at random in each layer among those without the label, several times. Where a layer has
too few of them all are taken, and as many of the labeled ones are drawn to be compared with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.capture.modules import evaluating
from attnscope.columns import head_name
from attnscope.diagnosis.states import STATES, State, effect_words
from attnscope.errors import InputError, ModelError, parameter
from attnscope.progress import Step
from attnscope.show.numbers import counted
from attnscope.swapping import intervene, swap
from attnscope.swapping.changes import WeightRule, kl_divergence, next_token_logits, softmax_over
from attnscope.swapping.key_budget import keep_top

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.models import Model
    from attnscope.diagnosis.heads import KeyShares, Labels
    from attnscope.diagnosis.observing import Head
    from attnscope.diagnosis.states import Thresholds
    from attnscope.normalizers import Normalizer
    from attnscope.progress import OnStep

    ByWindow = Float[NDArray[np.float64], " windows"]

DRAWS = 3  # random sets of heads
SINGLE_HEADS = 3  # of each state, one at a time
SINGLE_WINDOWS = 1  # held-out windows on which single heads are tried
ROWS = 128  # next-token distributions compared in a window

Interventions = dict["Head", "WeightRule | Tensor"]


def unverifiable(model: Model) -> str | None:
    """Why labels cannot be tested inside a model; None if they can."""
    if not model.causal or model.module.get_output_embeddings() is None:
        return f"a {model.family} model as it was loaded has no next-token distribution"
    if getattr(model.module.config, SWAP_CONFIG_KEY, None):
        return "the model runs with a swapped normalizer, and the test puts softmax into heads"
    if any(name.rpartition(".")[2] == "sinks" for name, _ in model.module.named_parameters()):
        return f"this {model.family} model has sink logits, which a replaced head would lose"
    return None


def check_verifiable(model: Model, _: OnStep | None = None) -> None:
    """Refuse models without a next-token distribution, or whose sinks a rule cannot see."""
    reason = unverifiable(model)
    if reason is not None:
        raise (InputError if not model.causal else ModelError)(
            f"{parameter('verify')} on {model.name}: {reason}; leave {parameter('verify')} out"
        )


class Trial:
    """Held-out windows with the unmodified model's next-token distributions, to measure the effect of changed heads."""

    def __init__(self, model: Model, inputs: Sequence[list[int]], rows: int = ROWS) -> None:
        self.model = model
        self.inputs = [torch.tensor(ids, device=model.module.device) for ids in inputs]
        length = len(inputs[0])
        start = length // 2
        count = min(rows, length - start)
        self.rows = torch.tensor([start + i * (length - start) // count for i in range(count)])
        # Logits in the model's dtype: log probabilities in float64 would be twice the size or more.
        self.reference = [self._logits(ids) for ids in self.inputs]

    def _logits(self, ids: Tensor) -> Float[Tensor, "rows tokens"]:
        with torch.no_grad():
            logits = next_token_logits(self.model.module, ids, self.rows.to(ids.device))
        if not logits.isfinite().all():
            raise ModelError(
                f"{parameter('verify')} compares next-token distributions, and {self.model.name} gave logits that are "
                f"not finite; leave {parameter('verify')} out"
            )
        return logits

    def kl(self, changes: Interventions, windows: int | None = None) -> ByWindow:
        """KL divergence of each window (or of the first `windows`), mean over rows, while these heads are changed."""
        if not changes:
            return np.zeros(len(self.inputs[:windows]))
        with intervene(self.model.module, changes):
            return self.kl_now(windows)

    def kl_now(self, windows: int | None = None) -> ByWindow:
        """KL divergence of each window, mean over rows, of the model in its present state."""
        effects = []
        for reference, ids in zip(self.reference[:windows], self.inputs[:windows], strict=True):
            log_p, log_q = (logits.double().log_softmax(-1) for logits in (reference, self._logits(ids)))
            effects.append(float(kl_divergence(log_p, log_q).mean()))
        return np.array(effects)


def verify(
    model: Model,
    progress: OnStep,
    inputs: Sequence[list[int]],
    labels: dict[Head, Labels],
    thresholds: Thresholds,
    seed: int,
    budgets: Sequence[KeyShares] = (),
    normalizers: Mapping[str, Normalizer] | None = None,
    single: Sequence[Head] = (),
) -> dict[str, Any]:
    """Outcome of every state's prediction on held-out windows, and the effect of fewer keys and other normalizers.

    The heads `single` lose all keys but their top share, one at a time.
    """
    generator = np.random.default_rng(seed)
    plans = {name: _Plan(state, labels, thresholds, generator) for name, state in STATES.items()}
    plans = {name: plan for name, plan in plans.items() if plan.draws[0]}  # there are heads to compare with
    others = normalizers or {}
    total = 1 + sum(plan.runs for plan in plans.values()) + len(single) + 2 * len(budgets) + len(others)
    done = 0

    def advance(what: str) -> None:
        nonlocal done
        done += 1
        progress(Step(done, total, f"verifying: {what}"))

    with evaluating(model.module):
        trial = Trial(model, inputs)
        advance("the model as it is")
        predictions = [plan.predict(trial, thresholds, advance) for plan in plans.values()]
        by_head = [_single_effect(trial, head, thresholds, advance) for head in single]
        by_budget = [_budget_effect(trial, budget, advance) for budget in budgets]
        by_normalizer = {label: _swap_effect(trial, label, each, advance) for label, each in others.items()}
    return {
        "windows": len(inputs),
        "length": len(inputs[0]),
        "rows": len(trial.rows),
        "draws": DRAWS,
        "predictions": predictions,
        "untested": [name for name in STATES if name not in plans],
        "heads": by_head,
        "budgets": by_budget,
        "normalizers": {label: float(kl.mean()) for label, kl in by_normalizer.items()},
        "normalizer_windows": {label: kl.tolist() for label, kl in by_normalizer.items()},
    }


class _Plan:
    """The heads of one state, the rule that the state names, and random heads to compare with."""

    def __init__(
        self, state: State, labels: dict[Head, Labels], thresholds: Thresholds, generator: np.random.Generator
    ) -> None:
        self.state = state
        self.members = [head for head, labeled in labels.items() if labeled.state == state.name]
        self.others = [head for head, labeled in labels.items() if labeled.state != state.name]
        self.means = {head: torch.from_numpy(labeled.mean_output) for head, labeled in labels.items()}
        # One object for all heads: heads with the same object are run together.
        self.rule = softmax_over(state.rule.keys(thresholds)) if state.rule.keys else None
        self.draws = [_draw(self.members, self.others, generator) for _ in range(DRAWS)]
        fits = len(self.draws[0]) == len(self.members)
        self.matched = [self.members] if fits else [_draw(draw, self.members, generator) for draw in self.draws]
        self.single = _sample(self.members, SINGLE_HEADS, generator)
        self.single_random = _sample(self.others, SINGLE_HEADS, generator)

    @property
    def runs(self) -> int:
        """How many times the model runs."""
        ablations = 0 if self.rule is None else 1 + len(self.single)
        matched = 0 if self.matched == [self.members] else len(self.matched)
        return 1 + matched + len(self.draws) + len(self.single) + len(self.single_random) + ablations

    def changes(self, heads: Iterable[Head]) -> Interventions:
        """The state's rule in these heads."""
        return self.ablation(heads) if self.rule is None else dict.fromkeys(heads, self.rule)

    def ablation(self, heads: Iterable[Head]) -> Interventions:
        """The mean output in these heads."""
        return {head: self.means[head] for head in heads}

    def predict(self, trial: Trial, thresholds: Thresholds, advance: Callable[[str], None]) -> dict[str, Any]:
        """Run the model with all these changes and say whether the prediction held."""

        def measure(what: str, changes: Interventions, windows: int | None = None) -> ByWindow:
            value = trial.kl(changes, windows)
            advance(f"{self.state.name} heads, {what}")
            return value

        def one_at_a_time(what: str, heads: Sequence[Head], changes: Callable[[list[Head]], Interventions]) -> float:
            return float(np.mean([measure(what, changes([head]), SINGLE_WINDOWS) for head in heads]))

        together = measure("all together", self.changes(self.members))
        matched = (
            [together]
            if self.matched == [self.members]
            else [measure("as many as random ones", self.changes(draw)) for draw in self.matched]
        )
        random = [measure("random heads", self.changes(draw)) for draw in self.draws]
        single = one_at_a_time("one at a time", self.single, self.changes)
        single_random = one_at_a_time("one at a time", self.single_random, self.changes)
        if self.rule is None:
            ablated, single_ablated = together, single
        else:
            ablated = measure("ablated", self.ablation(self.members))
            single_ablated = one_at_a_time("ablated", self.single, self.ablation)
        sizes = [len(draw) for draw in self.draws]
        return judged(self.state, len(self.members), sizes, np.stack(matched), np.stack(random), thresholds) | {
            "kl_all": float(together.mean()),
            "kl_ablated": float(ablated.mean()),
            "share_of_ablation": float(together.mean() / ablated.mean()) if ablated.mean() > 0 else None,
            "kl_single": single,
            "kl_single_random": single_random,
            "kl_single_ablated": single_ablated,
            "super_additive": float(together[:SINGLE_WINDOWS].mean() / (single * len(self.members)))
            if single > 0
            else None,
        }


def judged(
    state: State,
    heads: int,
    random_heads: list[int],
    labeled: Float[NDArray[np.float64], "draws windows"],
    random: Float[NDArray[np.float64], "draws windows"],
    thresholds: Thresholds,
) -> dict[str, Any]:
    """The outcome of a prediction: a rule that is enough must change less than in random heads, any other more.

    It must do so `held_ratio` times over all windows together, and no window may show the opposite.
    """
    larger, smaller = (random, labeled) if state.enough else (labeled, random)  # as predicted
    effect = ratios(larger.mean(0), smaller.mean(0))
    lowest, ratio = (math.inf if effect[name] is None else effect[name] for name in ("ratio_low", "ratio"))
    outcome = {
        "state": state.name,
        "held": ratio >= thresholds.held_ratio and lowest > 1,
        "kl_state": float(labeled.mean()),
        "kl_random": float(random.mean()),
        **effect,
        "heads": heads,
        "random_heads": random_heads,
        "kl_state_draws": labeled.mean(1).tolist(),
        "kl_random_draws": random.mean(1).tolist(),
        "kl_state_windows": labeled.mean(0).tolist(),
        "kl_random_windows": random.mean(0).tolist(),
    }
    count = random_heads[0]
    which = f"{count} of the {heads} {state.name} heads" if count != heads else counted(count, f"{state.name} head")
    effect_in_words = effect_words(outcome, thresholds.as_json(), which, "as many random heads of the same layers")
    sentence = (
        f"{state.name}: {'held' if outcome['held'] else 'did not hold'}. {effect_in_words} "
        f"(KL {larger.mean():.3g} against {smaller.mean():.3g})."
    )
    if not outcome["held"]:
        sentence += f" A label needs {thresholds.held_ratio:g} times, and more than 1 in every window."
    return outcome | {"sentence": sentence}


def ratios(larger: ByWindow, smaller: ByWindow) -> dict[str, Any]:
    """Ratio of two effects over all windows together, with its range over windows; None for infinity."""

    def ratio(one: float, other: float) -> float:
        return one / other if other > 0 else math.inf if one > 0 else 1.0  # two effects of nothing are equal

    by_window = [ratio(*pair) for pair in zip(larger.tolist(), smaller.tolist(), strict=True)]
    whole = ratio(float(larger.mean()), float(smaller.mean()))
    finite = {"ratio": whole, "ratio_low": min(by_window), "ratio_high": max(by_window)}
    return {name: _finite(value) for name, value in finite.items()} | {"ratio_windows": [*map(_finite, by_window)]}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sample(heads: Sequence[Head], count: int, generator: np.random.Generator) -> list[Head]:
    """At most this many heads drawn at random, in their order."""
    return [heads[i] for i in sorted(generator.permutation(len(heads))[:count])]


def _draw(members: Sequence[Head], others: Sequence[Head], generator: np.random.Generator) -> list[Head]:
    """As many heads of each layer as the state has there, among those without its label, or all there are."""
    drawn: list[Head] = []
    for layer in sorted({head[0] for head in members}):
        wanted = sum(head[0] == layer for head in members)
        drawn += _sample([head for head in others if head[0] == layer], wanted, generator)
    return drawn


def _single_effect(trial: Trial, head: Head, thresholds: Thresholds, advance: Callable[[str], None]) -> dict[str, Any]:
    """KL with the top share of the keys in one head."""
    kl = trial.kl({head: softmax_over(keep_top(thresholds.top_share))})
    advance(f"{head_name(*head)} alone")
    return {"layer": head[0], "head": head[1], "kl": float(kl.mean()), "kl_windows": kl.tolist()}


def _budget_effect(trial: Trial, budget: KeyShares, advance: Callable[[str], None]) -> dict[str, Any]:
    """KL with the share of keys that each head needs, and with the mean share in every head."""
    mean = float(np.mean(list(budget.shares.values())))
    by_need = trial.kl(_budgets(budget.shares))
    advance("keys by need")
    uniform = trial.kl(_budgets(dict.fromkeys(budget.shares, mean)))
    advance("the same share everywhere")
    effects = {"kl_by_need": float(by_need.mean()), "kl_uniform": float(uniform.mean())}
    return {"error": budget.error, "share": mean, **effects, **ratios(uniform, by_need)}


def _swap_effect(trial: Trial, label: str, normalizer: Normalizer, advance: Callable[[str], None]) -> ByWindow:
    """KL with another normalizer in every head of the model."""
    with swap(trial.model.module, normalizer):
        value = trial.kl_now()
    advance(f"{label} everywhere")
    return value


def _budgets(shares: Mapping[Head, float]) -> Interventions:
    """One rule for each layer, with a share of the keys for each of its heads."""
    changes: Interventions = {}
    for layer in {layer for layer, _ in shares}:
        heads = sorted(head for head in shares if head[0] == layer)
        changes |= dict.fromkeys(heads, top_shares(torch.tensor([shares[head] for head in heads])))
    return changes


def top_shares(shares: Float[Tensor, " heads"]) -> WeightRule:
    """Softmax over the largest logits of a row, a share of the visible keys for each head."""
    return softmax_over(keep_top(shares[:, None, None]))
