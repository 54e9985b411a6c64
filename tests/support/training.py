"""Small models that are trained, in every way that attention can be seen, and a training loop that says what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from models import build
from torch import Tensor, nn
from torch.nn import functional

import attnscope

TOKENS, WIDTH, HEADS, ITEMS = 29, 24, 3, 5
VOCABULARY = 41


def gpt2(attention: str = "sdpa", dropout: float = 0.1, **changes: Any) -> nn.Module:
    """A GPT-2 of two layers, with dropout, as it is before training."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_head=HEADS, n_embd=WIDTH, n_positions=64, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0,
        attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout, **changes,
    )  # fmt: skip
    config._attn_implementation = attention
    torch.manual_seed(3)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "c_attn.weight" in name:
                parameter.mul_(20)  # attention that is not uniform
    return model.train()


class OnTokens(nn.Module):
    """Embeddings, a body on vectors, and a prediction of the next token."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = body
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(input_ids)))


class CustomAttention(nn.Module):
    """Causal attention with dropout in plain torch, in one of three ways that a scan can see."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.projection(x).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
        if self.way == "sdpa":
            mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.2, is_causal=True)
        else:
            if self.way == "record":
                attnscope.capture.record(query, key, value, causal=True, module=self)
            logits = query @ key.mT / query.shape[-1] ** 0.5
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            weights = torch.softmax(logits.masked_fill(later, -torch.inf), -1)
            mixed = self.dropout(weights) @ value
        return x + mixed.transpose(1, 2).flatten(2)


def _torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 31, dropout=0.2, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _on_tokens(body: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    model = OnTokens(body()).train()
    with torch.no_grad():
        model.embedding.weight.mul_(3)
    return model


SUBJECTS: dict[str, Callable[[], nn.Module]] = {
    "transformers, sdpa": gpt2,
    "transformers, eager": lambda: gpt2("eager"),
    "transformers, grouped queries": lambda: build("llama-gqa").train(),
    "nn.TransformerEncoder": lambda: _on_tokens(_torch_encoder),
    "scaled_dot_product_attention": lambda: _on_tokens(lambda: nn.Sequential(*map(CustomAttention, ["sdpa"] * 2))),
    "softmax written out": lambda: _on_tokens(lambda: nn.Sequential(*map(CustomAttention, ["written out"] * 2))),
    "record": lambda: _on_tokens(lambda: nn.Sequential(*map(CustomAttention, ["record"] * 2))),
}


def batches(count: int, items: int = ITEMS, tokens: int = TOKENS) -> Iterator[Tensor]:
    """Token numbers, the same in every call."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(count):
        yield torch.randint(VOCABULARY, (items, tokens), generator=generator)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross entropy of the next token."""
    output = model(input_ids=ids)
    logits = getattr(output, "logits", output)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@dataclass
class Trained:
    """What a training run did."""

    losses: list[float]
    gradients: list[Tensor]
    weights: list[Tensor]
    random_state: Tensor

    def same_bits(self, other: Trained) -> bool:
        """Whether two runs did the same, to the last bit."""
        tensors = zip(
            [*self.gradients, *self.weights, self.random_state],
            [*other.gradients, *other.weights, other.random_state],
            strict=True,
        )
        return self.losses == other.losses and all(torch.equal(one, two) for one, two in tensors)


def train(
    model: nn.Module,
    steps: int,
    monitor: attnscope.Monitor | None = None,
    *,
    loss: Callable[[nn.Module, Tensor], Tensor] = loss_of,
    between: Callable[[nn.Module, int], None] | None = None,
    accumulate: int = 1,
) -> Trained:
    """Train for some steps, each of `accumulate` batches; `between` is called after each step."""
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    given = batches(steps * accumulate)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        for _ in range(accumulate):
            value = loss(model, next(given))
            value.backward()
            losses.append(value.item())
        optimizer.step()
        if monitor is not None:
            monitor.step(loss=value)
        if between is not None:
            between(model, step)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return Trained(losses, gradients, [p.detach().clone() for p in model.parameters()], torch.get_rng_state())
