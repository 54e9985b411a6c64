"""What a head adds to the residual stream, measured where it is added.

Between the kernel and the output projection a model may gate or normalize the heads, and after the projection it may
scale or normalize their sum. All of it is observed in the forward pass that is measured, at the measured rows:

- what arrives at the output projection, compared with weights times values. If they differ, the attention module runs
  once more with a known kernel output, which shows a factor for each row and channel (a gate); what is left must be a
  factor for each row and head (a norm, taken as it is in this row);
- what leaves the projection, compared with the sum of the heads' parts and the bias: the sum rule;
- what the block adds to its input: the projection's output, times a constant or through one norm.

What cannot be explained in this way is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import nn

from attnscope.capture import huggingface
from attnscope.capture.attention import AttentionCall
from attnscope.capture.modules import output_projection
from attnscope.capture.watching import UNHOOKED
from attnscope.errors import ModelError, parameter

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.attention import Call

# Largest relative difference that is rounding: measured rows are float64, the model computes in its own type.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_LEAST_ROWS = 8  # to fit two constants for each channel
_PROBE = 1e3  # large, so that the constant that a norm adds to the mean square does not count


@dataclass(frozen=True)
class RowEffects:
    """The way of a head's context, the weighted sum of its values, to the residual stream in some rows."""

    factor: Float[Tensor, "heads rows dims"] | None  # of gates and norms before the projection
    gated: bool  # whether the factor does not depend on what the kernel returns
    matrix: Float[Tensor, "heads dims columns"]  # keeps lengths and angles of the stream
    scale: Float[Tensor, " rows"]  # of a norm after it
    error: float  # of the sum rule, relative

    def added(self, arriving: Float[Tensor, "heads rows dims"]) -> Float[Tensor, "heads rows columns"]:
        """What the heads add to the stream, up to a rotation, if this arrives at the output projection."""
        return arriving @ self.matrix * self.scale[:, None]


class EffectSource:
    """Follows attention calls through their blocks in one model."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules())
        self.names = {module: name for name, module in self.modules.items()}
        self.given: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}  # inputs of attention modules
        self._open: list[_Pass] = []
        self._hooks = ExitStack()
        for module, name in self.names.items():
            if name.rpartition(".")[2].isdigit() and not isinstance(module, UNHOOKED):
                self._hooks.callback(module.register_forward_hook(self._end).remove)
            if "ttention" in type(module).__name__ and not isinstance(module, UNHOOKED):
                hook = module.register_forward_pre_hook(self._remember, with_kwargs=True)
                self._hooks.callback(hook.remove)

    def close(self) -> None:
        for each in self._open:
            each.close()
        self._hooks.close()
        self.given.clear()

    def follow(self, call: Call, done: Callable[[Effects], None]) -> None:
        """Follow a call until its block ends, and pass its effects to `done`."""
        name = self.names.get(call.module, "")
        while name and not name.rpartition(".")[2].isdigit():
            name = name.rpartition(".")[0]
        each = _Pass(self, call, done)
        if not name:
            each.reason = f"{self.name(call.module)} is in no numbered block"
            done(Effects(self, each))
            return
        for other in self._open:  # nothing has arrived since the kernel was called before
            if other.call.module is call.module and other.arrived is None:
                each.reason = f"{self.name(call.module)} combines the results of several calls of its kernel"
                other.reason = each.reason
        self._open.append(each)
        each.follow(self.modules[name])

    def _end(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        for each in [each for each in self._open if each.block is block]:
            self._open.remove(each)
            each.end(output)
            with torch._C.DisableTorchFunction(), torch.no_grad():
                each.done(Effects(self, each))
            self.given.pop(each.call.module, None)

    def name(self, module: nn.Module) -> str:
        """A module's class and name, for messages."""
        return f"{type(module).__name__} ({self.names.get(module, '')})"

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.given[module] = tuple(map(_own, args)), {name: _own(value) for name, value in kwargs.items()}


