"""Theorem 2 and section 4: how many selected tokens one head can distinguish from the others, and several heads.

Vectors lie on a sphere of radius M = 1; for another M, divide the radius r and the separation delta by it. With s the
context of the top set, a selected token i is counted when |alpha_i x_i - s| < r, strictly: with r the distance of the
nearest token left out, the printed closed ball would contain that token. Since alpha_i x_i - s = -W_i with W_i = sum
over the other selected j of alpha_j x_j, x_i itself drops out.

| here | paper |
|---|---|
| `weights` | alpha_i of the members of each set, (..., sets, members), zero-padded |
| `members` | which entries are members of a set; the others are padding |
| `xi`, `sizes` | xi_i of eq. (12) and |alpha_i x_i| of each member |
| `delta`, `radius` | the smallest distance between two vectors; r: both for vectors of length one |
| `dims`, `length` | d, the dimension of the vectors; L |
| `independent`, `chance` | bounds for independent vectors; q, a lower bound on the probability of the event |
| `separability`, `heads`, `target` | p, of a head or of a token in it; H; the coverage to reach, below 1 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.theory.configuration import Interval, leave_one_out

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.theory.configuration import Configuration

ROUNDING = 1e-12
# Two values of phi nearer than this share of their scale are recomputed without the matrix product.
TIE = 1e-12


def xi(
    weights: Float[Tensor, "*batch sets members"], delta: Float[Tensor, "*batch #sets"]
) -> Float[Tensor, "*batch sets members"]:
    """Eq. (12): xi_i for M = 1, an upper bound on |W_i| if no two vectors are nearer than delta.

    >>> weights = torch.tensor([[0.5, 0.3, 0.2]])
    >>> xi(weights, delta=torch.tensor([1.0]))
    tensor([[0.4359, 0.6245, 0.7000]])

    xi_i^2 = sum_{j != i} alpha_j^2 + (1 - delta^2/2) sum_{j != k, both != i} alpha_j alpha_k
           = (delta^2/2) sum_{j != i} alpha_j^2 + (1 - delta^2/2) (sum_{j != i} alpha_j)^2.

    Then x_j . x_k <= 1 - delta^2/2, so |W_i| <= xi_i holds for every configuration, not only on average.
    """
    half = (delta.square() / 2).unsqueeze(-1)
    squares = leave_one_out(weights.square())
    sums = leave_one_out(weights)
    return (half * squares + (1 - half) * sums.square()).clamp_min(0).sqrt()


def separability_printed(
    xi: Float[Tensor, "*batch sets members"],
    members: Bool[Tensor, "*batch sets members"],
    radius: Float[Tensor, "*batch sets"],
) -> Interval:
    """Theorem 2 as printed: 1 - sum xi_i / (r N) <= E[N_s]/N <= (1/N) sum exp(-(r - xi_i)^2 / 16).

    >>> weights = torch.tensor([[0.5, 0.3, 0.2]])
    >>> sizes = xi(weights, delta=torch.tensor([1.0]))
    >>> separability_printed(sizes, weights > 0, radius=torch.tensor([0.6]))
    Interval(lower=tensor([0.0220]), upper=tensor([0.9992]))

    The lower side is true (Markov) and often vacuous. The upper side is false: for N = 1 the share is 1
    and the bound below 1; and with the radius the paper uses it never falls below exp(-1/16) = 0.939.
    """
    count = members.sum(-1).to(radius.dtype)
    total = torch.where(members, xi, 0).sum(-1)
    penalty = torch.where(total > 0, total / (radius * count), 0)
    tails = torch.exp(-(radius.unsqueeze(-1) - xi).square() / 16)
    return Interval(1 - penalty, torch.where(members, tails, 0).sum(-1) / count)


def separability_certain(
    sizes: Float[Tensor, "*batch sets members"],
    xi: Float[Tensor, "*batch sets members"],
    members: Bool[Tensor, "*batch sets members"],
    radius: Float[Tensor, "*batch sets"],
) -> Interval:
    """T2a, the corrected two-sided bound, true for every configuration.

    >>> weights = torch.tensor([[0.5, 0.3, 0.2]])
    >>> sizes = xi(weights, delta=torch.tensor([1.0]))
    >>> separability_certain(weights, sizes, weights > 0, radius=torch.tensor([0.6]))
    Interval(lower=tensor([0.3333]), upper=tensor([1.]))

    With m_i the largest and A_i the sum of the other selected sizes |alpha_j x_j| (the weights themselves on
    the sphere, zero for a zero vector), (2 m_i - A_i)_+ <= |W_i| <= xi_i.
    So token i is always counted if xi_i < r, and never if (2 m_i - A_i)_+ >= r. The left inequality is
    the triangle inequality: the largest term can be cancelled by at most all the others.

    Ties are common (N = 2, identical vectors), so each comparison has a tolerance of `ROUNDING`: the bounds
    remain valid in floating point.
    """
    count = members.sum(-1).to(radius.dtype)
    first, second = _two_largest(sizes)
    largest_other = torch.where(_first_largest(sizes), second, first)
    least = (2 * largest_other - leave_one_out(sizes)).clamp_min(0)
    ball = radius.unsqueeze(-1)
    return Interval(
        ((xi < ball * (1 - ROUNDING)) & members).sum(-1) / count,
        ((least < ball * (1 + ROUNDING)) & members).sum(-1) / count,
    )


def separability_concentrated(
    weights: Float[Tensor, "*batch sets members"],
    members: Bool[Tensor, "*batch sets members"],
    radius: Float[Tensor, "*batch sets"],
    dims: int,
) -> Interval:
    """T2b: E[N_s]/N for independent uniform vectors in R^dims, with weights and radius fixed beforehand.

    >>> weights = torch.tensor([[0.5, 0.3, 0.2]])
    >>> separability_concentrated(weights, weights > 0, radius=torch.tensor([0.6]), dims=64)
    Interval(lower=tensor([0.7028]), upper=tensor([1.]))

    E[N_s]/N is the mean over i of P(|W_i| <= r). With sums over j != i, sig^2 = sum alpha_j^2 = E|W|^2,
    v = Var|W|^2 = (2/d)(sig^4 - sum alpha_j^4), kap = sum alpha_j^4 / sig^4, k = max(1, d-2) and
    mlo = sig sqrt(max{(d-2)/(d-1), 1 - (2/d)(1 - kap)}) <= E|W| <= sig:

        r < sig:  P <= min{ v / (v + (sig^2 - r^2)^2),  exp(-k (mlo - r)_+^2 / (2 sig^2)) }
        r > sig:  P >= max{ 1 - v / (v + (r^2 - sig^2)^2),  1 - exp(-k (r - sig)^2 / (2 sig^2)) }

    A threshold at r = sig of relative width d^(-1/2). Proof: the products x_j.x_k are uncorrelated with variance 1/d;
    Cantelli for |W|^2. Poincare on the product of spheres, or (|W| - sig)^2 <= (|W|^2 - sig^2)^2 / sig^2, for mlo. The
    sphere has logarithmic Sobolev constant d-2 at least, it tensorizes, and |W| is sig-Lipschitz (Herbst); for d <= 3
    McDiarmid's differences 2 alpha_j give k = 1.
    """
    ball = radius.unsqueeze(-1)
    second = leave_one_out(weights.square())
    fourth = leave_one_out(weights.square().square())
    size = second.sqrt()
    alone = second == 0  # W_i = 0: inside every ball
    safe = torch.where(alone, 1, second)
    concentration = (fourth / safe.square()).clamp_max(1)
    variance = 2 / dims * second.square() * (1 - concentration)
    shrink = 1 - 2 / dims * (1 - concentration)
    if dims > 1:
        shrink = shrink.clamp_min((dims - 2) / (dims - 1))
    mean = size * shrink.clamp_min(0).sqrt()
    rate = max(1, dims - 2) / (2 * safe)
    off = (second - ball.square()).square()
    cantelli = torch.where(off > 0, variance / (variance + off), 1)
    below = torch.minimum(cantelli, torch.exp(-rate * (mean - ball).clamp_min(0).square()))
    above = torch.minimum(cantelli, torch.exp(-rate * (ball - size).square()))
    lower = torch.where(alone, 1.0, torch.where(ball > size, 1 - above, 0.0))
    upper = torch.where(~alone & (ball < size), below, 1.0)
    count = members.sum(-1)
    return Interval(torch.where(members, lower, 0).sum(-1) / count, torch.where(members, upper, 0).sum(-1) / count)


def separation_chance(
    length: Float[Tensor, "*batch"], dims: int, delta: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """q, a lower bound on the probability that L independent uniform vectors are pairwise at least delta apart.

    >>> separation_chance(torch.tensor(100.0), dims=64, delta=torch.tensor(0.8))
    tensor(1.0000)

    Assumption 1 and a fixed delta in Assumption 2 exclude each other, so the latter must mean conditioning on that
    event. One pair is nearer than delta with the probability of a cap of angle theta, cos theta = 1 - delta^2/2,
    which is at most sin(theta)^(d-1) / 2 for delta <= sqrt 2; all pairs by the union bound.
    """
    sine = delta * (1 - delta.square() / 4).clamp_min(0).sqrt()
    cap = torch.where(delta.square() <= 2, sine ** (dims - 1) / 2, 1.0)
    return (1 - length * (length - 1) / 2 * cap).clamp_min(0)


def separability_separated(independent: Interval, chance: Float[Tensor, "*batch sets"]) -> Interval:
    """T2c, Theorem 2 under both assumptions: bounds on P given an event of probability q, 1 - (1-P)/q and P/q.

    >>> from attnscope.theory.configuration import Interval
    >>> separability_separated(Interval(torch.tensor(0.9), torch.tensor(0.95)), chance=torch.tensor(0.99))
    Interval(lower=tensor(0.8990), upper=tensor(0.9596))

    `independent` has T2b's bounds on P, `chance` is q or a lower bound on it.
    Proof: P(A | G) = P(A and G) / q <= P(A) / q, and the same for the complement.
    """
    safe = torch.where(chance > 0, chance, 1)
    lower = torch.where(chance > 0, 1 - (1 - independent.lower) / safe, 0)
    upper = torch.where(chance > 0, independent.upper / safe, 1)
    return Interval(lower.clamp_min(0), upper.clamp_max(1))


class Ball(NamedTuple):
    """The ball of eq. (10) for each row and set: radius, mask of the tokens strictly inside, share of the set.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> ball(c).radius
    tensor([[0.5385, 0.6164]])
    """

    radius: Tensor
    inside: Tensor
    separability: Tensor


def ball(c: Configuration) -> Ball:
    """Eq. (10) with the radius of section 3.2, r = min over j not in I of |y_j - s|, and a strict ball.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> ball(c).separability
    tensor([[1., 1.]])

    The printed closed ball of that radius contains the nearest token left out. T2d: i counts iff phi_i < min phi_j. For
    orthonormal vectors phi_i = -|y_i|^2 < 0 <= phi_j, so every selected token of positive weight counts, whatever N
    and L: the paper's 80% is not a geometric limit.

    |y - s|^2 = phi + |s|^2 with phi = |y|^2 - 2 y.s, so tokens are compared by phi: |s|^2 would drown the
    differences between small weights. Near ties are recomputed without the matrix product, with the same order
    of operations for every token, so that equal tokens tie exactly: from phi where the token is smaller
    than its distance to s, from the distance itself where it nearly coincides with s.
    """
    weights = c.weights.unsqueeze(-2)
    size = weights * c.squared_norms.unsqueeze(-2).sqrt()
    phi = size.square() - 2 * weights * c.context_products
    tolerance = TIE * size * (size + 2 * c.context.norm(dim=-1, keepdim=True))
    outside = torch.where(c.others, phi, torch.inf)
    edge = outside.argmin(-1, keepdim=True)
    lowest = outside.gather(-1, edge)
    close = (phi - lowest).abs() <= tolerance + tolerance.gather(-1, edge)
    index = (close & c.visible.unsqueeze(-2)).nonzero(as_tuple=True)
    scaled = c.scaled_at(weights, index)
    context = c.context[index[:-1]]
    phi[index] = (scaled * (scaled - 2 * context)).sum(-1)
    distances = torch.full_like(phi, torch.inf)
    distances[index] = (scaled - context).norm(dim=-1)
    lowest = torch.where(c.others, phi, torch.inf).amin(-1, keepdim=True)
    radius = torch.where(c.others, distances, torch.inf).amin(-1, keepdim=True)
    nearer = torch.where(distances < size, distances < radius, phi < lowest)
    inside = c.selected & nearer
    return Ball(radius.squeeze(-1), inside, inside.sum(-1) / c.count)


def failure_bound(c: Configuration) -> Float[Tensor, "*batch rows sets keys"]:
    """T2d for independent uniform vectors: a bound for each key on the probability that it is not counted.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> failure_bound(c)[0, 1]
    tensor([1., 1., 1.])

    E[exp(-d alpha_i^2 / (32 |s - y_i|^2)) + (L-N) exp(-d alpha_i^2 / (4 |s|^2))]; this returns the integrand for the
    given configuration, clipped to 1. The first term comes from the law of x_i given the other selected vectors, the
    second from that of the vectors left out given s, so the bound holds for the mean over the vectors.

    Proof: i fails only if -2 y_i.(s - y_i) >= alpha_i^2 / 2 or some 2 y_j.s >= alpha_i^2 / 2 + alpha_j^2; a cap has
    P(u.x >= t) <= exp(-d t^2 / 2), and (a/2 + b)^2 >= 2ab.
    """
    dims = c.vectors.shape[-1]
    size = c.weights.unsqueeze(-2).square()
    rest = c.context_distances.square()
    whole = c.context.square().sum(-1, keepdim=True)
    by_selected = torch.exp(-dims / 32 * _ratio(size, rest))
    by_others = (c.length - c.count).unsqueeze(-1) * torch.exp(-dims / 4 * _ratio(size, whole))
    return (by_selected + by_others).clamp_max(1)


# Section 4. A head covers a token when the token is distinguishable in it. The paper multiplies the misses: with
# separability p in each of H heads, "up to" 1 - (1 - p)^H of the tokens are covered.


def coverage_independent(
    separability: Float[Tensor, "*batch"], heads: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Section 4 as printed: 1 - (1 - p)^H, with p = `separability` and H = `heads`.

    >>> coverage_independent(torch.tensor(0.8), torch.tensor(3.0))
    tensor(0.9920)

    The exact expected coverage if every token is covered in every head independently with the same p: for p = 0.8
    and H = 3 it is 0.992. Not a maximum, as "up to" says: see `coverage_range`.
    """
    return -torch.expm1(heads * torch.log1p(-separability))


