"""Eq. (8), Theorem 1(2) and Corollary 2: the expected distance when the set is drawn at random.

I_N is uniform among the N-subsets of the L visible tokens; E is the expectation of eq. (7), d~ = sum over
i not in I_N of |y_i - s|, with y_i = alpha_i x_i. Below, n = L - 1 and p = N / n.

Given that token i is left out (probability 1 - N/L), the set is a uniform N-subset of the other n tokens. The bounds
below use the mean, the variance and the fourth moment of its sum. Of a configuration they use the weights, vectors and
set sizes only, not the members of its sets. The expectation itself, by enumerating or drawing sets, is at the end;
there `n` is N, and `draws` sets per row are taken from the `generator`. `depth` is how many tokens are peeled off.
"""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.errors import InputError
from attnscope.theory.configuration import Configuration, Interval, leave_one_out
from attnscope.theory.distance import distance

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# The most sets that are enumerated.
MOST_SETS = 20_000


class Estimate(NamedTuple):
    """A mean and its standard error.

    >>> Estimate(torch.tensor(0.5), torch.tensor(0.1)).mean
    tensor(0.5000)
    """

    mean: Tensor
    error: Tensor


def random_set_main_printed(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Theorem 1(2), main term as printed: (1 - N/L) sum_i |(alpha_i + p) x_i - xbar|.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_main_printed(c)
    tensor([[1.4129, 1.1188]])

    A misprint: N/(L-1) multiplies x_i where it should multiply xbar - y_i. For x_i = 1 and uniform
    weights with L = 4, N = 3 it gives 0.25, and the true expectation is 0.5.
    """
    factors = c.weights.unsqueeze(-2) + _share(c).unsqueeze(-1)
    norms = c.difference_norms(factors, c.mean.unsqueeze(-2), c.mean_products.unsqueeze(-2))
    return _left_out(c) * torch.where(c.visible.unsqueeze(-2), norms, 0).sum(-1)


def random_set_lower(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E1, left side, the corrected main term: (1 - N/L) sum_i |mu_i| <= E.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_lower(c), random_set_upper(c)
    (tensor([[0.8588, 0.6164]]), tensor([[1.0028, 0.6164]]))

    Given that i is left out, the set is a uniform N-subset of the other n tokens, so
    mu_i = E[y_i - s] = (1 + p) y_i - p xbar, and Jensen's inequality gives |mu_i| <= E|y_i - s|.
    """
    return _left_out(c) * _mean_norms(c).sum(-1)


def random_set_upper(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E1, right side: E <= (1 - N/L) sum_i min{ sqrt(|mu_i|^2 + V_i), |y_i| + p sum_{j != i} |y_j| }.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_upper(c)
    tensor([[1.0028, 0.6164]])

    V_i = N (n - N) / (n (n - 1)) [ sum_{j != i} |y_j|^2 - |xbar - y_i|^2 / n ] is the exact variance of s given that
    i is left out. The first branch is E|Y| <= sqrt(E|Y|^2), the second the triangle inequality.
    """
    by_moments = (_mean_norms(c).square() + _variance(c)).sqrt()
    norms = c.scaled_norms.unsqueeze(-2)
    by_triangle = norms + _share(c).unsqueeze(-1) * leave_one_out(norms)
    least = torch.minimum(by_moments, by_triangle)
    return _left_out(c) * torch.where(c.visible.unsqueeze(-2), least, 0).sum(-1)


def random_set_epsilon_printed(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Theorem 1(2), the printed bound on epsilon.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_epsilon_printed(c)
    tensor([[0.3209, 0.2055]])

    (1/2)(1 - N/L) sum_i p sum_{j != i} |y_j|^2 / |y_i - p sum_{j != i} y_j|. The denominator is |mu_i|: the main
    term is a misprint of E1's left side; with that main term the bound is true. Infinite where some mu_i is zero, or no
    longer than its rounding error; a term 0/0 counts as zero.
    """
    others = leave_one_out(c.scaled_norms.square().unsqueeze(-2))
    norms = _mean_norms(c)
    rounding = (c.length.unsqueeze(-1) + 12) * torch.finfo(norms.dtype).eps / 2
    vanishes = norms <= rounding * (1 + _share(c).unsqueeze(-1)) * c.scaled_norms.unsqueeze(-2)
    terms = torch.where(others > 0, others / torch.where(vanishes, 0, norms), 0)
    total = torch.where(c.visible.unsqueeze(-2), terms, 0).sum(-1)
    return 0.5 * _left_out(c) * _share(c) * total


def random_set_upper_global(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E2: E <= (1 - N/L)(1 + N) sum_j |y_j|, at most (N+1) max |x| for weights that sum to one.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_upper_global(c)
    tensor([[1.3333, 1.0000]])

    Sum the triangle branch of E1 over i. Attained by one-hot weights. So for fixed N the expectation cannot grow
    linearly in L, as the paper reads off its Figure 2.
    """
    return _left_out(c) * (1 + c.count) * _total_norm(c)


def corollary_2_small_printed(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Corollary 2(i) as printed: for fixed N and growing L, E ~ sum_i |y_i|.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> corollary_2_small_printed(c)
    tensor([[1., 1.]])

    False: the ratio of E to it tends to sqrt(N+1) for orthonormal vectors, N - 1 for identical ones (with uniform
    weights), N + 1 for one-hot weights: see E1, E2. Nor does the sum grow with L: it is a weighted mean of the |x_i|.
    """
    return _total_norm(c).expand_as(c.count)


def last_token_expectation(c: Configuration) -> Float[Tensor, "*batch rows"]:
    """E at N = L - 1, exactly: the mean over i of |2 y_i - xbar|.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> last_token_expectation(c)
    tensor([0.6164])

    Corollary 2(ii), "E -> 0 as N -> L", holds only because the sum is empty at N = L. With one token left out the
    distance is about |xbar|.
    """
    norms = c.difference_norms(2 * c.weights.unsqueeze(-2), c.mean.unsqueeze(-2), c.mean_products.unsqueeze(-2))
    return torch.where(c.visible.unsqueeze(-2), norms, 0).sum(-1).squeeze(-1) / c.length.squeeze(-1)


def random_set_lower_moments(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E3: E >= (1 - N/L) sum_i max{ |mu_i|, m2^{3/2} / m4^{1/2} }, m_k = E|Y_i|^k exactly, Y_i = y_i - s.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_lower_moments(c)
    tensor([[0.9535, 0.6164]])

    Hoelder: E|Y|^2 <= (E|Y|)^{2/3} (E|Y|^4)^{1/3}. With z_j = y_j minus the mean over j != i, Z their sum over the set,
    A = sum |z|^2, Q = sum |z|^4, C = sum z z^T, and p_k = N(N-1)..(N-k+1) / (n(n-1)..(n-k+1)):

        E|Z|^2 = (p1 - p2) A,  E(mu.Z)^2 = (p1 - p2) mu.C mu,
        E[(mu.Z)|Z|^2] = (p1 - 3 p2 + 2 p3) sum_j (mu.z_j)|z_j|^2,
        E|Z|^4 = (p1 - 7 p2 + 12 p3 - 6 p4) Q + (p2 - 2 p3 + p4)(A^2 + 2 |C|_F^2),
        m4 = |mu|^4 + 4 E(mu.Z)^2 + E|Z|^4 + 2 |mu|^2 E|Z|^2 - 4 E[(mu.Z)|Z|^2].

    Inclusion probabilities times sums over distinct indices, rewritten by Moebius inversion with sum z = 0. Loops
    over the tokens at O(L d min(L, d)) each, so it is meant for rows of a few hundred keys.
    """
    scaled = torch.where(c.visible.unsqueeze(-1), c.weights.unsqueeze(-1) * c.vectors.unsqueeze(-3), 0)
    share = _share(c)
    n = c.length - 1
    inclusion = [torch.ones_like(share)]
    for k in range(4):
        step = torch.where(n > k, (c.count - k).clamp_min(0) / (n - k).clamp_min(1), 0)
        inclusion.append(inclusion[-1] * step)
    _, p1, p2, p3, p4 = inclusion
    total = torch.zeros_like(share)
    for i in range(c.weights.shape[-1]):
        others = c.visible.clone()
        others[..., i] = False
        rest = torch.where(others.unsqueeze(-1), scaled, 0)
        mean = rest.sum(-2) / n.clamp_min(1)
        z = torch.where(others.unsqueeze(-1), scaled - mean.unsqueeze(-2), 0)
        mu = scaled[..., None, i, :] - c.count.unsqueeze(-1) * mean.unsqueeze(-2)  # (..., rows, sets, dims)
        squares = z.square().sum(-1)
        scatter = squares.sum(-1, keepdim=True)
        fourth = squares.square().sum(-1, keepdim=True)
        # |C|_F is the same for z z^T and z^T z: the smaller of the two is built.
        gram = z @ z.mT if z.shape[-2] < z.shape[-1] else z.mT @ z
        frobenius = gram.square().sum((-2, -1)).unsqueeze(-1)
        products = mu @ z.mT
        size = mu.square().sum(-1)
        second = (p1 - p2) * scatter
        projected = (p1 - p2) * products.square().sum(-1)
        third = (p1 - 3 * p2 + 2 * p3) * (products * squares.unsqueeze(-2)).sum(-1)
        quartic = (p1 - 7 * p2 + 12 * p3 - 6 * p4) * fourth
        quartic = quartic + (p2 - 2 * p3 + p4) * (scatter.square() + 2 * frobenius)
        m2 = size + second
        m4 = size.square() + 4 * projected + quartic + 2 * size * second - 4 * third
        # E|Y|^4 >= (E|Y|^2)^2; rounding must not push it below, or the bound would be too large.
        m4 = torch.maximum(m4, m2.square())
        by_moments = torch.where(m2 > 0, m2 * (m2 / m4).sqrt(), 0)
        term = torch.maximum(size.sqrt(), by_moments)
        total = total + torch.where(c.visible[..., i, None], term, 0)
    return _left_out(c) * total


def random_set_variance_upper(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E4: Var(d~) <= (L-N+1)^2 N(L-N) / (L(L-1)) (sum_i |y_i|^2 - |xbar|^2 / L), over the random set.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_variance_upper(c)
    tensor([[0.7600, 0.3378]])

    Spectral gap of the Bernoulli-Laplace walk, L / (N(L-N)): Var f <= N(L-N)/(2L) E(f(I) - f(I'))^2 for a random swap
    of a selected token a with another b. The swap changes d~ by at most (L-N+1)|y_a - y_b|: s moves by y_b - y_a for
    the L-N-1 tokens that stay out, and the one exchanged adds at most twice that.
    """
    scatter = _squares_about_mean(c).sum(-1)
    size, left = c.count, c.length - c.count
    return (left + 1).square() * size * left / (c.length * (c.length - 1)) * scatter


def random_set_second_moment_upper(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E[d~^2] <= ((L-N)^2 / L) sum_i (|mu_i|^2 + V_i): Cauchy-Schwarz over the L - N tokens left out.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_second_moment_upper(c)
    tensor([[1.0133, 0.3800]])
    """
    total = (_mean_norms(c).square() + _variance(c)).sum(-1)
    return (c.length - c.count).square() / c.length * total


def random_set_peeled(c: Configuration, depth: int) -> Interval:
    """E1 conditioned on which of the `depth` tokens with the largest |y| are in the set ("peeling").

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> random_set_peeled(c, depth=1)
    Interval(lower=tensor([[0.9686, 0.6164]]), upper=tensor([[0.9884, 0.6164]]))

    A sink makes s nearly two-valued, which one variance describes badly. Each of the 2^k patterns, k = `depth`, with m
    of the k tokens inside has probability C(L-k, N-m) / C(L, N); the rest of the set is a uniform (N-m)-subset of the
    others, so E1 applies. Both sides tighten as the depth grows (Jensen for a finer condition); depth 0 is E1 itself.
    """
    order = torch.where(c.visible, c.scaled_norms, -1.0).argsort(dim=-1, descending=True, stable=True)
    scaled = torch.where(c.visible.unsqueeze(-1), c.weights.unsqueeze(-1) * c.vectors.unsqueeze(-3), 0)
    scaled = scaled.gather(-2, order.unsqueeze(-1).expand_as(scaled))
    visible = c.visible.gather(-1, order)
    depth = min(depth, int(c.length.min()))
    peeled, rest = scaled[..., :depth, :], scaled[..., depth:, :]
    left = visible[..., depth:].unsqueeze(-2)  # (..., rows, 1, keys): an axis for the sets
    size = c.length - depth
    lower, upper = torch.zeros_like(c.count), torch.zeros_like(c.count)
    for pattern in product((False, True), repeat=depth):
        inside = torch.tensor(pattern, dtype=torch.bool, device=scaled.device)
        drawn = c.count - int(inside.sum())  # how many of the rest are in the set
        chance = torch.exp(_log_choose(size, drawn) - _log_choose(c.length, c.count))
        chance = torch.where((drawn >= 0) & (drawn <= size), chance, 0)
        drawn = drawn.clamp_min(0).minimum(size)
        base = peeled[..., inside, :].sum(-2)
        out = peeled[..., ~inside, :] - base.unsqueeze(-2)
        sides = [
            _left_peeled(out, rest, left, size, drawn),
            _left_rest(rest - base.unsqueeze(-2), rest, left, size, drawn),
        ]
        lower = lower + chance * (sides[0].lower + sides[1].lower)
        upper = upper + chance * (sides[0].upper + sides[1].upper)
    return Interval(lower, upper)


def every_distance(
    weights: Float[Tensor, "*batch rows keys"], vectors: Float[Tensor, "*batch keys dims"], n: int
) -> Float[Tensor, "*batch rows sets"]:
    """d~ of each of the C(L, n) sets of n tokens, in lexicographic order; all keys are visible.

    >>> weights, vectors = torch.full((1, 4), 0.25), torch.ones(4, 1)
    >>> every_distance(weights, vectors, 3).mean()
    tensor(0.5000)
    """
    keys = weights.shape[-1]
    if not 0 <= n <= keys or math.comb(keys, n) > MOST_SETS:
        raise InputError(
            f"cannot enumerate the sets of {n} among {keys} tokens (limit {MOST_SETS} sets): draw sets instead"
        )
    sets = torch.tensor(list(combinations(range(keys), n)), dtype=torch.long, device=weights.device).reshape(-1, n)
    chosen = torch.zeros(len(sets), keys, dtype=torch.bool, device=weights.device).scatter_(-1, sets, True)
    return distance(_with_sets(weights, vectors, chosen.expand(*weights.shape[:-1], *chosen.shape)))


def expectation_exhaustive(
    weights: Float[Tensor, "*batch rows keys"], vectors: Float[Tensor, "*batch keys dims"], n: int
) -> Float[Tensor, "*batch rows"]:
    """E of eq. (8), exact, by enumerating every set.

    >>> weights, vectors = torch.full((1, 4), 0.25), torch.ones(4, 1)
    >>> expectation_exhaustive(weights, vectors, 3)
    tensor([0.5000])
    """
    return every_distance(weights, vectors, n).mean(-1)


def expectation_drawn(
    weights: Float[Tensor, "*batch rows keys"],
    vectors: Float[Tensor, "*batch keys dims"],
    n: int,
    draws: int,
    generator: torch.Generator,
) -> Estimate:
    """Estimate of E of eq. (8) from `draws` random sets per row, with its standard error.

    >>> weights, vectors = torch.full((1, 4), 0.25), torch.ones(4, 1)
    >>> estimate = expectation_drawn(weights, vectors, 3, draws=100, generator=torch.Generator().manual_seed(0))
    >>> estimate.mean
    tensor([0.5000])
    """
    scores = torch.rand(*weights.shape[:-1], draws, weights.shape[-1], generator=generator)
    chosen = scores.argsort(-1).argsort(-1) < n
    distances = distance(_with_sets(weights, vectors, chosen.to(weights.device)))
    return Estimate(distances.mean(-1), distances.std(-1) / math.sqrt(draws))


def _with_sets(weights: Tensor, vectors: Tensor, selected: Tensor) -> Configuration:
    return Configuration(weights, vectors, torch.ones_like(weights, dtype=torch.bool), selected)


def _left_peeled(out: Tensor, rest: Tensor, left: Tensor, size: Tensor, drawn: Tensor) -> Interval:
    """Bounds on E|out - sum of a uniform subset of the rest|, summed over the peeled tokens outside the set."""
    mean = rest.sum(-2) / size.clamp_min(1)
    scatter = torch.where(left.squeeze(-2), (rest - mean.unsqueeze(-2)).square().sum(-1), 0).sum(-1, keepdim=True)
    variance = _sampling_factor(size, drawn) * scatter
    mu = out.unsqueeze(-3) - (drawn.unsqueeze(-1) * mean.unsqueeze(-2)).unsqueeze(-2)
    triangle = out.norm(dim=-1).unsqueeze(-2)
    triangle = triangle + (drawn / size.clamp_min(1) * rest.norm(dim=-1).sum(-1, keepdim=True)).unsqueeze(-1)
    return _bracket(mu, variance.unsqueeze(-1), triangle, torch.ones_like(triangle, dtype=torch.bool))


def _left_rest(out: Tensor, rest: Tensor, left: Tensor, size: Tensor, drawn: Tensor) -> Interval:
    """The same for the tokens of the rest, each left out with probability 1 - drawn / size."""
    n = (size - 1).clamp_min(1)
    about = torch.where(left.squeeze(-2).unsqueeze(-1), rest - (rest.sum(-2) / size.clamp_min(1)).unsqueeze(-2), 0)
    squares = about.square().sum(-1).unsqueeze(-2)
    variance = _variance_without(squares, n, drawn.minimum(n))
    others = rest.sum(-2, keepdim=True) - rest
    share = (drawn / n).unsqueeze(-1)
    mu = out.unsqueeze(-3) - share.unsqueeze(-1) * others.unsqueeze(-3)
    triangle = out.norm(dim=-1).unsqueeze(-2) + share * leave_one_out(rest.norm(dim=-1)).unsqueeze(-2)
    bracket = _bracket(mu, variance, triangle, left.expand(triangle.shape))
    chance = (size - drawn) / size.clamp_min(1)
    return Interval(chance * bracket.lower, chance * bracket.upper)


def _bracket(mu: Tensor, variance: Tensor, triangle: Tensor, counts: Tensor) -> Interval:
    """|mu| <= E|Y| <= min{ sqrt(|mu|^2 + V), triangle }, summed over the keys that count."""
    size = mu.norm(dim=-1)
    least = torch.minimum((size.square() + variance).sqrt(), triangle)
    return Interval(torch.where(counts, size, 0).sum(-1), torch.where(counts, least, 0).sum(-1))


def _sampling_factor(n: Tensor, size: Tensor) -> Tensor:
    """m (n - m) / (n (n - 1)), the variance of a sum over a uniform m-subset of n per unit of scatter; 0 for n = 1."""
    return torch.where(n > 1, size * (n - size) / (n * (n - 1).clamp_min(1)), 0)


def _variance_without(squares: Tensor, n: Tensor, size: Tensor) -> Tensor:
    """Variance of the sum of a uniform `size`-subset of the n tokens other than i; `squares` about the mean of all."""
    scatter = (leave_one_out(squares) - squares / n.unsqueeze(-1)).clamp_min(0)
    return _sampling_factor(n, size).unsqueeze(-1) * scatter


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    """ln of the binomial coefficient; meaningless outside 0 <= k <= n, to be discarded by the caller."""
    inside = k.clamp_min(0).minimum(n)
    return torch.lgamma(n + 1) - torch.lgamma(inside + 1) - torch.lgamma(n - inside + 1)


def _squares_about_mean(c: Configuration) -> Float[Tensor, "*batch rows 1 keys"]:
    """|y_i - xbar/L|^2: centered, so that nothing cancels in a variance when all y are alike."""
    centre = (c.mean / c.length).unsqueeze(-2)
    products = (c.mean_products / c.length).unsqueeze(-2)
    squares = c.difference_norms(c.weights.unsqueeze(-2), centre, products)[..., :1, :].square()
    return torch.where(c.visible.unsqueeze(-2), squares, 0)


def _variance(c: Configuration) -> Float[Tensor, "*batch rows sets keys"]:
    """V_i = N(n-N)/(n(n-1)) [ sum_{j != i} |y_j|^2 - |xbar - y_i|^2 / n ], zero for keys that are not visible."""
    variance = _variance_without(_squares_about_mean(c), c.length - 1, c.count)
    return torch.where(c.visible.unsqueeze(-2), variance, 0)


def _share(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """p = N / (L - 1)."""
    return c.count / (c.length - 1)


def _total_norm(c: Configuration) -> Float[Tensor, "*batch rows 1"]:
    """sum_i |y_i|."""
    return torch.where(c.visible, c.scaled_norms, 0).sum(-1, keepdim=True)


def _left_out(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """1 - N/L, the probability that a token is left out."""
    return (c.length - c.count) / c.length


def _mean_norms(c: Configuration) -> Float[Tensor, "*batch rows sets keys"]:
    """|mu_i| = |(1 + p) y_i - p xbar|, zero for keys that are not visible."""
    share = _share(c).unsqueeze(-1)
    target = share * c.mean.unsqueeze(-2)
    products = share * c.mean_products.unsqueeze(-2)
    norms = c.difference_norms((1 + share) * c.weights.unsqueeze(-2), target, products)
    return torch.where(c.visible.unsqueeze(-2), norms, 0)
