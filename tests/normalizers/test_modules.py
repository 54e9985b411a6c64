"""The learned modules: one value per head, within its range, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnscope import normalizers as nz
from attnscope.errors import InputError

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 5, 7, 11


def logits() -> Tensor:
    return torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(37)) * 0.4


VISIBLE = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
MODULES = {
    "ssmax": (nz.LearnedSSMax(HEADS, s=0.5), nz.get("ssmax", s=0.5)),
    "ssmax-b": (nz.LearnedSSMax(HEADS, s=0.5, b=0.2), nz.get("ssmax", s=0.5, b=0.2)),
    "sink": (nz.LearnedSink(HEADS, sink=0.3), nz.get("sink_softmax", sink=0.3)),
    "entmax": (nz.LearnedEntmax(HEADS, alpha=1.4), nz.get("entmax", alpha=1.4)),
    "lipmax": (nz.LearnedLipmax(HEADS, kappa=0.6, cap=1.2), nz.get("lipmax", kappa=0.6, cap=1.2)),
    "power_softmax": (nz.LearnedPowerSoftmax(HEADS, 0.8, 0.3), nz.get("power_softmax", kappa=0.8, gamma=0.3)),
    "lipmix": (nz.LearnedLipmix(HEADS, 0.6, 0.2, 0.3), nz.get("lipmix", kappa=0.6, gamma=0.2, gate=0.3)),
    "asentmax-free": (nz.LearnedASEntmax(HEADS), nz.get("asentmax", beta=0.6931472, gamma=0.0)),
}


@pytest.mark.parametrize(("module", "normalizer"), MODULES.values(), ids=MODULES)
def test_a_new_module_is_the_normalizer_at_its_start(module: nn.Module, normalizer: nz.Normalizer) -> None:
    torch.testing.assert_close(module(logits(), VISIBLE), normalizer(logits(), VISIBLE), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", [module for module, _ in MODULES.values()], ids=MODULES)
def test_every_parameter_learns(module: nn.Module) -> None:
    module.zero_grad()
    (module(logits(), VISIBLE) * logits().flip(-1)).sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
        assert bool((parameter.grad != 0).all())


def test_each_head_has_its_value() -> None:
    module = nz.LearnedSSMax(HEADS)
    with torch.no_grad():
        module.s.copy_(torch.tensor([0.1, 0.5, 0.9]))
    weights = module(logits())
    for head, s in enumerate((0.1, 0.5, 0.9)):
        torch.testing.assert_close(weights[:, head], nz.ssmax(logits()[:, head], s=s))


def test_asentmax_reads_its_scale_from_the_layers_input() -> None:
    module = nz.LearnedASEntmax(HEADS, width=WIDTH)
    hidden = torch.randn(BATCH, QUERIES, WIDTH, generator=torch.Generator().manual_seed(41))
    weights = module(logits(), VISIBLE, hidden)
    assert module.projection is not None
    raw = module.projection(hidden)  # (batch, query, 2 * heads): the betas, then the gammas
    for head in range(HEADS):
        beta = nn.functional.softplus(raw[..., head])
        gamma = 2 * raw[..., HEADS + head].tanh()
        want = nz.asentmax(logits()[:, head], VISIBLE, beta=beta, gamma=gamma)
        torch.testing.assert_close(weights[:, head], want)
    with pytest.raises(InputError, match="pass the layer's input as `hidden`"):
        module(logits(), VISIBLE)


def test_lipmax_logits_are_cosines() -> None:
    query, key = logits(), logits().flip(-2)
    cosines = nz.LearnedLipmax.logits(query, key)
    assert cosines.shape == (BATCH, HEADS, QUERIES, QUERIES)
    assert float(cosines.abs().max()) <= 1 + 1e-6
    torch.testing.assert_close(
        cosines, nn.functional.cosine_similarity(query[..., :, None, :], key[..., None, :, :], dim=-1)
    )


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_the_initial_alpha_must_be_inside_its_range(alpha: float) -> None:
    with pytest.raises(InputError, match="strictly between 1 and 2"):
        nz.LearnedEntmax(HEADS, alpha=alpha)


def test_the_gate_of_lipmix_closes_within_a_hundred_steps_of_adam() -> None:
    """A head that selects: its gate starts at 0.9 and has to reach nearly 0 at a usual learning rate."""
    module = nz.LearnedLipmix(1)
    torch.testing.assert_close(module.gate, torch.tensor([0.9]))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    row = torch.linspace(3.0, -3.0, KEYS).expand(1, 1, KEYS)
    for _ in range(100):
        optimizer.zero_grad()
        (-module(row)[0, 0, 0].log()).backward()
        optimizer.step()
    assert float(module.gate.detach()) < 0.1
