"""Largest singular values of the normalizers' Jacobians, exact, in O(n) a row and step.

None of the Jacobians is ever built. The family's own is a diagonal less a rank-one matrix, and
its largest eigenvalue the root of a secular equation between the two largest entries of the
diagonal (theory.md 8). Normalizers outside the family have a diagonal plus a few rank-one terms:
there the number of eigenvalues of J J^T above a level follows from the inertia of a matrix of
twice that few rows, and bisection finds the level above which there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope import _secular

_BISECTIONS = 60


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
    others = (sums - u).scatter(-1, where, u.scatter(-1, where, 0.0).sum(-1, keepdim=True))
    safe = torch.where(total > 0, total, 1.0)
    circles = u * (2 * others + (total - sums).clamp(min=0.0)) / safe
    return torch.minimum(u.amax(-1), circles.amax(-1))


def low_rank_norm(diagonal: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The largest singular value of J = diag(d) + A B^T in each row.

    `diagonal` is (..., n), `left` and `right` hold the columns of A and B as (..., n, rank).
    J J^T = diag(d^2) + W C W^T with W = [A, d B] and C = [[B^T B, I], [I, 0]]. By the additivity
    of inertia in the bordered matrix [[diag(d^2) - s, W], [W^T, -C^-1]], the number of eigenvalues
    above s is

        #{d_i^2 > s} + (positive eigenvalues of -C^-1 - W^T (diag(d^2) - s)^-1 W) - rank.
    """
    d, a, b = diagonal.double(), left.double(), right.double()
    broken = ~(d.isfinite().all(-1) & a.isfinite().all((-2, -1)) & b.isfinite().all((-2, -1)))
    hide = broken.unsqueeze(-1)
    d = torch.where(hide, 0.0, d)
    a, b = torch.where(hide.unsqueeze(-1), 0.0, a), torch.where(hide.unsqueeze(-1), 0.0, b)
    rank = a.shape[-1]
    w = torch.cat([a, d.unsqueeze(-1) * b], dim=-1)
    eye = torch.eye(rank, dtype=d.dtype, device=d.device).expand(*d.shape[:-1], rank, rank)
    # -C^-1 = [[0, -I], [-I, B^T B]]
    corner = torch.cat([torch.cat([torch.zeros_like(eye), -eye], dim=-1), torch.cat([-eye, b.mT @ b], dim=-1)], dim=-2)
    squares = d.square()
    low = torch.zeros_like(d[..., 0])
    high = d.abs().amax(-1) + (a.norm(dim=-2) * b.norm(dim=-2)).sum(-1)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        level = middle.square().unsqueeze(-1)
        away = squares - level
        # a level that meets a pole is moved off it by less than the bisection resolves
        away = torch.where(away == 0, -torch.finfo(d.dtype).tiny - 1e-30 * level, away)
        small = corner - w.mT @ (w / away.unsqueeze(-1))
        above = (away > 0).sum(-1) + (torch.linalg.eigvalsh(small) > 0).sum(-1) - rank
        low, high = torch.where(above > 0, middle, low), torch.where(above > 0, high, middle)
    return torch.where(broken, torch.nan, high)
