"""How much a changed model differs from the unmodified one: perplexity, next-token agreement, KL divergence."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor


def kl_divergence(
    log_p: Float[Tensor, "*batch tokens"], log_q: Float[Tensor, "*batch tokens"]
) -> Float[Tensor, " *batch"]:
    """KL(p || q) in nats, from the log-probabilities (`log_softmax`) of both distributions; differentiable."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def next_token_logits(
    module: Any, tokens: Int[Tensor, " positions"], rows: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "rows vocabulary"]:
    """Logits of one window at all positions, or at the given ones; differentiable unless gradients are off."""
    some = rows is not None and "logits_to_keep" in inspect.signature(module.forward).parameters
    options = {"logits_to_keep": rows} if some else {}
    logits: Tensor = module(input_ids=tokens[None], use_cache=False, **options).logits[0]
    return logits if rows is None or some else logits[rows]


_ROWS = 64  # rows of logits over the vocabulary in float64 at one time


@dataclass
class Fidelity:
    """Scores of every predicted token over some windows; position i predicts token i + 1."""

    losses: list[Float[Tensor, " positions"]] = field(default_factory=list)
    divergences: list[Float[Tensor, " positions"]] = field(default_factory=list)
    agreements: list[Float[Tensor, " positions"]] = field(default_factory=list)

    def add(
        self,
        logits: Float[Tensor, "positions vocabulary"],
        model_logits: Float[Tensor, "positions vocabulary"],
        ids: Int[Tensor, " positions"],
    ) -> None:
        """Score one window: the changed model's logits against the unmodified model's, and against the text."""
        loss, divergence, agreement = [], [], []
        for start in range(0, len(ids) - 1, _ROWS):
            rows = slice(start, min(start + _ROWS, len(ids) - 1))
            changed, reference = (z[rows].double().log_softmax(-1) for z in (logits, model_logits))
            loss.append(functional.nll_loss(changed, ids[rows.start + 1 : rows.stop + 1], reduction="none"))
            divergence.append(kl_divergence(reference, changed))
            agreement.append((changed.argmax(-1) == reference.argmax(-1)).double())
        self.losses.append(torch.cat(loss))
        self.divergences.append(torch.cat(divergence))
        self.agreements.append(torch.cat(agreement))

    def at(self, length: int) -> dict[str, float]:
        """The scores over the first `length` tokens of each window."""
        if length < 2:
            return {}
        mean = [torch.cat([w[: length - 1] for w in kind]).mean() for kind in self._kinds]
        return {"perplexity": float(mean[0].exp()), "kl": float(mean[1]), "agreement": float(mean[2])}

    @property
    def _kinds(self) -> tuple[list[Tensor], ...]:
        return self.losses, self.divergences, self.agreements


def mean_divergence(module: Any, windows: Sequence[Tensor], model_logits: Sequence[Tensor]) -> Tensor:
    """Mean KL divergence over positions of the changed model from the unmodified logits; differentiable."""
    total = torch.zeros((), dtype=torch.float32, device=model_logits[0].device)
    for ids, logits in zip(windows, model_logits, strict=True):
        reference, changed = (z.float().log_softmax(-1) for z in (logits, next_token_logits(module, ids)))
        total = total + kl_divergence(reference, changed).mean()
    return total / len(windows)
