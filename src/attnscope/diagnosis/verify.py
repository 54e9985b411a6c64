"""Test every state as a prediction: replace heads' weights by its rule inside the model, on a held-out window.

The effect is the KL divergence of the next-token distribution from the unmodified model's, mean over the second half of
the window. A rule that is enough for the heads of its state must change little there, and much in other heads: the same
number of heads is drawn at random in each layer among those without the label, several times. Where a layer has too few
of them all are taken, and as many of the labeled ones are drawn to be compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.diagnosis.sentences import counted
from attnscope.diagnosis.states import STATES, State
from attnscope.diagnosis.thresholds import limit_words
from attnscope.divergence import kl_divergence
from attnscope.engine.next_token import next_token_logits
from attnscope.errors import InputError, ModelError
from attnscope.key_rules import keep_top
from attnscope.swapping import intervene, swap
from attnscope.swapping.interventions import WeightRule, softmax_over

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.models import Model
    from attnscope.diagnosis.budgets import Budget
    from attnscope.diagnosis.heads import Labels
    from attnscope.diagnosis.observing import Head
    from attnscope.diagnosis.running import Report
    from attnscope.diagnosis.thresholds import Thresholds
    from attnscope.normalizers import Normalizer

DRAWS = 3  # random sets of heads
SINGLE_HEADS = 3  # of each state, one at a time
ROWS = 128  # next-token distributions compared in a window

Interventions = dict["Head", "WeightRule | Tensor"]


def check_verifiable(model: Model) -> None:
    """Refuse models without a next-token distribution, or whose sinks a rule cannot see."""
    if not model.causal or model.module.get_output_embeddings() is None:
        raise InputError(
            f"--verify compares next-token distributions, which {model.name} ({model.family}) does not give; "
            "leave --verify out"
        )
    if getattr(model.module.config, SWAP_CONFIG_KEY, None):
        raise ModelError(
            f"--verify puts softmax into heads, and {model.name} runs with a swapped normalizer; undo the swap"
        )
    if any(name.rpartition(".")[2] == "sinks" for name, _ in model.module.named_parameters()):
        raise ModelError(
            f"--verify: {model.name} ({model.family}) has sink logits, which a replaced head would lose; "
            "leave --verify out"
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
        self.reference = [self._log_probabilities(ids) for ids in self.inputs]

    def _log_probabilities(self, ids: Tensor) -> Float[Tensor, "rows tokens"]:
        with torch.no_grad():
            logits = next_token_logits(self.model.module, ids, self.rows.to(ids.device))
        return logits.double().log_softmax(-1)

    def kl(self, changes: Interventions) -> float:
        """Mean KL divergence while these heads are changed."""
        if not changes:
            return 0.0
        with intervene(self.model.module, changes):
            return self.kl_now()

    def kl_now(self) -> float:
        """Mean KL divergence of the model in its present state."""
        pairs = zip(self.reference, self.inputs, strict=True)
        return float(torch.cat([kl_divergence(log_p, self._log_probabilities(ids)) for log_p, ids in pairs]).mean())


def verify(
    model: Model,
    inputs: Sequence[list[int]],
    labels: dict[Head, Labels],
    thresholds: Thresholds,
    seed: int,
    progress: Report,
    budgets: Sequence[Budget] = (),
    normalizers: Mapping[str, Normalizer] | None = None,
) -> dict[str, Any]:
    """Outcome of every state's prediction on held-out windows, and the effect of fewer keys and other normalizers."""
    generator = np.random.default_rng(seed)
    plans = {name: _Plan(state, labels, thresholds, generator) for name, state in STATES.items()}
    plans = {name: plan for name, plan in plans.items() if plan.members and plan.others}
    others = normalizers or {}
    total = 1 + sum(plan.runs for plan in plans.values()) + 2 * len(budgets) + len(others)
    done = 0

    def advance(what: str) -> None:
        nonlocal done
        done += 1
        progress(f"verifying: {what}", done, total)

    trial = Trial(model, inputs)
    advance("the model as it is")
    predictions = [plan.predict(trial, thresholds, advance) for plan in plans.values()]
    by_budget = [_budget_effect(trial, budget, advance) for budget in budgets]
    by_normalizer = {label: _swap_effect(trial, label, normalizer, advance) for label, normalizer in others.items()}
    return {
        "windows": len(inputs),
        "length": len(inputs[0]),
        "rows": len(trial.rows),
        "draws": DRAWS,
        "predictions": predictions,
        "untested": [name for name in STATES if name not in plans],
        "budgets": by_budget,
        "normalizers": by_normalizer,
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

        def measure(what: str, changes: Interventions) -> float:
            value = trial.kl(changes)
            advance(f"{self.state.name} heads, {what}")
            return value

        together = measure("all together", self.changes(self.members))
        matched = (
            [together]
            if self.matched == [self.members]
            else [measure("as many as random ones", self.changes(draw)) for draw in self.matched]
        )
        random = [measure("random heads", self.changes(draw)) for draw in self.draws]
        single = [measure("one at a time", self.changes([head])) for head in self.single]
        single_random = [measure("one at a time", self.changes([head])) for head in self.single_random]
        if self.rule is None:
            ablated, single_ablated = together, single
        else:
            ablated = measure("ablated", self.ablation(self.members))
            single_ablated = [measure("ablated", self.ablation([head])) for head in self.single]
        return judged(
            self.state,
            len(self.members),
            [len(draw) for draw in self.draws],
            together,
            matched,
            random,
            ablated,
            single,
            single_random,
            single_ablated,
            thresholds,
        )


def judged(
    state: State,
    heads: int,
    random_heads: list[int],
    together: float,
    matched: list[float],
    random: list[float],
    ablated: float,
    single: list[float],
    single_random: list[float],
    single_ablated: list[float],
    thresholds: Thresholds,
) -> dict[str, Any]:
    """The outcome of a prediction: a rule that is enough must change less than in random heads, any other more."""
    labeled, average = float(np.mean(matched)), float(np.mean(random))
    larger, smaller = (average, labeled) if state.enough else (labeled, average)  # as predicted
    ratio = larger / smaller if smaller > 0 else float("inf")
    held = ratio >= thresholds.held_ratio
    compared = "less" if state.enough == (ratio >= 1) else "more"
    factor = ratio if ratio >= 1 else 1 / ratio if ratio > 0 else float("inf")
    times = f"{factor:.1f} times" if np.isfinite(factor) else "infinitely"
    verdict = "held" if held else "did not hold"
    rule = state.rule.words.format(**limit_words(thresholds.as_json()))
    count = random_heads[0]
    which = f"{count} of the {heads} {state.name} heads" if count != heads else counted(count, f"{state.name} head")
    sentence = (
        f"{state.name}: {verdict}. {rule} in {which} changes the next-token distribution {times} {compared} than in as "
        f"many random heads of the same layers (KL {labeled:.3g} against {average:.3g}; {min(random):.3g} to "
        f"{max(random):.3g} over {len(random)} draws)."
    )
    return {
        "state": state.name,
        "held": held,
        "kl_state": labeled,
        "kl_random": average,
        "ratio": ratio if np.isfinite(ratio) else None,
        "sentence": sentence,
        "kl_all": together,
        "heads": heads,
        "random_heads": random_heads,
        "kl_state_draws": matched,
        "kl_random_draws": random,
        "kl_ablated": ablated,
        "share_of_ablation": together / ablated if ablated > 0 else None,
        "kl_single": float(np.mean(single)),
        "kl_single_random": float(np.mean(single_random)),
        "kl_single_ablated": float(np.mean(single_ablated)),
        "super_additive": together / (float(np.mean(single)) * heads) if np.mean(single) > 0 else None,
    }


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


def _budget_effect(trial: Trial, budget: Budget, advance: Callable[[str], None]) -> dict[str, Any]:
    """KL with the share of keys that each head needs, and with the mean share in every head."""
    mean = float(np.mean(list(budget.shares.values())))
    by_need = trial.kl(_budgets(budget.shares))
    advance("keys by need")
    uniform = trial.kl(_budgets(dict.fromkeys(budget.shares, mean)))
    advance("the same share everywhere")
    return {"error": budget.error, "share": mean, "kl_by_need": by_need, "kl_uniform": uniform}


def _swap_effect(trial: Trial, label: str, normalizer: Normalizer, advance: Callable[[str], None]) -> float:
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
