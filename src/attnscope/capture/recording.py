"""`record`: how a custom module reports attention that attnscope cannot observe by itself.

The module calls `record(query, key, value, ...)` just before it computes its attention. During a scan the call is
measured; at any other time `record` returns immediately.

Requirement: importing this file loads nothing heavy, and an idle `record` is one lookup.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from attnscope.capture.watching import handled
from attnscope.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float
    from torch import Tensor, nn

    from attnscope.capture.watching import ErrorHandler


class Recorder(Protocol):
    """Receives the calls that a custom module records."""

    def __call__(
        self,
        module: nn.Module | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        /,
        **options: Any,
    ) -> None:
        """Receive one call."""


_active: ContextVar[tuple[Recorder, ErrorHandler | None] | None] = ContextVar("attnscope_recorder", default=None)


def record(
    query: Float[Tensor, "batch heads queries key_dims"],
    key: Float[Tensor, "batch kv_heads keys key_dims"],
    value: Float[Tensor, "batch kv_heads keys dims"],
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    cross: bool | None = None,
    module: nn.Module | None = None,
) -> None:
    """Report one attention call of a custom module to the scan that is running, if any.

    >>> class Mine(torch.nn.Module):
    ...     def forward(self, x):  # (batch, heads, tokens, size)
    ...         attnscope.capture.record(x, x, x, causal=True, module=self)
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> result = attnscope.scan(Mine(), inputs=torch.randn(1, 2, 8, 4), top_n=[2], progress=False)
    >>> result.heads.height
    2

    The logits are query · key x `scale`, through `softcap`, plus `bias` and a float `mask`. Masks and biases broadcast
    to (batch, heads, queries, keys).

    Parameters
    ----------
    query : (batch, heads, queries, key_dims)
        Queries.
    key : (batch, kv_heads, keys, key_dims)
        Keys; heads may share them.
    value : (batch, kv_heads, keys, dims)
        Values; heads may share them.
    mask
        Boolean, True where a key is visible; or a float that is added, where -1e4 or less hides a key.
    scale
        Factor of the products. Default: one over the root of the key size.
    causal
        Hide later keys, whatever the mask says about them.
    bias
        Added to the logits.
    softcap
        Largest magnitude of a logit: softcap tanh(logit / softcap).
    sinks : (heads,)
        Logits that take weight and have no key.
    cross
        Whether the keys come from another sequence than the queries. Default: not known.
    module
        The attention module. Default: the innermost one on the call stack.
    """
    active = _active.get()
    if active is None:
        return
    recorder, on_error = active
    with handled(on_error):
        mask, bias = _checked(query, key, value, mask, bias, softcap)
        options = {"scaling": scale, "is_causal": causal, "position_bias": bias, "softcap": softcap, "s_aux": sinks}
        recorder(module, query, key, value, mask, cross=cross, **options)


def _checked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, softcap: float | None
) -> tuple[Tensor | None, Tensor | None]:
    """The mask and the bias, expanded over all keys; raises InputError for arguments that do not fit together."""
    shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
    wrong = any(len(shape) != 4 for shape in shapes) or not (
        shapes[0][0] == shapes[1][0] == shapes[2][0]
        and shapes[0][3] == shapes[1][3]
        and shapes[1][1:3] == shapes[2][1:3]
        and min(shapes[1][1], shapes[1][3]) > 0
        and shapes[0][1] % shapes[1][1] == 0
    )
    if wrong:
        raise InputError(
            "record takes query (batch, heads, queries, size), key (batch, kv heads, keys, size) and value (batch, kv "
            f"heads, keys, value size), heads a multiple of kv heads; received {', '.join(map(str, shapes))}"
        )
    full = (*shapes[0][:3], shapes[1][2])
    mask, bias = _fitted("mask", mask, full), _fitted("bias", bias, full)
    if softcap is not None and not softcap > 0:
        raise InputError(f"record takes a softcap above zero, or None for none; received {softcap!r}")
    return mask, bias


def _fitted(name: str, tensor: Tensor | None, full: tuple[int, ...]) -> Tensor | None:
    """A mask or bias expanded over all keys; raises if it does not broadcast or has an integer dtype."""
    if tensor is None:
        return None
    shape = tuple(tensor.shape)
    fits = len(shape) <= 4 and all(size in (1, of) for size, of in zip(shape[::-1], full[::-1], strict=False))
    integer = not tensor.dtype.is_floating_point and (name == "bias" or str(tensor.dtype) != "torch.bool")
    if not fits or integer:
        kinds = "boolean or float" if name == "mask" else "float"
        raise InputError(
            f"record takes a {kinds} {name} that broadcasts to {full}; received {tensor.dtype} of shape {shape}"
        )
    return tensor.expand(*shape[:-1], full[-1]) if shape else tensor.expand(full[-2:])


@contextmanager
def recording(recorder: Recorder, on_error: ErrorHandler | None = None) -> Iterator[None]:
    """Send all calls of `record` within this block to the recorder."""
    token = _active.set((recorder, on_error))
    try:
        yield
    finally:
        _active.reset(token)