class _Pass:
    """A call on its way through its block: what arrives at the output projection, leaves it, and comes later."""

    def __init__(self, source: EffectSource, call: Call, done: Callable[[Effects], None]) -> None:
        self.call, self.done = call, done
        self.block: nn.Module | None = None
        self.reason: str | None = None  # why the effects cannot be measured
        self.arrived: Any = None
        self.projected: Any = None
        self.later: list[tuple[nn.Module, Any, Any]] = []  # modules that ran after the projection: input, output
        found = output_projection(source.names, source.modules, call.module, call.heads * call.values().shape[-1])
        self.projection = None if found is None else found[0]
        self.matrix = None if found is None else found[1]
        if found is None:
            self.reason = f"no output projection was found for {source.name(call.module)}"
        self._source = source
        self._hooks = ExitStack()

    def follow(self, block: nn.Module) -> None:
        """Observe what runs in the block from now on."""
        self.block = block
        for part in block.modules():
            if part is not block and not isinstance(part, UNHOOKED):
                self._hooks.callback(part.register_forward_hook(self._ran).remove)

    def close(self) -> None:
        self._hooks.close()

    def _ran(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given, result = args[0] if args else None, output[0] if isinstance(output, tuple) else output
        if module is self.projection and self.arrived is None:
            self.arrived, self.projected = given, _copy(result)
        elif self.arrived is not None:
            like = getattr(result, "shape", None) == getattr(self.projected, "shape", ())
            self.later.append((module, given, _copy(result) if like else None))

    def end(self, output: Any) -> None:
        """The block has ended with this output."""
        self.close()
        if self.arrived is None and self.reason is None:
            self.reason = f"the output projection of {self._source.name(self.call.module)} was not seen at work"
        assert self.block is not None
        self.later.append((self.block, None, output[0] if isinstance(output, tuple) else output))


class _Where(NamedTuple):
    """Rows of an item of the batch."""

    item: int
    queries: int  # of the item
    rows: list[int]

    def of(self, tensor: Any) -> Float[Tensor, "rows width"] | None:
        """These rows of a tensor that has a vector for each query, in float64; None for any other."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.ndim not in (2, 3):
            return None
        if tensor.ndim == 2 and tensor.shape[0] % self.queries == 0:
            tensor = tensor.reshape(-1, self.queries, tensor.shape[-1])
        if tensor.ndim == 2 or tensor.shape[1] != self.queries or self.item >= tensor.shape[0]:
            return None
        return tensor[self.item, self.rows].detach().double()


class Effects:
    """The effects of one call, or why they cannot be measured."""

    def __init__(self, source: EffectSource, observed: _Pass) -> None:
        self._source, self._observed = source, observed
        self._call = observed.call
        self._probed: tuple[Tensor, Tensor] | None = None  # a known kernel output, and what arrived

    def rows(
        self,
        call: Call,
        positions: Sequence[int],
        context: Float[Tensor, "heads rows dims"],
        stream: Float[Tensor, "rows width"],
    ) -> RowEffects:
        """The effects of rows of an item, given their contexts and the input of the block."""
        seen = self._observed
        if seen.reason is not None or seen.matrix is None or seen.projection is None:
            raise ModelError(f"{seen.reason}: what its heads add to the residual stream is not known")
        tolerance = TOLERANCE.get(seen.arrived.dtype, 1e-4)
        where = _Where(call.batch_index, call.queries, list(positions))
        arrived, projected = self._heads(where.of(seen.arrived)), where.of(seen.projected)
        factor, gated = None, False
        if not _close(arrived, context, tolerance):
            factor, gated = self._factor(where, arrived, context, tolerance)
        matrix = seen.matrix.double().unflatten(0, (call.heads, -1)).to(context.device)
        zero = torch.zeros_like(seen.arrived.reshape(-1, seen.arrived.shape[-1])[:1])
        parts = torch.einsum("hrd,hdw->rw", context if factor is None else context * factor, matrix)
        total = parts + seen.projection(zero).double().reshape(-1)
        if projected is None or projected.shape != total.shape:
            raise self._unexplained("leaves its output projection")
        error = float((total - projected).norm() / projected.norm().clamp_min(1e-300)) if projected.any() else 0.0
        if not _close(total, projected, tolerance):
            raise self._unexplained("leaves its output projection", f"the heads' parts miss it by {error:.1e}")
        channels, scale = self._to_stream(where, projected, stream, tolerance)
        matrix = matrix * channels
        if matrix.shape[-1] > matrix.shape[-2]:  # only lengths and angles matter: with W^T = Q R, |c W| = |c R^T|
            matrix = torch.linalg.qr(matrix.mT, mode="r").R.mT
        return RowEffects(factor, gated, matrix, scale, error)

    def refuse_changed(self) -> None:
        """ModelError unless what the kernel returns arrives at the output projection as it is, in every row."""
        call, seen = self._call, self._observed
        if seen.reason is not None:
            raise ModelError(seen.reason)
        where = _Where(0, call.queries, [call.queries - 1])
        tolerance = TOLERANCE.get(seen.arrived.dtype, 1e-4)
        if isinstance(call, AttentionCall) and call.kernel_function is not None:
            known = torch.randn(call.batch, call.queries, call.heads, call.values().shape[-1]).to(call.values())
            arrived, expected = where.of(self._arrived_for(known)), known[0, where.rows].double().flatten(1)
        else:
            logits = call.logits(where.rows).masked_fill(~call.visible(where.rows), -torch.inf)
            values = call.values().double()
            context = logits.softmax(-1).nan_to_num(0) @ values.repeat_interleave(call.heads // len(values), 0)
            arrived, expected = where.of(seen.arrived), context.transpose(0, 1).flatten(1)
        if arrived is None or not _close(arrived, expected, tolerance):
            raise ModelError(
                f"{self._source.name(call.module)} gates, normalizes or combines the outputs of its heads before they "
                f"are projected: {parameter('vectors', 'output')} would not be what its weights average; use "
                f"{parameter('vectors', 'value')}"
            )

    def _heads(self, arrived: Tensor | None) -> Float[Tensor, "heads rows dims"]:
        if arrived is None or arrived.shape[-1] % self._call.heads:
            raise self._unexplained("arrives at its output projection")
        return arrived.unflatten(-1, (self._call.heads, -1)).transpose(0, 1)

    def _factor(
        self, where: _Where, arrived: Tensor, context: Tensor, tolerance: float
    ) -> tuple[Float[Tensor, "heads rows dims"], bool]:
        """Factors of gates and norms, and whether it is gates alone, which are the same whatever the kernel returns."""
        if arrived.shape != context.shape:
            raise self._unexplained("arrives at its output projection")
        if self._probed is None:
            call = self._call
            shape = (call.batch, call.queries, call.heads, context.shape[-1])
            known = (torch.randint(2, shape, generator=torch.Generator().manual_seed(0)) * 2 - 1) * _PROBE
            known = known.to(call.values())
            self._probed = known, self._arrived_for(known)
        known, probed = self._probed
        channels = self._heads(where.of(probed)) / known[where.item, where.rows].double().transpose(0, 1)
        expected = context * channels
        square = expected.square().sum(-1, keepdim=True)
        norms = torch.where(square > 0, (expected * arrived).sum(-1, keepdim=True) / square.clamp_min(1e-300), 1)
        for factor, gated in ((channels, True), (channels * norms, False)):
            if _close(context * factor, arrived, tolerance):
                return factor, gated
        raise self._unexplained("arrives at its output projection")

    def _arrived_for(self, outputs: Float[Tensor, "batch queries heads dims"]) -> Tensor:
        """What arrives at the output projection if the kernel returns these outputs."""
        module, given = self._call.module, self._source.given.get(self._call.module)
        if given is None:
            raise self._unexplained("arrives at its output projection", "it cannot run twice")
        args = [_own(value) for value in given[0]]
        kwargs = {name: _own(value) for name, value in given[1].items()}
        assert self._observed.projection is not None
        hook = self._observed.projection.register_forward_pre_hook(_stop)
        try:
            with _answering(module, outputs):
                result = module(*args, **kwargs)
        except _Arrived as arrival:
            return arrival.tensor
        finally:
            hook.remove()
        returned = result[0] if isinstance(result, tuple) else result  # the projection is in another module
        if not isinstance(returned, torch.Tensor) or returned.shape[-1] != outputs[0, 0].numel():
            raise self._unexplained("arrives at its output projection", "it does not run again")
        return returned

    def _to_stream(self, where: _Where, total: Tensor, stream: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Factors of the projection's output in the stream, by channel and by row.

        The stream after it is an input or an output of a later module, or of the block. It is the block's input plus a
        constant times the output, or times what a norm makes of it; in parallel blocks, plus another module's output.
        Some models mix the two channel by channel.
        """
        if total.norm() <= 1e-5 * stream.norm():  # lost in the rounding of the stream: no constant can be seen
            return torch.ones_like(total[0]), torch.ones_like(total[:, 0])
        later = [(module, where.of(given), where.of(output)) for module, given, output in self._observed.later]
        ways = [(total, torch.ones_like(total[0]), torch.ones_like(total[:, 0]))]
        for module, given, output in later:
            if given is not None and output is not None and _close(given, total, tolerance):
                factors = self._norm(module, total, output, tolerance)
                if factors is not None:
                    ways.append((total * factors[0] * factors[1][:, None], *factors))
        states = [s for _, given, output in later for s in (given, output) if s is not None and s.shape == total.shape]
        others = [output for _, _, output in later[:-1] if output is not None and output.shape == total.shape]
        if states and stream.shape == total.shape:
            for added, channels, rows in reversed(ways):
                for state, parts in [*((s, [added]) for s in states), *((states[-1], [added, o]) for o in others)]:
                    constant = _multiple(state - stream, parts, stream, tolerance)
                    if constant is not None:
                        return channels * constant, rows
            for added, channels, rows in reversed(ways):
                for state in states:
                    mixed = _mixed(state, stream, added, tolerance)
                    if mixed is not None:
                        return channels * mixed, rows
        raise self._unexplained("is added to the residual stream")

    def _norm(
        self, module: nn.Module, given: Tensor, output: Tensor, tolerance: float
    ) -> tuple[Float[Tensor, " width"], Float[Tensor, " rows"]] | None:
        """Factors of a module that multiplies each channel, and each row by a norm; None if it does anything else."""
        signs = torch.randint(2, given.shape[-1:], generator=torch.Generator().manual_seed(0)) * 2 - 1
        known = (signs * _PROBE).to(self._observed.projected)
        probed = module(known[None, None])
        if not isinstance(probed, torch.Tensor) or probed.numel() != known.numel():
            return None
        channels = probed.double().reshape(-1) / known.double()
        expected = given * channels
        square = expected.square().sum(-1)
        rows = torch.where(square > 0, (expected * output).sum(-1) / square.clamp_min(1e-300), 1)
        return (channels, rows) if _close(expected * rows[:, None], output, tolerance) else None

    def _unexplained(self, what: str, why: str = "no gate, norm or constant explains it") -> ModelError:
        return ModelError(f"what {what} is not understood in {self._source.name(self._call.module)}: {why}")


class _Arrived(Exception):  # noqa: N818 - ends a forward on purpose
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _stop(module: nn.Module, args: tuple[Any, ...]) -> NoReturn:
    raise _Arrived(args[0])


@contextmanager
def _answering(module: nn.Module, outputs: Tensor) -> Iterator[None]:
    """Let the module's attention kernel return these outputs, unobserved."""

    class Answer(nn.Module):
        def forward(self, call: Any) -> tuple[Tensor, None]:
            return outputs, None

    before = module._modules.get(huggingface.REPLACEMENT)
    with huggingface.observed(module, lambda call: None, alone=True):
        module._modules[huggingface.REPLACEMENT] = Answer()
        try:
            yield
        finally:
            del module._modules[huggingface.REPLACEMENT]
            if before is not None:
                module._modules[huggingface.REPLACEMENT] = before


def _own(value: Any) -> Any:
    """A copy of a cache, to which a module adds when it runs; anything else as it is."""
    return copy.deepcopy(value) if hasattr(value, "get_seq_length") else value


def _copy(output: Any) -> Any:
    """A copy of a tensor, because a model may add to it in place."""
    return output.clone() if isinstance(output, torch.Tensor) else output


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether all rows agree, relative to the size of each and to the largest."""
    if a.shape != b.shape:
        return False
    size = b.norm(dim=-1)
    return bool(((a - b).norm(dim=-1) <= tolerance * torch.maximum(size, 1e-3 * size.max())).all())


def _multiple(change: Tensor, parts: list[Tensor], stream: Tensor, tolerance: float) -> float | None:
    """The constant c of change = c first (+ d second), the same in all rows; None if there is none."""
    matrix = torch.stack([part.reshape(-1) for part in parts], -1)
    if not (matrix.isfinite().all() and change.isfinite().all()):
        return None
    constants = torch.linalg.lstsq(matrix, change.reshape(-1, 1)).solution[:, 0]
    gap = change - (matrix @ constants).reshape(change.shape)
    rounding = 1e-7 if tolerance <= 1e-4 else tolerance / 10
    allowed = tolerance * change.norm(dim=-1) + 4 * rounding * stream.norm(dim=-1)
    fits = bool((gap.norm(dim=-1) <= allowed).all()) and abs(float(constants[0])) > 1e-6
    return float(constants[0]) if fits else None


def _mixed(state: Tensor, stream: Tensor, added: Tensor, tolerance: float) -> Float[Tensor, " width"] | None:
    """The constants c of state = b stream + c added in each channel, the same in all rows; None if there are none."""
    if len(state) < _LEAST_ROWS:
        return None
    parts = torch.stack([stream, added], -1).transpose(0, 1)  # (width, rows, 2)
    constants = torch.linalg.lstsq(parts, state.T[..., None], driver="gelsd").solution[..., 0]
    gap = state - (parts @ constants[..., None])[..., 0].T
    if not (constants.isfinite().all() and (gap.norm(dim=-1) <= tolerance * state.norm(dim=-1)).all()):
        return None
    return constants[:, 1]
