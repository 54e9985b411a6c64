"""The vectors that the weights average.

- `value`: the head's value vectors, shared by the query heads of a group;
- `output`: each value times the head's slice of the output projection, i.e. what the head adds to the residual stream;
- `hidden`: the input of the layer, shared by all heads;
- `hidden_unit`: the same, each scaled to length one;
- `embedding`: the token's input embedding without its position, the same in all layers.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnscope.capture.modules import Layers
from attnscope.capture.watching import WatchedForward
from attnscope.columns import VectorKind
from attnscope.errors import ModelError, parameter

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.attention import Call

# Names of the output projection in model files.
OUTPUT_PROJECTIONS = (
    "o_proj",
    "c_proj",
    "out_proj",
    "dense",
    "wo",
    "Wo",
    "o",
    "out_lin",
    "attention_output",
    "output",
)


class VectorSource:
    """Finds the vectors of an attention call in one model, and numbers its layers."""

    def __init__(self, model: nn.Module, kind: VectorKind) -> None:
        self.kind = kind
        self.layers = Layers(model)
        self._names = self.layers.names
        self._modules = dict(model.named_modules())
        self._inputs: dict[nn.Module, Tensor] = {}
        self._embedding: Tensor | None = None
        self._hooks = ExitStack()
        if kind in ("hidden", "hidden_unit", "embedding"):
            self._watched = WatchedForward(model)
            self._hooks.enter_context(self._watched.followed())
        if kind == "embedding":
            hook = _input_embedding(model).register_forward_hook(self._remember_embedding)
            self._hooks.callback(hook.remove)
        if kind in ("hidden", "hidden_unit"):
            for block in [m for name, m in self._modules.items() if name.rpartition(".")[2].isdigit()]:
                hook = block.register_forward_pre_hook(self._remember_input, with_kwargs=True)
                self._hooks.callback(hook.remove)

    def close(self) -> None:
        self._hooks.close()
        self._inputs.clear()
        self._embedding = None

    def layer(self, module: nn.Module, order: int) -> int:
        """The number of the layer whose attention was just called, as the `order`-th of its forward pass."""
        if order == 0:
            self.layers.start()
        return self.layers.number(module)

    def entry(self, call: Call, layer: int) -> dict[str, Any]:
        return self.layers.entry(call, layer)

    def vectors(self, call: Call, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """The vectors of a call, one group per set of heads that share them; values and inputs in the model's dtype."""
        if self.kind == "value":
            return call.values(item)
        if self.kind == "output":
            return self._output(call, item)
        if self.kind == "embedding":
            return self._tokens(call, self._embedding, item, "embedding")
        hidden = self._hidden(call, item)
        return hidden if self.kind == "hidden" else nn.functional.normalize(hidden.double(), dim=-1, eps=1e-300)

    def _output(self, call: Call, item: int) -> Float[Tensor, "heads keys dims"]:
        value = call.values(item).double()
        heads, dims = call.heads, value.shape[-1]
        matrix = self._projection(call.module, heads * dims).double().to(value.device)
        slices = matrix.unflatten(0, (heads, dims))
        # Only lengths and angles matter: with W^T = Q R, |v W| = |R v|, in `dims` numbers instead of the model's width.
        factor = torch.linalg.qr(slices.mT, mode="r").R if slices.shape[-1] > dims else slices.mT
        return value.repeat_interleave(heads // value.shape[0], 0) @ factor.mT

    def _projection(self, module: nn.Module, size: int) -> Float[Tensor, "heads_times_dims width"]:
        """The matrix of the output projection, from the heads to the residual stream."""
        found = output_projection(self._names, self._modules, module, size)
        if found is None:
            raise ModelError(
                f"no output projection found for {type(module).__name__} ({self._names.get(module, '')}); "
                "use value or hidden"
            )
        return found[1]

    def _remember_input(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, torch.Tensor) and self._watched.active():
            stack = self._names[block].rpartition(".")[0]
            for other in [m for m in self._inputs if self._names[m].rpartition(".")[0] == stack]:
                del self._inputs[other]  # one block of the stack at a time, to free the inputs of the others
            self._inputs[block] = hidden

    def _hidden(self, call: Call, item: int) -> Float[Tensor, "1 keys dims"]:
        name = self._names.get(call.module, "")
        while name and self._modules[name] not in self._inputs:
            name = name.rpartition(".")[0]
        if not name:
            raise ModelError(
                f"the input of the layer around {type(call.module).__name__} was not seen; use "
                f"{parameter('vectors', 'value')}"
            )
        return self._tokens(call, self._inputs[self._modules[name]], item, "its layer's input")

    def _remember_embedding(self, module: nn.Module, args: tuple[Any, ...], embedding: Tensor) -> None:
        if self._watched.active():
            self._embedding = embedding

    def _tokens(self, call: Call, vectors: Tensor | None, item: int, source: str) -> Float[Tensor, "1 keys dims"]:
        """The vectors of one item, if they are those of the call's keys."""
        count = 0 if vectors is None else vectors.shape[1]
        if vectors is None or self.entry(call, 0)["kind"] == "cross" or count != call.keys:
            raise ModelError(
                f"{type(call.module).__name__} attends to {call.keys} keys that are not the {count} tokens "
                f"of {source}; use {parameter('vectors', 'value')}"
            )
        return vectors[call.batch_index + item, None]


def output_projection(
    names: dict[nn.Module, str], modules: dict[str, nn.Module], module: nn.Module, size: int
) -> tuple[nn.Module, Float[Tensor, "size width"]] | None:
    """The output projection of an attention module whose heads have `size` numbers in all, and its matrix."""
    name = names.get(module, "")
    while True:
        for child_name, child in modules[name].named_modules():
            if child_name.rpartition(".")[2] in OUTPUT_PROJECTIONS:
                matrix = _matrix(child, size)
                if matrix is not None:
                    return child, matrix
        if not name or name.rpartition(".")[2].isdigit():
            return None
        name = name.rpartition(".")[0]


def _input_embedding(model: nn.Module) -> nn.Module:
    """The module that turns tokens into vectors."""
    find = getattr(model, "get_input_embeddings", None)
    embedding = find() if find is not None else None
    if not isinstance(embedding, nn.Module):
        raise ModelError(
            f"{type(model).__name__} does not say which module embeds its tokens; use {parameter('vectors', 'value')}"
        )
    return embedding


def _matrix(projection: nn.Module, size: int) -> Tensor | None:
    """A projection's matrix if it has `size` input features, including what a wrapper (LoRA, int8, offloading) adds."""
    from transformers.pytorch_utils import Conv1D

    weight = getattr(projection, "weight", None)
    plain = type(projection).forward in (nn.Linear.forward, Conv1D.forward)
    if plain and weight is not None and not _altered(projection, weight):
        matrix = weight.detach() if isinstance(projection, Conv1D) else weight.detach().mT
        return matrix if matrix.shape[0] == size else None
    if getattr(projection, "in_features", size if isinstance(projection, Conv1D) else None) != size:
        return None
    dtype = weight.dtype if isinstance(weight, torch.Tensor) and weight.is_floating_point() else torch.float32
    device = "cpu" if not isinstance(weight, torch.Tensor) or weight.is_meta else weight.device
    unit = torch.eye(size, dtype=dtype, device=device)
    with torch.no_grad():
        result = projection(torch.cat([unit, torch.zeros_like(unit[:1])]))
    if not isinstance(result, torch.Tensor):  # I-BERT's returns its scale too
        return None
    return result[:-1] - result[-1]


def _altered(projection: nn.Module, weight: Any) -> bool:
    """Whether the module multiplies with something else than this weight: offloaded, packed, or changed by a hook."""
    return (
        not isinstance(weight, torch.Tensor)
        or weight.is_meta
        or not weight.is_floating_point()
        or ("forward" in vars(projection))
    )
