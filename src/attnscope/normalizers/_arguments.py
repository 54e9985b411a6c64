"""The arguments of all normalizers: settings that are checked, dtypes, masks, lengths, and tensors for compiled loops.

Decisions:

- an error quotes the value received and says what to pass instead;
- rows are shared out to as many threads as torch uses (`attnscope._process`); the loops hold no interpreter lock;
- compiling happens once for each loop and element type, before threads share the rows, and is kept on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import numbers
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope._process import parallel_for
from attnscope.errors import InputError, shown
from attnscope.normalizers import _kernels

_TYPES = {torch.float32: np.float32, torch.float64: np.float64}
_SMALL = 1 << 16  # entries below which a second thread costs more than it saves
_CHUNKS_PER_THREAD = 4  # small enough that a delayed thread does not hold up the others for long

_reference: ContextVar[bool] = ContextVar("attnscope_reference", default=False)
_ready: set[tuple[str, str, torch.dtype]] = set()


@contextlib.contextmanager
def reference_only() -> Iterator[None]:
    """Within this context every normalizer runs its torch reference, on any tensor.

    >>> from attnscope.normalizers import sparsemax
    >>> with reference_only():
    ...     sparsemax(torch.tensor([1.0, 0.8, -2.0]))
    tensor([0.6000, 0.4000, 0.0000])

    For tests and benchmarks: the compiled loops give the same numbers faster.

    Yields
    ------
    None
    """
    token = _reference.set(True)
    try:
        yield
    finally:
        _reference.reset(token)


def usable(logits: Tensor, *others: Tensor | None) -> bool:
    """Whether the compiled loops can take these: plain CPU tensors, outside any tracing."""
    return (
        logits.device.type == "cpu"
        and logits.dtype in _TYPES
        and not torch.compiler.is_compiling()
        and not _recorded()
        and not _reference.get()
        and all(_has_memory(tensor) for tensor in (logits, *others) if tensor is not None)
    )


def _recorded() -> bool:
    """Whether operations are recorded for replay, e.g. by torch.func.linearize, which would miss a loop's writes."""
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return recorder is not None and recorder.get_proxy_mode() is not None


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own; inside torch's transforms it is only a placeholder."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:
        return False
    return True


