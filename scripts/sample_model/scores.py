"""Previous-token, matching and induction scores of the heads of a model."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

INDUCTION_HALF = 256
_SEED = 1


@torch.no_grad()
def attention(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Attention weights of all heads, of shape (layers, heads, queries, keys)."""
    kernel, training = model.config._attn_implementation, model.training
    model.set_attn_implementation("eager")  # the only kernel that returns its weights
    model.eval()
    weights = torch.cat(model(input_ids=ids[None], output_attentions=True).attentions)
    model.set_attn_implementation(kernel)
    model.train(training)
    return weights


def previous_token_scores(model: PreTrainedModel, windows: torch.Tensor) -> torch.Tensor:
    """Mean weight on the previous token, of shape (layers, heads)."""
    scores = [attention(model, window).diagonal(-1, -2, -1).mean(-1) for window in windows]
    return torch.stack(scores).mean(0)


def matching_scores(model: PreTrainedModel, windows: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean weight on tokens that followed earlier copies of the current one, of shape (layers, heads).

    The second value is the score of uniform attention.
    """
    scores, uniform = [], []
    for window in windows:
        follows_copy = torch.zeros(len(window), len(window), dtype=torch.bool)
        follows_copy[:, 1:] = (window[:, None] == window[None, :]).tril(-1)[:, :-1]
        queries = follows_copy.any(-1)
        scores.append((attention(model, window) * follows_copy).sum(-1)[..., queries].mean(-1))
        share = follows_copy.sum(-1) / torch.arange(1, len(window) + 1)
        uniform.append(share[queries].mean().item())
    return torch.stack(scores).mean(0), sum(uniform) / len(uniform)


def induction_scores(model: PreTrainedModel, repeats: int) -> torch.Tensor:
    """Mean weight on the token after the earlier copy, on random tokens repeated once, of shape (layers, heads)."""
    scores = []
    for ids in repeated_tokens(model, repeats):
        # The token after the earlier copy of query i, in the second half, is key i - half + 1.
        after_copy = attention(model, ids).diagonal(1 - INDUCTION_HALF, -2, -1)[..., 1:]
        scores.append(after_copy.mean(-1))
    return torch.stack(scores).mean(0)


@torch.no_grad()
def copying_loss(model: PreTrainedModel, repeats: int) -> tuple[float, float]:
    """Loss on the first and on the second copy of random tokens repeated once, in nats per token."""
    ids = repeated_tokens(model, repeats)
    logits = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    losses = -logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return losses[:, : INDUCTION_HALF - 1].mean().item(), losses[:, INDUCTION_HALF:].mean().item()


def repeated_tokens(model: PreTrainedModel, repeats: int) -> torch.Tensor:
    """Rows of random tokens whose second half repeats the first."""
    generator = torch.Generator().manual_seed(_SEED)
    half = torch.randint(1, model.config.vocab_size, (repeats, INDUCTION_HALF), generator=generator)
    return torch.cat([half, half], -1)
