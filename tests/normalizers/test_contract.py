"""Properties of every normalizer: masks, lengths, shapes, invalid input."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from attnscope import normalizers as nz
from attnscope.errors import InputError

pytestmark = pytest.mark.pairwise

ALL = [nz.get(name) for name in nz.names()] + [nz.get("entmax", alpha=1.3)]
EVERY = pytest.mark.parametrize("normalizer", ALL, ids=[*nz.names(), "entmax-1.3"])


@pytest.fixture(params=["loops", "reference"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "reference":
        with nz.reference_only():
            yield request.param
    else:
        yield request.param


def logits(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(11)).to(dtype)


@EVERY
def test_a_row_with_nothing_visible_gives_zeros_and_no_gradient(normalizer: nz.Normalizer) -> None:
    """Fault 1."""
    z = logits(3, 5).requires_grad_()
    visible = torch.ones(3, 5, dtype=torch.bool)
    visible[1] = False
    weights = normalizer(z, visible)
    assert torch.equal(weights[1], torch.zeros(5))
    weights.square().sum().backward()
    assert z.grad is not None
    assert torch.equal(z.grad[1], torch.zeros(5))
    assert bool(z.grad.isfinite().all())


@EVERY
def test_a_masked_key_gets_exactly_zero_whatever_its_logit(normalizer: nz.Normalizer) -> None:
    z = logits(7, 5)
    visible = torch.tensor([True, False, True, True, False])
    invalid = z.clone()
    invalid[:, 1], invalid[:, 4] = torch.nan, torch.inf
    weights = normalizer(invalid, visible)
    assert torch.equal(weights[:, ~visible], torch.zeros(7, 2))
    torch.testing.assert_close(weights[:, visible], normalizer(z[:, visible]), rtol=1e-6, atol=1e-7)


@EVERY
def test_masked_keys_have_zero_gradient(normalizer: nz.Normalizer) -> None:
    z = logits(7, 5)
    z[:, 1], z[:, 4] = torch.nan, -torch.inf
    z.requires_grad_()
    visible = torch.tensor([True, False, True, True, True])
    torch.autograd.backward(normalizer(z, visible), logits(7, 5) + 1)
    assert z.grad is not None
    assert torch.equal(z.grad[:, [1, 4]], torch.zeros(7, 2))
    assert bool(z.grad.isfinite().all())


@EVERY
def test_minus_infinity_is_a_masked_key_without_a_mask(normalizer: nz.Normalizer) -> None:
    z = logits(3, 7)
    visible = torch.tensor([True, True, False, True, False, True, True])
    filled = z.masked_fill(~visible, -torch.inf)
    torch.testing.assert_close(normalizer(filled), normalizer(z, visible), rtol=0, atol=0)
    empty = torch.full((2, 3), -torch.inf)
    assert torch.equal(normalizer(empty), torch.zeros(2, 3))


@EVERY
def test_no_mask_and_a_mask_of_ones_agree(normalizer: nz.Normalizer) -> None:
    """Fault 3."""
    z = logits(5, 7)
    assert torch.equal(normalizer(z), normalizer(z, torch.ones(5, 7, dtype=torch.bool)))


@EVERY
def test_the_length_is_that_of_the_visible_keys_not_of_the_padding(normalizer: nz.Normalizer) -> None:
    z = logits(3, 5)
    padded = torch.cat([logits(3, 8), z], dim=-1)
    visible = torch.arange(13) >= 8
    torch.testing.assert_close(normalizer(padded, visible)[:, 8:], normalizer(z), rtol=1e-6, atol=1e-7)


@EVERY
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_an_invalid_logit_changes_no_other_row(normalizer: nz.Normalizer, value: float) -> None:
    z = logits(5, 7)
    visible = torch.ones(5, 7, dtype=torch.bool).tril(3)
    good = normalizer(z, visible)
    z[2, 0] = value
    weights = normalizer(z, visible)
    rest = [0, 1, 3, 4]
    torch.testing.assert_close(weights[rest], good[rest], rtol=0, atol=0)
    assert torch.equal(weights[2, 6:], torch.zeros(1))  # masked keys stay zero even there
    if math.isnan(value):
        assert bool(weights[2, 0].isnan())


@EVERY
def test_an_invalid_logit_changes_no_other_gradient(normalizer: nz.Normalizer) -> None:
    z = logits(5, 7)
    z[2, 0] = torch.nan
    z.requires_grad_()
    torch.autograd.backward(normalizer(z), logits(5, 7))
    assert z.grad is not None
    assert bool(z.grad[[0, 1, 3, 4]].isfinite().all())


@EVERY
@pytest.mark.parametrize("shape", [(7,), (1, 7), (2, 3, 5, 7), (0, 7), (3, 0), (5, 1)], ids=str)
def test_any_leading_shape(normalizer: nz.Normalizer, shape: tuple[int, ...]) -> None:
    z = logits(*shape)
    weights = normalizer(z)
    assert weights.shape == shape
    if z.numel():
        rows = torch.stack([normalizer(row) for row in z.reshape(-1, shape[-1])])
        torch.testing.assert_close(weights.reshape(rows.shape), rows, rtol=1e-6, atol=1e-7)


@EVERY
def test_a_mask_broadcasts_over_heads_and_queries(normalizer: nz.Normalizer) -> None:
    z = logits(2, 3, 5, 7)
    for shape in ((2, 1, 1, 7), (5, 7), (1, 1, 5, 1), (2, 3, 5, 7)):
        visible = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3
        full = visible.expand(2, 3, 5, 7).contiguous()
        assert torch.equal(normalizer(z, visible), normalizer(z, full))


@EVERY
def test_strided_logits_give_the_same_weights(normalizer: nz.Normalizer) -> None:
    z = logits(7, 5)
    torch.testing.assert_close(normalizer(z.t().contiguous().t()), normalizer(z), rtol=1e-6, atol=1e-7)


@EVERY
def test_a_row_of_one_key(normalizer: nz.Normalizer) -> None:
    """Fault 4."""
    z = torch.tensor([[0.7]], requires_grad=True)
    weights = normalizer(z)
    assert bool(weights.isfinite().all())
    if normalizer.facts.sums_to_one:
        torch.testing.assert_close(weights, torch.ones(1, 1))
    weights.sum().backward()
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


def test_integer_logits_are_refused() -> None:
    with pytest.raises(InputError, match=r"floating point tensor, received torch\.int64"):
        nz.softmax(torch.arange(3))


def test_an_additive_mask_is_refused() -> None:
    with pytest.raises(InputError, match=r"boolean mask .* received torch\.float32"):
        nz.softmax(torch.zeros(3), torch.zeros(3))


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(2, 5\) does not broadcast against logits of shape \(3, 7\)"):
        nz.softmax(torch.zeros(3, 7), torch.ones(2, 5, dtype=torch.bool))


def test_a_parameter_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"alpha\[:, None\]"):
        nz.entmax(torch.zeros(3, 5, 7), alpha=torch.full((3,), 1.5))


def test_a_parameter_that_does_not_fit_the_rows_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"s of shape \(7,\) does not broadcast against the rows of logits, \(2,\)"):
        nz.ssmax(torch.zeros(2, 4), s=torch.ones(7))


@EVERY
def test_lists_are_refused_by_every_method(normalizer: nz.Normalizer) -> None:
    for method in (normalizer.weights, normalizer.jacobian_norm, normalizer.jacobian_bound):
        with pytest.raises(InputError, match="floating point tensor, received list"):
            method([0.1, 0.2])  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"boolean tensor .* received list"):
            method(torch.zeros(2), [True, False])  # type: ignore[arg-type]


@EVERY
@pytest.mark.parametrize("length", [0, -1, 1.5])
def test_a_length_below_one_is_refused(normalizer: nz.Normalizer, length: int) -> None:
    with pytest.raises(InputError, match="length must be a whole number and at least 1, received"):
        normalizer.lipschitz(length)
    with pytest.raises(InputError, match="length must be a whole number and at least 1, received"):
        normalizer.weight_bounds(length, 0.0, 1.0)


@EVERY
def test_the_largest_finite_logits_give_finite_weights(normalizer: nz.Normalizer) -> None:
    z = torch.tensor([[3.2e38, -3.2e38, 0.0], [-3.2e38, -3.2e38, -3.1e38], [3.2e38, 3.2e38, 1.0]])
    weights = normalizer(z)
    assert bool(weights.isfinite().all())
    if normalizer.facts.sums_to_one:
        torch.testing.assert_close(weights.sum(-1), torch.ones(3))


@pytest.mark.parametrize("heads", [0, -1])
def test_a_module_without_heads_is_refused(heads: int) -> None:
    for module in (nz.LearnedSSMax, nz.LearnedSink, nz.LearnedEntmax, nz.LearnedASEntmax, nz.LearnedLipmax):
        with pytest.raises(InputError, match=f"heads must be a whole number and at least 1, received {heads}"):
            module(heads)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("softmax", {"temperature": 0.0}, "temperature must be positive and finite, received 0.0"),
        ("topk", {"k": 0}, "k must be a whole number and at least 1, received 0"),
        ("entmax", {"alpha": 2.5}, r"alpha must be in \[1, 2\], received"),
        ("entmax", {"alpha": torch.tensor([1.5, 0.5])}, r"alpha must be in \[1, 2\], received"),
        ("lipmax", {"alpha": 1.2}, r"alpha must be in \[1.5, 2\], received 1.2"),
        ("lipmax", {"cap": -1.0}, "cap must be positive and finite, received -1.0"),
        ("logn", {"n_train": 1}, "n_train must be a whole number and at least 2, received 1"),
        ("f_normalizer", {"function": "cosh"}, "no function F is named 'cosh'"),
        ("softmax", {"temperature": float("nan")}, "temperature must be positive and finite, received nan"),
        ("topk", {"k": 1.5}, "k must be a whole number and at least 1, received 1.5"),
        ("ssmax", {"s": float("inf")}, "s must be finite, received inf"),
        ("ssmax", {"b": torch.tensor([0.1, torch.nan])}, "b must be finite, received tensor"),
        ("sink_softmax", {"sink": float("nan")}, "sink must be finite or -inf, received nan"),
        ("sigmoid", {"bias": float("inf")}, "bias must be finite, received inf"),
        ("entmax", {"alpha": "a"}, "alpha must be a number or a tensor, received 'a'"),
        ("asentmax", {"gamma": float("nan")}, "gamma must be finite, received nan"),
        ("sparsemax", {"alpha": 2}, "the normalizer sparsemax has no setting 'alpha'$"),
        ("ssmax", {"b": 1, "x": 2}, "the normalizer ssmax has no setting 'x'; it has s, b$"),
        ("softermax", {}, "no normalizer is named 'softermax': choose from adaptive_temperature"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_invalid_settings_are_refused(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        nz.get(name, **settings)
