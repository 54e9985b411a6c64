"""What the heads of a model have learned: previous-token, matching and induction scores."""

from __future__ import annotations

import torch
from transformers import GPT2LMHeadModel

INDUCTION_HALF = 256
_SEED = 1


@torch.no_grad()
def attention(model: GPT2LMHeadModel, ids: torch.Tensor) -> torch.Tensor:
    """Weights of all heads, (layers, heads, queries, keys)."""
    kernel, training = model.config._attn_implementation, model.training
    model.set_attn_implementation("eager")  # the only kernel that hands out its weights
    model.eval()
    weights = torch.cat(model(input_ids=ids[None], output_attentions=True).attentions)
    model.set_attn_implementation(kernel)
    model.train(training)
    return weights


def previous_token_scores(model: GPT2LMHeadModel, windows: torch.Tensor) -> torch.Tensor:
    """Mean weight on the token just before; (layers, heads)."""
    scores = [attention(model, window).diagonal(-1, -2, -1).mean(-1) for window in windows]
    return torch.stack(scores).mean(0)


def matching_scores(model: GPT2LMHeadModel, windows: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean weight on tokens that stood behind earlier copies of the current one; (layers, heads), and for uniform."""
    scores, uniform = [], []
    for window in windows:
        behind = torch.zeros(len(window), len(window), dtype=torch.bool)
        behind[:, 1:] = (window[:, None] == window[None, :]).tril(-1)[:, :-1]
        queries = behind.any(-1)
        scores.append((attention(model, window) * behind).sum(-1)[..., queries].mean(-1))
        share = behind.sum(-1) / torch.arange(1, len(window) + 1)
        uniform.append(share[queries].mean().item())
    return torch.stack(scores).mean(0), sum(uniform) / len(uniform)


def induction_scores(model: GPT2LMHeadModel, repeats: int) -> torch.Tensor:
    """Mean weight on the token behind the earlier copy, on random tokens repeated once; (layers, heads)."""
    scores = []
    for ids in repeated_tokens(model, repeats):
        # Query i of the second copy looks for the token behind its own earlier one: key i - half + 1.
        behind_copy = attention(model, ids).diagonal(1 - INDUCTION_HALF, -2, -1)[..., 1:]
        scores.append(behind_copy.mean(-1))
    return torch.stack(scores).mean(0)


@torch.no_grad()
def copying_loss(model: GPT2LMHeadModel, repeats: int) -> tuple[float, float]:
    """Loss on the first and on the second copy of random tokens repeated once."""
    ids = repeated_tokens(model, repeats)
    logits = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    losses = -logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return losses[:, : INDUCTION_HALF - 1].mean().item(), losses[:, INDUCTION_HALF:].mean().item()


def repeated_tokens(model: GPT2LMHeadModel, repeats: int) -> torch.Tensor:
    """Random tokens, each row ending in a copy of its first half."""
    generator = torch.Generator().manual_seed(_SEED)
    half = torch.randint(1, model.config.vocab_size, (repeats, INDUCTION_HALF), generator=generator)
    return torch.cat([half, half], -1)
