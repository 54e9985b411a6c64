"""The contracts of a normalizer, tested on random and adversarial rows, for one that attnscope has never seen.

`attnscope.normalizers._base` states them; what a class declares in its `facts` is a contract too. Each check returns
None, or one sentence that says what was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from attnscope.errors import InputError
from attnscope.normalizers import Normalizer
from attnscope.normalizers.specs import UserNormalizer, load_normalizer, reason, source_of

_ERROR = 1e-6  # of weights in float64
_GRADIENT_ERROR = 1e-4
_STEP = 1e-6
_KEYS = 7
_DTYPES = (torch.float64, torch.float32, torch.bfloat16)
_LENGTHS = (2, _KEYS, 64, 512)  # at which Lipschitz constants and bounds on weights are tested
_LONG = 64
_MODERATE = 3.0  # no dense rule underflows where logits are within this of each other


def _rows() -> Tensor:
    """Rows from nearly tied to far apart, one with ties at the top and one of large logits, (23, 7)."""
    z = torch.randn(23, _KEYS, generator=torch.Generator().manual_seed(31), dtype=torch.float64)
    z = z * torch.logspace(-2, 1, 23, dtype=torch.float64)[:, None]
    z[3, :3] = z[3].max()
    z[5] = torch.linspace(-80, 80, _KEYS, dtype=torch.float64)
    return z


def _steep_rows(length: int) -> Tensor:
    """Rows where Jacobians are large: 2, half or all of the keys nearly tied, the others far below, (3, length)."""
    z = 1e-4 * torch.randn(3, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    for row, tied in zip(z, (2, (length + 1) // 2, length), strict=True):
        row[tied:] -= 100
    return z


def _random_row(length: int) -> Tensor:
    """Standard Gaussian logits, (length,)."""
    return torch.randn(length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)


def _written(row: Tensor) -> str:
    first = ", ".join(f"{value:.4g}" for value in row[:_KEYS].tolist())
    return f"[{first}, ...]" if len(row) > _KEYS else f"[{first}]"


def shape_and_dtype(f: Normalizer) -> str | None:
    """Weights are a tensor with the shape and dtype of the logits."""
    for dtype in _DTYPES:
        z = torch.zeros(2, 3, _KEYS, dtype=dtype)
        w: object = f.weights(z)
        if not isinstance(w, Tensor):
            return f"weights must be a tensor, received {type(w).__name__}"
        if w.shape != z.shape:
            return f"weights of logits of shape {tuple(z.shape)} must have that shape, received {tuple(w.shape)}"
        if w.dtype != dtype:
            return f"weights of {dtype} logits must be {dtype}, received {w.dtype}"
    return None


def finite(f: Normalizer) -> str | None:
    """Finite logits give finite weights, also rows of one key and logits of 1,000, in every dtype."""
    for dtype in _DTYPES:
        for rows in (_rows(), _rows()[:, :1], torch.linspace(-1000, 1000, _KEYS)[None]):
            z = rows.to(dtype)
            w = f.weights(z)
            bad = ~w.isfinite().all(-1)
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                return f"the finite {dtype} logits {_written(z[row])} give {_written(w[row])}"
    return None


def logits_kept(f: Normalizer) -> str | None:
    """Neither the logits nor the mask is written to."""
    z = _rows()
    f.weights(z)
    row = int((z != _rows()).any(-1).int().argmax())
    if not torch.equal(z, _rows()):
        return f"weights(logits) changes its argument: {_written(_rows()[row])} became {_written(z[row])}"
    visible = _rows() > 0
    try:
        f.weights(z, visible)
    except Exception:  # what a mask must not do is a contract of its own
        return None
    kept = {"logits": torch.equal(z, _rows()), "visible": torch.equal(visible, _rows() > 0)}
    changed = " and ".join(name for name, same in kept.items() if not same)
    return f"weights(logits, visible) changes {changed}" if changed else None


def repeated(f: Normalizer) -> str | None:
    """The same logits give the same weights in every call."""
    moved = (f.weights(_rows()) - f.weights(_rows())).abs().amax(-1)
    row = int(moved.argmax())
    if float(moved[row]) <= _ERROR:
        return None
    return f"a weight of {_written(_rows()[row])} differs by {float(moved[row]):.4g} between two calls"


def rows_alone(f: Normalizer) -> str | None:
    """The weights of a row depend on no other row, whatever the number of dimensions."""
    z = _rows()[:12]
    together = f.weights(z.view(3, 2, 2, _KEYS)).reshape(12, _KEYS)
    moved = (together - torch.stack([f.weights(row) for row in z])).abs().amax(-1)
    row = int(moved.argmax())
    if float(moved[row]) <= _ERROR:
        return None
    differs = f"differs by {float(moved[row]):.4g} from that of the row alone"
    return f"in logits of shape (3, 2, 2, {_KEYS}), a weight of {_written(z[row])} {differs}"


def non_negative(f: Normalizer) -> str | None:
    """No weight is negative, if declared."""
    z = _rows()
    w = f.weights(z)
    row = int(w.amin(-1).argmin())
    if not f.facts.non_negative or float(w.min()) >= 0:
        return None
    return f"the logits {_written(z[row])} give the negative weight {float(w.min()):.4g}"


def sums(f: Normalizer) -> str | None:
    """Weights sum to one, or to at most one, if declared, also those of logits of 1,000."""
    z = torch.cat([_rows(), torch.linspace(-1000, 1000, _KEYS, dtype=torch.float64)[None]])
    totals = f.weights(z).sum(-1)
    if f.facts.sums_to_one:
        row = int((totals - 1).abs().argmax())
        if abs(float(totals[row]) - 1) > _ERROR:
            return f"the weights of {_written(z[row])} sum to {float(totals[row]):.6g}, not to one"
    elif f.facts.at_most_one and float(totals.max()) > 1 + _ERROR:
        return f"the weights of {_written(z[int(totals.argmax())])} sum to {float(totals.max()):.6g}, more than one"
    return None


def equivariant(f: Normalizer) -> str | None:
    """Permuted logits give permuted weights, if declared."""
    z, order = _rows(), torch.randperm(_KEYS, generator=torch.Generator().manual_seed(7))
    orders = (order, order.flip(0))  # one of them exchanges any two tied keys
    moved = torch.stack([(f.weights(z[:, o]) - f.weights(z)[:, o]).abs().amax(-1) for o in orders]).amax(0)
    row = int(moved.argmax())
    if not f.facts.permutation_equivariant or float(moved[row]) <= _ERROR:
        return None
    return f"a permutation of the logits {_written(z[row])} changes a weight by {float(moved[row]):.4g}"


def shift_invariant(f: Normalizer) -> str | None:
    """A constant added to all logits changes nothing, if declared."""
    z = _rows()
    moved = (f.weights(z + 0.75) - f.weights(z)).abs().amax(-1)
    row = int(moved.argmax())
    if not f.facts.shift_invariant or float(moved[row]) <= _ERROR:
        return None
    return f"adding 0.75 to all logits of {_written(z[row])} changes a weight by {float(moved[row]):.4g}"


def exact_zeros(f: Normalizer) -> str | None:
    """Some weights are exactly 0 if declared, and none between moderate logits if not."""
    z = _rows()
    if f.facts.sparse:
        found = (f.weights(0.25 * torch.arange(-256, 257, dtype=torch.float64)) == 0).any()
        return None if bool(found) else "declared sparse, but none of 513 logits from -64 to 64 has a weight of 0"
    zero = (f.weights(z) == 0).any(-1) & (z.amax(-1) - z.amin(-1) <= _MODERATE)
    return (
        f"not declared sparse, but {_written(z[int(zero.int().argmax())])} gives weights of 0" if zero.any() else None
    )


def masked(f: Normalizer) -> str | None:
    """A key that is not visible gets 0 and changes nothing; a row with nothing visible gives zeros."""
    z, visible = _rows(), torch.ones(_KEYS, dtype=torch.bool)
    visible[[1, 4]] = False
    try:
        w = f.weights(z, visible.expand(z.shape))
    except TypeError as error:
        return f"weights(logits, visible) must take a mask: {error}"
    if bool((w[:, ~visible] != 0).any()):
        return f"keys that are not visible get weight, up to {float(w[:, ~visible].abs().max()):.4g}"
    others = [f.weights(z.masked_fill(~visible, 90.0), visible.expand(z.shape))[:, visible]]
    if f.facts.permutation_equivariant:  # the row without them; otherwise a key may know its place
        others.append(f.weights(z[:, visible].contiguous()))
    moved = max(float((w[:, visible] - other).abs().max()) for other in others)
    if not moved <= _ERROR:
        return f"keys that are not visible change the weights of the others, by up to {moved:.4g}"
    empty = f.weights(z, torch.zeros(z.shape, dtype=torch.bool))
    return None if bool((empty == 0).all()) else "a row with nothing visible must give zeros"


def gradient(f: Normalizer) -> str | None:
    """Automatic derivatives are those of finite differences, at rows away from kinks."""
    z = (torch.randn(4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 0.7).requires_grad_()
    probe = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    total = (f.weights(z) * probe).sum()
    if not total.requires_grad:
        return "the weights have no gradient: they must be computed by differentiable operations"
    (found,) = torch.autograd.grad(total, z)
    want = torch.zeros_like(found)
    with torch.no_grad():
        for index in range(z.numel()):
            step = torch.zeros(z.numel(), dtype=torch.float64)
            step[index] = _STEP
            ends = [float((f.weights(z + sign * step.view(z.shape)) * probe).sum()) for sign in (1, -1)]
            want.view(-1)[index] = (ends[0] - ends[1]) / (2 * _STEP)
    wrong = float((found - want).abs().max())
    return None if wrong <= _GRADIENT_ERROR else f"the gradient differs from finite differences by up to {wrong:.4g}"


def jacobian(f: Normalizer) -> str | None:
    """`jacobian_norm` is the largest singular value of the derivative, and at most `jacobian_bound`."""
    for z in (_rows()[[0, 2, 7, 11, 16]], _random_row(_LONG)[None]):
        exact = []
        for row in z:
            full: Tensor = torch.autograd.functional.jacobian(lambda x: f.weights(x), row)
            exact.append(float(torch.linalg.matrix_norm(full, 2)))
        found = {"jacobian_norm": f.jacobian_norm(z), "jacobian_bound": f.jacobian_bound(z)}
        for name, values in found.items():
            if values.shape != z.shape[:-1]:
                return f"{name} of {len(z)} rows must have the shape ({len(z)},), received {tuple(values.shape)}"
        norms, bounds = (values.tolist() for values in found.values())
        for row, value, norm, bound in zip(z, exact, norms, bounds, strict=True):
            if not math.isclose(norm, value, rel_tol=1e-5, abs_tol=1e-7):
                return f"jacobian_norm of {_written(row)} is {norm:.6g}, and the largest singular value {value:.6g}"
            if not value <= bound * (1 + 1e-6) + 1e-9:
                return f"jacobian_bound of {_written(row)} is {bound:.6g}, below the norm {value:.6g}"
    return None


def lipschitz(f: Normalizer) -> str | None:
    """`lipschitz(n)` is at least the Jacobian norm of every row of n keys, or infinite."""
    for length in _LENGTHS:
        constant = f.lipschitz(length)
        if not constant >= 0:
            return f"lipschitz({length}) must be a number of at least 0, or inf; received {constant}"
        if constant == math.inf:
            continue
        for z in (_steep_rows(length), _rows()) if length == _KEYS else (_steep_rows(length),):
            norms = f.jacobian_norm(z)
            row = int(norms.argmax())
            if not float(norms[row]) <= constant * (1 + 1e-6):
                norm = float(norms[row])
                return (
                    f"lipschitz({length}) is {constant:.6g}, below the Jacobian norm {norm:.6g} of {_written(z[row])}"
                )
    return None


def bounded(f: Normalizer) -> str | None:
    """Every weight lies within `weight_bounds` of the range of its row, at several lengths."""
    for row in [*_rows()[:12], *(_random_row(length) for length in _LENGTHS)]:
        w = f.weights(row)
        low, high = f.weight_bounds(len(row), float(row.min()), float(row.max()))
        if not (low - _ERROR <= float(w.min()) and float(w.max()) <= high + _ERROR):
            found = f"{low:.6g} and {high:.6g}, and those of {_written(row)} are from {w.min():.6g} to {w.max():.6g}"
            if isinstance(f, UserNormalizer) and not hasattr(f.inner, "weight_bounds"):
                return f"it needs a method weight_bounds: rows of equal logits but one have weights between {found}"
            return f"weight_bounds of {len(row)} logits are {found}"
    return None


CONTRACTS: dict[str, Callable[[Normalizer], str | None]] = {
    "shape and dtype": shape_and_dtype,
    "finite": finite,
    "logits unchanged": logits_kept,
    "same in every call": repeated,
    "rows alone": rows_alone,
    "non-negative": non_negative,
    "sum": sums,
    "permutation-equivariant": equivariant,
    "shift-invariant": shift_invariant,
    "exact zeros": exact_zeros,
    "mask": masked,
    "weight bounds": bounded,
    "gradient": gradient,
    "Jacobian": jacobian,
    "Lipschitz constant": lipschitz,
}
_LAST = (  # if broken
    "shape and dtype", "finite", "logits unchanged", "same in every call", "rows alone", "gradient", "Jacobian"
)  # fmt: skip


def broken_contracts(normalizer: Normalizer) -> dict[str, str]:
    """The contracts that a normalizer breaks, with what was found; none that follows from one of `_LAST`."""
    broken = {}
    for name, contract in CONTRACTS.items():
        try:
            found = contract(normalizer)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # the code of a user may raise anything
            found = reason(error)
        if found is not None:
            broken[name] = found
            if name in _LAST:
                break
    return broken


def require_contracts(spec: str) -> None:
    """Raise InputError with every contract that is broken."""
    broken = _broken(spec, source_of(spec))
    if broken:
        found = "; ".join(f"{name}: {what}" for name, what in broken.items())
        raise InputError(f"{spec} breaks {len(broken)} of the contracts of a normalizer: {found}")


@cache
def _broken(spec: str, source: str | None) -> dict[str, str]:
    """Tested once for each content of a file."""
    return broken_contracts(load_normalizer(spec))