def coverage_range(separability: Float[Tensor, "*batch heads"]) -> Interval:
    """Corrected: max_h p_h <= coverage <= min(1, sum_h p_h), however the heads depend on one another.

    >>> coverage_range(torch.tensor([0.8, 0.7]))
    Interval(lower=tensor(0.8000), upper=tensor(1.))

    The bounds of Boole and Frechet for the measure of a union; both are attained, the left one by nested heads and
    the right one by heads that overlap as little as possible. Two complementary heads with p = 0.8 cover everything,
    more than the 0.96 of the printed form.
    """
    return Interval(separability.amax(-1), separability.sum(-1).clamp_max(1))


def coverage_of_tokens(
    separability: Float[Tensor, "*batch tokens"], heads: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Coverage by independent heads when token i has probability p_i: mean_i [1 - (1 - p_i)^H].

    >>> coverage_of_tokens(torch.tensor([1.0, 1.0, 0.0]), torch.tensor(3.0))
    tensor(0.6667)

    At most the printed 1 - (1 - pbar)^H (Jensen: p -> 1 - (1-p)^H is concave); the difference is `jensen_gap`.
    If 80% of the tokens are always covered and 20% never, the coverage stays at 0.8 for every H.
    """
    return coverage_independent(separability, heads.unsqueeze(-1)).mean(-1)


def jensen_gap(separability: Float[Tensor, "*batch tokens"], heads: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """By how much 1 - (1 - pbar)^H overstates the coverage when tokens differ; zero when they do not.

    >>> jensen_gap(torch.tensor([1.0, 1.0, 0.0]), torch.tensor(3.0))
    tensor(0.2963)
    """
    return coverage_independent(separability.mean(-1), heads) - coverage_of_tokens(separability, heads)


def heads_needed(separability: Float[Tensor, "*batch"], target: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The smallest H with 1 - (1 - p)^H >= `target`, for independent heads: 4, 3, 3 for p = 0.7, 0.8, 0.85 and 99%.

    >>> heads_needed(torch.tensor([0.7, 0.8, 0.85]), torch.tensor(0.99))
    tensor([4., 3., 3.])
    """
    return torch.ceil(torch.log1p(-target) / torch.log1p(-separability) - 1e-12).clamp_min(1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A quotient of nonnegative numbers with 0/0 = 0."""
    return torch.where(numerator > 0, numerator / denominator, 0)


def _two_largest(weights: Float[Tensor, "*batch members"]) -> tuple[Tensor, Tensor]:
    if weights.shape[-1] == 1:
        return weights, torch.zeros_like(weights)
    top = weights.topk(2, dim=-1).values
    return top[..., :1], top[..., 1:]


def _first_largest(weights: Float[Tensor, "*batch members"]) -> Bool[Tensor, "*batch members"]:
    positions = torch.arange(weights.shape[-1], device=weights.device)
    return positions == weights.argmax(-1, keepdim=True)