def rows(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as a two-dimensional array of its rows, without a copy if it is contiguous."""
    return tensor.detach().contiguous().view(-1, tensor.shape[-1]).numpy()


def row_values(parameter: Tensor | None, logits: Tensor, default: float) -> np.ndarray[Any, Any]:
    """One number per row, in the dtype of the logits."""
    count = logits.shape[:-1].numel()
    if parameter is None:
        return np.full(count, default, dtype=_TYPES[logits.dtype])
    return parameter.detach().to(logits.dtype).reshape(-1).numpy()


def mask_rows(visible: Tensor | None, shape: torch.Size) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The distinct rows of a broadcast mask and, for every row of the logits, the index of its mask."""
    if visible is None:
        return np.empty((0, 0), dtype=np.bool_), np.empty(0, dtype=np.int64)
    visible = visible.detach().expand(shape)
    distinct = visible[
        tuple(
            slice(0, 1) if stride == 0 and dim < len(shape) - 1 else slice(None)
            for dim, stride in enumerate(visible.stride())
        )
    ]
    index = np.arange(distinct.shape[:-1].numel()).reshape(distinct.shape[:-1])
    return rows(distinct), np.broadcast_to(index, shape[:-1]).reshape(-1)


def run(loop: Callable[..., None], like: Tensor, *arguments: Any) -> None:
    """Call `loop(*arguments, start, stop)` over all rows of `like`, distributed over threads."""
    count = like.shape[:-1].numel()
    _compile(loop, like.dtype, arguments)
    threads = min(torch.get_num_threads(), count) if like.numel() > _SMALL else 1
    if threads <= 1:
        loop(*arguments, 0, count)
        return
    chunks = min(count, threads * _CHUNKS_PER_THREAD)
    bounds = [count * i // chunks for i in range(chunks + 1)]
    parallel_for(lambda ends: loop(*arguments, *ends), itertools.pairwise(bounds))


def _compile(loop: Callable[..., None], dtype: torch.dtype, arguments: tuple[Any, ...]) -> None:
    """Compile the loop for these types by running it over no rows."""
    key = (loop.__module__, loop.__name__, dtype)
    if key in _ready:
        return
    loop(*arguments, 0, 0)
    _ready.add(key)


_HALF = (torch.float16, torch.bfloat16)


def prepare(logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The logits in the dtype of the computation, and the mask expanded to their shape.

    float16 and bfloat16 are computed in float32. `visible` may have any shape that broadcasts to
    that of the logits.
    """
    if not isinstance(logits, Tensor) or not logits.dtype.is_floating_point:
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"logits must be a floating point tensor, received {kind}: convert with .float()")
    if logits.ndim == 0:
        raise InputError("logits must have at least one dimension, received a scalar: use logits[None]")
    z = logits.float() if logits.dtype in _HALF else logits
    if visible is None:
        return z, None
    if not isinstance(visible, Tensor):
        raise InputError(
            f"visible must be a boolean tensor (True = attended), received {type(visible).__name__}: "
            "convert with torch.tensor(...)"
        )
    if visible.dtype != torch.bool:
        raise InputError(
            f"visible must be a boolean mask (True = attended), received {visible.dtype}: "
            "for an additive mask pass visible = mask > torch.finfo(mask.dtype).min / 2"
        )
    if visible.shape == logits.shape:
        return z, visible.to(z.device)
    try:
        shape = torch.broadcast_shapes(logits.shape, visible.shape)
    except RuntimeError:
        raise InputError(
            f"visible of shape {tuple(visible.shape)} does not broadcast against logits of shape {tuple(logits.shape)}"
        ) from None
    if shape != logits.shape:
        raise InputError(
            f"visible of shape {tuple(visible.shape)} would enlarge logits of shape {tuple(logits.shape)}: "
            "expand the logits first"
        )
    return z, visible.to(z.device).expand(shape)


def lengths(z: Tensor, visible: Tensor | None) -> Tensor:
    """Number of visible keys of each row, shape (..., 1), in the dtype of the logits.

    A logit of -inf is a masked key, with or without a mask. An empty row has length one, so that
    ln n is defined; its weights are zero at any scale.
    """
    values = z.detach()
    if usable(values, visible):
        counts = torch.empty(z.shape[:-1], dtype=z.dtype)
        mask, index = mask_rows(visible, z.shape)
        run(_kernels.lengths, values, rows(values), mask, index, counts.view(-1).numpy())
    else:
        counts = effective_mask(values, visible).sum(-1).to(z.dtype)
    return counts.clamp(min=1).unsqueeze(-1)


def effective_mask(z: Tensor, visible: Tensor | None) -> Tensor:
    """Mask of the keys that are visible and whose logit is not -inf."""
    present = z != -torch.inf
    return present if visible is None else present & visible


def column(value: Tensor | float, like: Tensor) -> Tensor:
    """A parameter as a tensor with a last dimension of one, to broadcast against lengths of shape (..., 1)."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).unsqueeze(-1)


def per_row(value: Tensor | None, z: Tensor) -> Tensor | None:
    """A parameter of shape (..., 1) expanded to one value per row of z."""
    return None if value is None else value.expand(*z.shape[:-1], 1)


# Logits that are numbers of float32 stay such when they are divided by a temperature between these.
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-30, 1e30
LARGEST_WHOLE = 2**63 - 1  # that tensors and compiled loops hold


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    low: float = -math.inf,
    high: float = math.inf,
    infinite: bool = False,
) -> None:
    """Raise `InputError` unless value is a number, or a float tensor, with above < value and low <= value <= high.

    `infinite` also allows -inf. A tensor whose values cannot be read, while tracing or within vmap, passes.
    """
    if isinstance(value, Tensor):
        if torch.compiler.is_compiling() or value.is_meta:
            return
        if not value.dtype.is_floating_point:
            raise InputError(f"{name} must be a floating point tensor, received {value.dtype}: convert with .float()")
        inside = value.isfinite() & (value > above) & (value >= low) & (value <= high)
        try:
            valid = bool((inside | (value == -torch.inf) if infinite else inside).all())
        except RuntimeError:  # within vmap the values of a tensor cannot be read
            return
    else:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise InputError(f"{name} must be a number or a tensor, received {value!r}")
        plain = float(value)
        valid = (math.isfinite(plain) and plain > above and low <= plain <= high) or (infinite and plain == -math.inf)
    if not valid:
        raise InputError(f"{name} must be {_rule(above, low, high, infinite)}, received {value}")


def check_temperature(value: object) -> None:
    """Raise `InputError` unless value is a temperature, or a tensor of some, that logits can be divided by."""
    check_number("temperature", value, above=0.0)
    check_number("temperature", value, low=LOWEST_TEMPERATURE, high=HIGHEST_TEMPERATURE)


def _rule(above: float, low: float, high: float, infinite: bool) -> str:
    if above == 0:
        return "positive and finite"
    if math.isfinite(low):
        return f"in [{low:g}, {high:g}]"
    return "finite or -inf" if infinite else "finite"


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise `InputError` unless value is an integer of at least `least` that 64 bits can hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number and at least {least}, received {value!r}")
    if int(value) > LARGEST_WHOLE:
        raise InputError(f"{name} must be at most {LARGEST_WHOLE}, received {shown(value)}")


def check_shape(name: str, value: Tensor, rows: Sequence[int]) -> None:
    """Raise `InputError` unless a tensor parameter broadcasts against the rows of the logits."""
    given = tuple(value.shape)
    fits = len(given) <= len(rows) and all(
        size in (1, row) for size, row in zip(reversed(given), reversed(tuple(rows)), strict=False)
    )
    if not fits:
        raise InputError(
            f"{name} of shape {given} does not broadcast against the rows of logits, {tuple(rows)}: "
            f"for one value per head pass {name}[:, None]"
        )
