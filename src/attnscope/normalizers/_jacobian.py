"""Largest singular values of the normalizers' Jacobians, exact, in O(n) a row and step.

None of the Jacobians is ever built. The family's own is a diagonal less a rank-one matrix, and
its largest eigenvalue the root of a secular equation between the two largest entries of the
diagonal (docs/theory.md, "Gradients"). Normalizers outside the family have a diagonal plus a few
rank-one terms: there the number of singular values above a level follows from the inertia of a
matrix of twice that few rows, and bisection finds the level above which there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope import _secular

_BISECTIONS = 56
_SPLIT = 0.47  # halves would meet the poles of rows of simple fractions, where counts are least reliable
_OFF_POLE = 1e-13
_DOMINANT = 0.75


def largest_eigenvalue(u: Tensor, total: Tensor) -> Tensor:
    """The largest eigenvalue of diag(u) - u u^T / total in each row, u >= 0, total >= sum(u)."""
    total = total.double()
    share = u.double() / torch.where(total > 0, total, 1.0)
    return total.squeeze(-1) * _secular.largest_eigenvalue(share)


def eigenvalue_bound(u: Tensor, total: Tensor) -> Tensor:
    """An upper bound of the same eigenvalue: the smaller of max u and Gershgorin's circles.

    Row i's circle reaches u_i (2 (sum of the other u) + rest) / total, rest = total - sum(u). The
    sum of the others is never formed as a difference where the difference cancels.
    """
    u = u.double()
    total = total.double()
    sums = u.sum(-1, keepdim=True)
    where = u.argmax(-1, keepdim=True)
    besides = (sums - u).scatter(-1, where, others(u, where))
    safe = torch.where(total > 0, total, 1.0)
    circles = u * (2 * besides + (total - sums).clamp(min=0.0)) / safe
    return torch.minimum(u.amax(-1), circles.amax(-1))


def others(p: Tensor, where: Tensor) -> Tensor:
    """1 - p at the key `where`, (..., 1), with all its digits where p is nearly 1."""
    return p.scatter(-1, where, 0.0).sum(-1, keepdim=True)


def dominant(p: Tensor, where: Tensor) -> Tensor:
    """1 at the key `where` (..., 1) if nearly all the weight is on it, 0 elsewhere: the row to hand to `with_cross`.

    Below that weight little cancels, and tied keys must stay together: the norm of such a row can
    be their common entry of the diagonal, which the counts find to half the digits without one of them.
    """
    return torch.zeros_like(p).scatter(-1, where, (p.gather(-1, where) > _DOMINANT).to(p.dtype))


def with_cross(
    diagonal: Tensor, left: Tensor, right: Tensor, at: Tensor, row: Tensor, column: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """diag(d) + A B^T with one row and the same column replaced by the given entries, as terms of the same kind.

    On the key that takes nearly all the weight, d and the entry of A B^T cancel, which can cost
    the rest of the matrix all its digits. `at` is 1 at that key and 0 elsewhere, or 0 throughout
    to replace nothing. `row` has that key's own entry; in `column` it is not read.
    """
    off = 1 - at
    row = row * at.sum(-1, keepdim=True)
    left = torch.cat([left * off.unsqueeze(-1), torch.stack([at, column * off], dim=-1)], dim=-1)
    right = torch.cat([right * off.unsqueeze(-1), torch.stack([row, at], dim=-1)], dim=-1)
    return diagonal * off, left, right


def norm_with_cross(diagonal: Tensor, left: Tensor, right: Tensor, at: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """`low_rank_norm`, the cross of `with_cross` carried only by rows that replace one: it doubles the work."""
    crossed = at.any(-1)
    if not bool(crossed.any()):
        return low_rank_norm(diagonal, left, right)
    norm = torch.empty(crossed.shape, dtype=torch.float64, device=diagonal.device)
    norm[~crossed] = low_rank_norm(diagonal[~crossed], left[~crossed], right[~crossed])
    terms = (diagonal[crossed], left[crossed], right[crossed], at[crossed], row[crossed], column[crossed])
    norm[crossed] = low_rank_norm(*with_cross(*terms))
    return norm


def low_rank_norm(diagonal: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The largest singular value of J = diag(d) + A B^T in each row.

    `diagonal` is (..., n), `left` and `right` hold the columns of A and B as (..., n, rank). The
    result is as exact as d and A B^T allow: relative to their sizes, so they should not cancel.

    The singular values are the positive eigenvalues of [[0, J], [J^T, 0]] = K + U C U^T with
    K = [[0, diag(d)], [diag(d), 0]], U = [[A, 0], [0, B]] and C = C^-1 = [[0, I], [I, 0]]. By the
    additivity of inertia in the bordered matrix [[K - s, U], [U^T, -C]], the number of those above s is

        #{|d_i| > s} + (positive eigenvalues of -C - U^T (K - s)^-1 U) - rank.
    """
    d, a, b = diagonal.double(), left.double(), right.double()
    broken = ~(d.isfinite().all(-1) & a.isfinite().all((-2, -1)) & b.isfinite().all((-2, -1)))
    hide = broken.unsqueeze(-1)
    d = torch.where(hide, 0.0, d)
    a, b = torch.where(hide.unsqueeze(-1), 0.0, a), torch.where(hide.unsqueeze(-1), 0.0, b)
    rank = a.shape[-1]
    # J over a bound of its norm, A and B of equal size: the small matrix then has no scale of its
    # own, however small J is, and its eigenvalues keep their signs
    a_size, b_size = a.norm(dim=-2, keepdim=True), b.norm(dim=-2, keepdim=True)
    size = d.abs().amax(-1) + (a_size * b_size).sum((-2, -1))
    scale = torch.where(size > 0, size, 1.0).unsqueeze(-1)
    d = d / scale
    common = (a_size / scale.unsqueeze(-1)).sqrt() * b_size.sqrt()
    a, b = a * (common / torch.where(a_size > 0, a_size, 1.0)), b * (common / torch.where(b_size > 0, b_size, 1.0))
    eye = torch.eye(rank, dtype=d.dtype, device=d.device)
    low, high = torch.zeros_like(size), torch.ones_like(size)
    for _ in range(_BISECTIONS):
        middle = low + _SPLIT * (high - low)
        level = middle.unsqueeze(-1)
        gap = level - d.abs()
        # a level that meets a pole is moved off it by less than the result is exact to
        gap = torch.where(gap.abs() < _OFF_POLE * level, _OFF_POLE * level, gap)
        inverse = (1 / (gap * (level + d.abs()))).unsqueeze(-1)
        own, mixed = level.unsqueeze(-1) * inverse, d.unsqueeze(-1) * inverse
        corner = a.mT @ (mixed * b) - eye
        small = torch.cat(
            [torch.cat([a.mT @ (own * a), corner], dim=-1), torch.cat([corner.mT, b.mT @ (own * b)], dim=-1)], dim=-2
        )
        above = (gap < 0).sum(-1) + (torch.linalg.eigvalsh(small) > 0).sum(-1) - rank
        low, high = torch.where(above > 0, middle, low), torch.where(above > 0, high, middle)
    return torch.where(broken, torch.nan, high * size)
