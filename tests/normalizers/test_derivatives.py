"""First and second derivatives, in both modes, by finite differences and through torch's transforms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, jacrev, jvp, linearize, vmap

from attnscope import normalizers as nz

# torch's own forward-mode rules compile themselves with a function that torch has deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    # Tracing instantiates every autograd function.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

ALL = {name: nz.get(name) for name in nz.names()}
ALL |= {
    "entmax-1.3": nz.get("entmax", alpha=1.3),
    "topk-3": nz.get("topk", k=3),
    "ssmax-negative": nz.get("ssmax", s=-0.6, b=-0.1),
    "f-square": nz.get("f_normalizer", function="one_plus_square"),
    "f-sigmoid": nz.get("f_normalizer", function="sigmoid"),
    "lipmax-1.6": nz.get("lipmax", alpha=1.6),
    "sigmoid-fixed": nz.get("sigmoid", bias=0.3),
}
EVERY = pytest.mark.parametrize("normalizer", ALL.values(), ids=ALL)


def smooth_rows() -> Tensor:
    """Rows of distinct logits, away from the kinks where a key enters or leaves the support."""
    z = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return z * torch.tensor([[0.2], [0.7], [1.3]], dtype=torch.float64)


VISIBLE = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)


@EVERY
@pytest.mark.parametrize(
    "visible",
    [pytest.param(None, marks=pytest.mark.thorough), VISIBLE],  # the first row of VISIBLE sees all
    ids=["all-visible", "masked"],
)
def test_first_and_second_derivatives(normalizer: nz.Normalizer, visible: Tensor | None) -> None:
    z = smooth_rows().requires_grad_()
    assert gradcheck(lambda x: normalizer(x, visible), (z,), check_forward_ad=True)
    assert gradgradcheck(lambda x: normalizer(x, visible), (z,), check_fwd_over_rev=True)


PARAMETERS: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "softmax": (nz.softmax, {"temperature": 0.7}),
    "ssmax": (nz.ssmax, {"s": 0.5, "b": 0.3}),
    "sink_softmax": (nz.sink_softmax, {"sink": 0.4}),
    "sigmoid": (nz.sigmoid, {"bias": -0.4}),
    "entmax": (nz.entmax, {"alpha": 1.4}),
    "entmax-near-2": (nz.entmax, {"alpha": 1.97}),
    "asentmax": (nz.asentmax, {"alpha": 1.6, "beta": 0.4, "gamma": -0.7, "delta": 0.9}),
    "lipmax": (nz.lipmax, {"alpha": 1.7, "kappa": 0.8, "cap": 1.5}),
    "power_softmax": (nz.power_softmax, {"kappa": 0.8, "gamma": 0.3}),
    "lipmix": (nz.lipmix, {"alpha": 1.7, "kappa": 0.8, "gamma": 0.2, "cap": 1.5, "gate": 0.3}),
}


@pytest.mark.parametrize(("function", "parameters"), PARAMETERS.values(), ids=PARAMETERS)
def test_derivatives_in_the_parameters(function: Callable[..., Tensor], parameters: dict[str, float]) -> None:
    z = smooth_rows().requires_grad_()
    values = [torch.full((3,), v, dtype=torch.float64, requires_grad=True) for v in parameters.values()]

    def call(x: Tensor, *given: Tensor) -> Tensor:
        return function(x, VISIBLE, **dict(zip(parameters, given, strict=True)))

    assert gradcheck(call, (z, *values), check_forward_ad=True)
    assert gradgradcheck(call, (z, *values), check_fwd_over_rev=True)


def test_the_gradient_in_alpha_at_one_is_the_limit_from_above() -> None:
    """dw/dalpha tends to -p (ln^2 p - sum p ln^2 p) / 2, so that a learned alpha can leave 1."""
    z = smooth_rows()
    alpha = torch.ones(3, dtype=torch.float64, requires_grad=True)
    v = torch.randn(3, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((nz.entmax(z, alpha=alpha) * v).sum(), alpha)
    p = torch.softmax(z, -1)
    square = p.log().square()
    want = (-0.5 * p * (square - (p * square).sum(-1, keepdim=True)) * v).sum(-1)
    torch.testing.assert_close(gradient, want, rtol=1e-10, atol=1e-12)
    above = nz.entmax(z, alpha=1.002)
    torch.testing.assert_close(((above - p) * v).sum(-1) / 2e-3, want, rtol=2e-2, atol=2e-3)


@EVERY
def test_jacobians_agree_in_reverse_and_forward_mode_and_under_vmap(normalizer: nz.Normalizer) -> None:
    z = smooth_rows()
    reverse = vmap(jacrev(normalizer))(z)
    forward = vmap(jacfwd(normalizer))(z)
    row_by_row = torch.stack([torch.autograd.functional.jacobian(normalizer, row) for row in z])
    torch.testing.assert_close(reverse, row_by_row, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(forward, row_by_row, rtol=1e-9, atol=1e-12)


@EVERY
def test_vmap_over_any_dimension_equals_a_loop(normalizer: nz.Normalizer) -> None:
    z = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    mask = torch.ones(3, 5, dtype=torch.bool).tril(2)
    for dim in (0, 1):
        want = torch.stack([normalizer(x, None) for x in z.unbind(dim)], dim)
        torch.testing.assert_close(vmap(normalizer, in_dims=dim, out_dims=dim)(z), want, rtol=1e-12, atol=1e-14)
    want = torch.stack([normalizer(z[:, i], mask[i]) for i in range(3)], 1)
    torch.testing.assert_close(vmap(normalizer, in_dims=(1, 0), out_dims=1)(z, mask), want)


@EVERY
def test_hessians_are_symmetric_and_vectorize(normalizer: nz.Normalizer) -> None:
    z = smooth_rows()
    v = torch.linspace(-1, 2, 5, dtype=torch.float64)
    hessians = vmap(hessian(lambda x: (normalizer(x) * v).sum()))(z)
    torch.testing.assert_close(hessians, hessians.mT, rtol=1e-8, atol=1e-10)
    want = torch.autograd.functional.hessian(lambda x: (normalizer(x) * v).sum(), z[1])
    torch.testing.assert_close(hessians[1], want, rtol=1e-8, atol=1e-10)


@EVERY
def test_a_forward_mode_derivative_is_the_jacobian_on_the_direction(normalizer: nz.Normalizer) -> None:
    z, v = smooth_rows(), smooth_rows().flip(0)
    _, tangent = jvp(normalizer, (z,), (v,))
    want = torch.einsum("rij,rj->ri", vmap(jacrev(normalizer))(z), v)
    torch.testing.assert_close(tangent, want, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "sigmoid", "lipmax"])
def test_linearize_agrees_with_forward_mode(name: str) -> None:
    """Linearize records operations and replays them on other inputs, so all of them must be recorded."""
    z, direction = smooth_rows(), smooth_rows().flip(-1)
    value, derivative = linearize(ALL[name], z)
    assert torch.equal(value, ALL[name](z))
    for step in (direction, -2 * direction):
        assert torch.allclose(derivative(step), jvp(ALL[name], (z,), (step,))[1], rtol=1e-12, atol=1e-14)


@EVERY
def test_loops_and_reference_have_the_same_gradient(normalizer: nz.Normalizer) -> None:
    def gradient() -> Tensor:
        z = torch.randn(7, 131, generator=torch.Generator().manual_seed(8)).requires_grad_()
        v = torch.randn(7, 131, generator=torch.Generator().manual_seed(9))
        (gradient,) = torch.autograd.grad(normalizer(z), z, v)
        return gradient

    by_loop = gradient()
    with nz.reference_only():
        torch.testing.assert_close(by_loop, gradient(), rtol=1e-5, atol=1e-6)


COMPILED = ["softmax", "entmax-1.3", "topk-3"]
COMPILED += [
    pytest.param(name, marks=pytest.mark.thorough)
    for name in ("ssmax", "sparsemax", "entmax15", "sigmoid", "sa_softmax")
]


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_caller_has_one_graph_and_the_same_results(name: str) -> None:
    normalizer = ALL[name]

    def caller(x: Tensor) -> Tensor:
        return (normalizer(2 * x).square() + 1).sum()

    torch._dynamo.reset()
    compiled = torch.compile(caller, backend="aot_eager", fullgraph=True)
    z = smooth_rows().float()
    plain, traced = z.clone().requires_grad_(), z.clone().requires_grad_()
    expected, actual = caller(plain), compiled(traced)
    torch.testing.assert_close(actual, expected)
    expected.backward()
    actual.backward()
    torch.testing.assert_close(traced.grad, plain.grad, rtol=1e-5, atol=1e-6)
