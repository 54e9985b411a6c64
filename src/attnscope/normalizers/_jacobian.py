"""Exact spectral norms of the normalizers' Jacobians, in O(n) per row and step, without building one.

The Jacobian of the maps in `_maps.py` is a diagonal minus a rank-one matrix; its largest eigenvalue
is the root of a secular equation between the two largest diagonal entries (docs/theory.md,
"Gradients"). The Jacobians of the other normalizers are a diagonal plus r rank-one terms: there the
number of singular values above a level follows from the inertia of a matrix of 2 r rows, and
bisection finds the smallest level above which there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope import _secular

_BISECTIONS = 56
_SPLIT = 0.47  # halving would hit the poles of rows of simple fractions, where counts are least reliable
_OFF_POLE = 1e-13
_DOMINANT = 0.75


def largest_eigenvalue(u: Tensor, total: Tensor) -> Tensor:
    """Largest eigenvalue of diag(u) - u u^T / total in each row, u >= 0, total >= sum(u)."""
    total = total.double()
    share = u.double() / torch.where(total > 0, total, 1.0)
    return total.squeeze(-1) * _secular.largest_eigenvalue(share)


def eigenvalue_bound(u: Tensor, total: Tensor) -> Tensor:
    """Upper bound on `largest_eigenvalue`: the smaller of max u and Gershgorin's circles.

    Row i's circle reaches u_i (2 (sum of the other u) + rest) / total, rest = total - sum(u). The
    sum of the others is not formed as a difference where that would cancel.
    """
    u = u.double()
    total = total.double()
    sums = u.sum(-1, keepdim=True)
    top = u.argmax(-1, keepdim=True)
    other_sums = (sums - u).scatter(-1, top, sum_without(u, top))
    safe = torch.where(total > 0, total, 1.0)
    circles = u * (2 * other_sums + (total - sums).clamp(min=0.0)) / safe
    return torch.minimum(u.amax(-1), circles.amax(-1))


def sum_without(p: Tensor, key: Tensor) -> Tensor:
    """Sum of each row without the entry at `key`, (..., 1): 1 - p[key] for weights, accurate where p[key] is near 1."""
    return p.scatter(-1, key, 0.0).sum(-1, keepdim=True)


def dominant(p: Tensor, key: Tensor) -> Tensor:
    """One-hot at `key` (..., 1) where it has nearly all the weight, zeros in other rows: `pivot` of `with_cross`.

    Below that weight little cancels, and tied keys must be treated alike: the norm of such a row can
    be their common diagonal entry, which loses half its digits if one of them is replaced.
    """
    return torch.zeros_like(p).scatter(-1, key, (p.gather(-1, key) > _DOMINANT).to(p.dtype))


def with_cross(
    diagonal: Tensor, left: Tensor, right: Tensor, pivot: Tensor, row: Tensor, column: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """d, A and B of diag(d) + A B^T with the row and column of one key replaced by the given entries.

    On a key with nearly all the weight, d and the entry of A B^T cancel, which can cost the rest of
    the matrix all its digits. `pivot` is 1 at that key and 0 elsewhere, or 0 throughout to replace
    nothing. The diagonal entry is taken from `row`.
    """
    others = 1 - pivot
    row = row * pivot.sum(-1, keepdim=True)
    left = torch.cat([left * others.unsqueeze(-1), torch.stack([pivot, column * others], dim=-1)], dim=-1)
    right = torch.cat([right * others.unsqueeze(-1), torch.stack([row, pivot], dim=-1)], dim=-1)
    return diagonal * others, left, right


def norm_with_cross(
    diagonal: Tensor, left: Tensor, right: Tensor, pivot: Tensor, row: Tensor, column: Tensor
) -> Tensor:
    """`low_rank_norm` of `with_cross`, which doubles the work and is applied only to rows that have a pivot."""
    crossed = pivot.any(-1)
    if not bool(crossed.any()):
        return low_rank_norm(diagonal, left, right)
    norm = torch.empty(crossed.shape, dtype=torch.float64, device=diagonal.device)
    norm[~crossed] = low_rank_norm(diagonal[~crossed], left[~crossed], right[~crossed])
    terms = (diagonal[crossed], left[crossed], right[crossed], pivot[crossed], row[crossed], column[crossed])
    norm[crossed] = low_rank_norm(*with_cross(*terms))
    return norm


def low_rank_norm(diagonal: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Largest singular value of J = diag(d) + A B^T in each row.

    `diagonal` is (..., n), `left` and `right` are A and B, (..., n, rank). The error is relative
    to the sizes of d and A B^T, so these should not cancel.

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
    # J is divided by a bound on its norm, and A and B are given equal sizes: the eigenvalues of the small
    # matrix then keep their signs, however small J is.
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
        # A level at a pole is moved off it by less than the error of the result.
        gap = torch.where(gap.abs() < _OFF_POLE * level, _OFF_POLE * level, gap)
        inverse = (1 / (gap * (level + d.abs()))).unsqueeze(-1)
        same, mixed = level.unsqueeze(-1) * inverse, d.unsqueeze(-1) * inverse
        corner = a.mT @ (mixed * b) - eye
        small = torch.cat(
            [torch.cat([a.mT @ (same * a), corner], dim=-1), torch.cat([corner.mT, b.mT @ (same * b)], dim=-1)], dim=-2
        )
        above = (gap < 0).sum(-1) + (torch.linalg.eigvalsh(small) > 0).sum(-1) - rank
        low, high = torch.where(above > 0, middle, low), torch.where(above > 0, high, middle)
    return torch.where(broken, torch.nan, high * size)
