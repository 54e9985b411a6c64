"""Try every state as a prediction: put its rule in place of heads' weights inside the model, on a window not seen yet.

What counts is the KL divergence of the next-token distribution from the unmodified model's, mean over the second half
of the window. A rule that is enough for the heads of its state must change little there, and much in other heads: the
same number of heads is drawn at random in each layer among those without the label, several times. Where a layer has
too few of them all are taken, and as many of the labeled ones are drawn to be compared with them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.diagnosis.sentences import counted
from attnscope.diagnosis.states import STATES
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import softmax
from attnscope.swapping import first_key, intervene, sink_and_last, swap, top_share
from attnscope.swapping.interventions import largest

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

Rule = Callable[["Tensor", "Tensor"], "Tensor"]
Interventions = dict["Head", "Rule | Tensor"]


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


def kl_divergence(
    reference: Float[Tensor, "rows tokens"], changed: Float[Tensor, "rows tokens"]
) -> Float[Tensor, " rows"]:
    """KL(reference || changed) in nats of the distributions of two sets of logits, in float64."""
    p, q = reference.double().log_softmax(-1), changed.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


class Trial:
    """Held-out windows with the unmodified model's logits, to measure what a change of heads does."""

    def __init__(self, model: Model, inputs: Sequence[list[int]], rows: int = ROWS) -> None:
        self.model = model
        self.inputs = [torch.tensor([ids], device=model.module.device) for ids in inputs]
        length = len(inputs[0])
        start = length // 2
        count = min(rows, length - start)
        self.rows = torch.tensor([start + i * (length - start) // count for i in range(count)])
        self.reference = [self._logits(ids) for ids in self.inputs]

    def _logits(self, ids: Tensor) -> Float[Tensor, "rows tokens"]:
        module: Any = self.model.module
        rows = self.rows.to(ids.device)
        with torch.no_grad():
            if "logits_to_keep" in inspect.signature(module.forward).parameters:
                return module(input_ids=ids, use_cache=False, logits_to_keep=rows).logits[0]
            return module(input_ids=ids, use_cache=False).logits[0, rows]

    def kl(self, changes: Interventions) -> float:
        """The mean divergence while these heads are changed."""
        if not changes:
            return 0.0
        with intervene(self.model.module, changes):
            return self.kl_now()

    def kl_now(self) -> float:
        """The mean divergence of the model as it is now."""
        changed = [self._logits(ids) for ids in self.inputs]
        pairs = zip(self.reference, changed, strict=True)
        return float(torch.cat([kl_divergence(own, other) for own, other in pairs]).mean())


def verify(
    model: Model,
    inputs: Sequence[list[int]],
    labels: dict[Head, Labels],
    thresholds: Thresholds,
    seed: int,
    tell: Report,
    budgets: Sequence[Budget] = (),
    normalizers: Mapping[str, Normalizer] | None = None,
) -> dict[str, Any]:
    """Every state's prediction on held-out windows, what keeping fewer keys does, and other normalizers everywhere."""
    generator = np.random.default_rng(seed)
    plans = {state: _Plan(state, labels, thresholds, generator) for state in STATES}
    plans = {state: plan for state, plan in plans.items() if plan.members and plan.others}
    others = normalizers or {}
    total = 1 + sum(plan.runs for plan in plans.values()) + 2 * len(budgets) + len(others)
    done = 0

    def advance(what: str) -> None:
        nonlocal done
        done += 1
        tell(f"verifying: {what}", done, total)

    trial = Trial(model, inputs)
    advance("the model as it is")
    predictions = [plan.predict(trial, thresholds, advance) for plan in plans.values()]
    kept = [_kept(trial, budget, advance) for budget in budgets]
    swapped = {label: _swapped(trial, label, normalizer, advance) for label, normalizer in others.items()}
    return {
        "windows": len(inputs),
        "length": len(inputs[0]),
        "rows": len(trial.rows),
        "draws": DRAWS,
        "predictions": predictions,
        "untested": [state for state in STATES if state not in plans],
        "budgets": kept,
        "normalizers": swapped,
    }


class _Plan:
    """The heads of one state, the rule that the state names, and random heads to compare with."""

    def __init__(
        self, state: str, labels: dict[Head, Labels], thresholds: Thresholds, generator: np.random.Generator
    ) -> None:
        self.state = state
        self.members = [place for place, found in labels.items() if found.state == state]
        self.others = [place for place, found in labels.items() if found.state != state]
        self.means = {place: torch.from_numpy(found.mean_output) for place, found in labels.items()}
        # Heads that are given the same object are run together.
        self.rule: Rule | None = {
            "sink-bound": first_key,
            "constant": None,
            "local": sink_and_last(int(thresholds.near_keys)),
            "broad": top_share(thresholds.top_share),
            "selective": top_share(thresholds.top_share),
        }[state]
        self.draws = [_draw(self.members, self.others, generator) for _ in range(DRAWS)]
        fits = len(self.draws[0]) == len(self.members)
        self.matched = [self.members] if fits else [_draw(draw, self.members, generator) for draw in self.draws]
        some = generator.permutation(len(self.members))[:SINGLE_HEADS]
        self.single = [self.members[i] for i in sorted(some)]
        few = generator.permutation(len(self.others))[:SINGLE_HEADS]
        self.single_random = [self.others[i] for i in sorted(few)]

    @property
    def runs(self) -> int:
        """How many times the model runs."""
        ablations = 0 if self.rule is None else 1 + len(self.single)
        matched = 0 if self.matched == [self.members] else len(self.matched)
        return 1 + matched + len(self.draws) + len(self.single) + len(self.single_random) + ablations

    def changes(self, places: Iterable[Head]) -> Interventions:
        """The state's rule in these heads."""
        return {place: self.means[place] if self.rule is None else self.rule for place in places}

    def ablation(self, places: Iterable[Head]) -> Interventions:
        """The mean output in these heads."""
        return {place: self.means[place] for place in places}

    def predict(self, trial: Trial, thresholds: Thresholds, advance: Callable[[str], None]) -> dict[str, Any]:
        """Run all of it and say whether the prediction held."""

        def measured(what: str, changes: Interventions) -> float:
            value = trial.kl(changes)
            advance(f"{self.state} heads, {what}")
            return value

        together = measured("all together", self.changes(self.members))
        matched = (
            [together]
            if self.matched == [self.members]
            else [measured("as many as random ones", self.changes(draw)) for draw in self.matched]
        )
        random = [measured("random heads", self.changes(draw)) for draw in self.draws]
        single = [measured("one at a time", self.changes([place])) for place in self.single]
        single_random = [measured("one at a time", self.changes([place])) for place in self.single_random]
        if self.rule is None:
            ablated, single_ablated = together, single
        else:
            ablated = measured("ablated", self.ablation(self.members))
            single_ablated = [measured("ablated", self.ablation([place])) for place in self.single]
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
    state: str,
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
    """The verdict: a rule that is enough must do less than in random heads, broad heads must suffer more."""
    own, average = float(np.mean(matched)), float(np.mean(random))
    wanted, got = (own, average) if state == "broad" else (average, own)
    ratio = wanted / got if got > 0 else float("inf")
    held = ratio >= thresholds.held_ratio
    compared = "more" if (state == "broad") == (ratio >= 1) else "less"
    factor = ratio if ratio >= 1 else 1 / ratio if ratio > 0 else float("inf")
    times = f"{factor:.1f} times" if np.isfinite(factor) else "infinitely"
    verdict = "held" if held else "did not hold"
    rule = _RULES[state].format(near=int(thresholds.near_keys), top=thresholds.top_share)
    count = random_heads[0]
    which = f"{count} of the {heads} {state} heads" if count != heads else counted(count, f"{state} head")
    sentence = (
        f"{state}: {verdict}. {rule} in {which} changes the next-token distribution {times} {compared} than in as many "
        f"random heads of the same layers (KL {own:.3g} against {average:.3g}; {min(random):.3g} to {max(random):.3g} "
        f"over {len(random)} draws)."
    )
    return {
        "state": state,
        "held": held,
        "kl_state": own,
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


_RULES = {
    "sink-bound": "The first key alone",
    "constant": "The head's mean output",
    "local": "The first key and the nearest {near}",
    "broad": "The top {top:.0%} of the keys",
    "selective": "The top {top:.0%} of the keys",
}


def _draw(members: Sequence[Head], others: Sequence[Head], generator: np.random.Generator) -> list[Head]:
    """As many heads of each layer as the state has there, among those without its label, or all there are."""
    drawn: list[Head] = []
    for layer in sorted({place[0] for place in members}):
        wanted = sum(place[0] == layer for place in members)
        pool = [place for place in others if place[0] == layer]
        chosen = generator.permutation(len(pool))[:wanted]
        drawn += [pool[i] for i in sorted(chosen)]
    return drawn


def _kept(trial: Trial, budget: Budget, advance: Callable[[str], None]) -> dict[str, Any]:
    """Each head with the share of keys it needs, against the same share everywhere."""
    mean = float(np.mean(list(budget.shares.values())))
    own = trial.kl(_budgets(budget.shares))
    advance("keys by need")
    same = trial.kl(_budgets(dict.fromkeys(budget.shares, mean)))
    advance("the same share everywhere")
    return {"error": budget.error, "share": mean, "kl_by_need": own, "kl_uniform": same}


def _swapped(trial: Trial, label: str, normalizer: Normalizer, advance: Callable[[str], None]) -> float:
    """What another normalizer in every head of the model changes."""
    with swap(trial.model.module, normalizer):
        value = trial.kl_now()
    advance(f"{label} everywhere")
    return value


def _budgets(shares: Mapping[Head, float]) -> Interventions:
    """One rule for each layer, with a share of the keys for each of its heads."""
    changes: Interventions = {}
    for layer in {layer for layer, _ in shares}:
        places = sorted(place for place in shares if place[0] == layer)
        changes |= dict.fromkeys(places, top_shares(torch.tensor([shares[place] for place in places])))
    return changes


def top_shares(shares: Float[Tensor, " heads"]) -> Rule:
    """Softmax over the largest logits of a row: of each head its own share of the visible keys, at least one."""

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        each = shares.to(logits.device)[:, None, None]
        kept = (visible.sum(-1, keepdim=True) * each).ceil().long().clamp(min=1)
        return softmax(logits, largest(logits, visible, kept))

    return rule
