"""What the weights average: value, output or hidden vectors.

- `value`: the head's value vectors, shared by the query heads of a group;
- `output`: each value through the head's slice of the output projection, what the head adds to the stream;
- `hidden`: the input of the layer, shared by all heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from attnscope.errors import ModelError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

    from attnscope.capture.attention import AttentionCall

VectorKind = Literal["value", "output", "hidden"]
VECTOR_KINDS: tuple[str, ...] = get_args(VectorKind)

# The names that model files give to the projection behind the heads.
OUTPUT_PROJECTIONS = (
    "o_proj",
    "c_proj",
    "out_proj",
    "dense",
    "wo",
    "o",
    "out_lin",
    "attention_output",
    "output",
)


class VectorSource:
    """Finds the vectors of an attention call in one model."""

    def __init__(self, model: nn.Module, kind: VectorKind) -> None:
        self.kind = kind
        self._names = {module: name for name, module in model.named_modules()}
        self._modules = dict(model.named_modules())
        self._inputs: dict[nn.Module, Tensor] = {}
        self._hooks = []
        if kind == "hidden":
            blocks = [m for name, m in self._modules.items() if name.rpartition(".")[2].isdigit()]
            self._hooks = [block.register_forward_pre_hook(self._keep, with_kwargs=True) for block in blocks]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._inputs.clear()

    def layer(self, module: nn.Module, order: int) -> int:
        """The number of the layer: the block's own number, else the order of the call."""
        numbers = [part for part in self._names.get(module, "").split(".") if part.isdigit()]
        return int(numbers[-1]) if numbers else order

    def vectors(self, call: AttentionCall) -> Float[Tensor, "groups keys dims"]:
        """The vectors of a call in float64, one group for heads that share them."""
        if self.kind == "value":
            return call.value[0].double()
        if self.kind == "output":
            return self._output(call)
        return self._hidden(call)

    def _output(self, call: AttentionCall) -> Float[Tensor, "heads keys dims"]:
        value = call.value[0].double()
        heads, dims = call.query.shape[1], value.shape[-1]
        slices = self._projection(call.module, heads * dims).double().unflatten(0, (heads, dims))
        # Only lengths and angles matter: with W^T = Q R, |v W| = |R v|, in `dims` numbers instead of the model's width.
        factor = torch.linalg.qr(slices.mT, mode="r").R if slices.shape[-1] > dims else slices.mT
        return value.repeat_interleave(heads // value.shape[0], 0) @ factor.mT

    def _projection(self, module: nn.Module, size: int) -> Float[Tensor, "heads_times_dims width"]:
        """The weight of the projection behind the heads, oriented from heads to stream."""
        from transformers.pytorch_utils import Conv1D

        name = self._names[module]
        while True:
            owner = self._modules[name]
            for child_name, child in owner.named_modules():
                weight = getattr(child, "weight", None)
                if child_name.rpartition(".")[2] not in OUTPUT_PROJECTIONS or weight is None:
                    continue
                matrix = weight.detach() if isinstance(child, Conv1D) else weight.detach().mT
                if matrix.ndim == 2 and matrix.shape[0] == size:
                    return matrix
            if not name or name.rpartition(".")[2].isdigit():
                break
            name = name.rpartition(".")[0]
        raise ModelError(
            f"no output projection found for {type(module).__name__} ({self._names[module]}); use value or hidden"
        )

    def _keep(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, torch.Tensor):
            self._inputs[block] = hidden

    def _hidden(self, call: AttentionCall) -> Float[Tensor, "1 keys dims"]:
        name = self._names[call.module]
        while name and self._modules[name] not in self._inputs:
            name = name.rpartition(".")[0]
        if not name:
            raise ModelError(
                f"the input of the layer around {type(call.module).__name__} was not seen; use --vectors value"
            )
        hidden = self._inputs.pop(self._modules[name])
        if hidden.shape[1] != call.key.shape[2]:
            raise ModelError(
                f"{type(call.module).__name__} attends to {call.key.shape[2]} keys and its layer's input has "
                f"{hidden.shape[1]}; use --vectors value"
            )
        return hidden[:1].double()
