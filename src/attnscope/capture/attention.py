"""From one attention call to the rows that measures want.

A call is what transformers hands to its attention kernel. Arguments that change the result are applied
here exactly as the kernels apply them, in this order: scaling, softcap, position bias, mask. An argument
that this module does not know raises: a silent guess would give wrong numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attnscope.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor, nn

APPLIED = {"scaling", "softcap", "s_aux", "position_bias", "is_causal"}
# These say how to compute, or repeat what the mask already says; the result does not depend on them.
HARMLESS = {
    "cache_position",
    "deterministic",
    "dropout",
    "layer_idx",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "sliding_window",
    "use_cache",
}


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one call of a layer's attention kernel."""

    module: nn.Module
    query: Float[Tensor, "batch heads queries key_dims"]
    key: Float[Tensor, "batch kv_heads keys key_dims"]
    value: Float[Tensor, "batch kv_heads keys dims"]
    mask: Tensor | None
    options: dict[str, Any]
    implementation: str = ""  # the name of the kernel, and the kernel itself
    kernel: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        unknown = [
            name
            for name, value in self.options.items()
            if value is not None and name not in APPLIED | HARMLESS and not name.startswith("output_")
        ]
        if unknown:
            raise ModelError(
                f"{type(self.module).__name__} passes {', '.join(sorted(unknown))} to its attention kernel, which "
                "attnscope cannot apply; the weights it would measure would be wrong"
            )

    def own(self) -> Any:
        """What the model's own kernel answers: (batch, queries, heads, dims), and weights or None."""
        assert self.kernel is not None
        return self.kernel(self.module, self.query, self.key, self.value, self.mask, **self.options)

    @property
    def scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        scaling = self.options.get("scaling")
        return self.query.shape[-1] ** -0.5 if scaling is None else float(scaling)

    @property
    def causal(self) -> bool:
        """Whether the kernel masks later keys by itself, there being no mask."""
        asked = self.options.get("is_causal")
        causal = getattr(self.module, "is_causal", True) if asked is None else asked
        return bool(causal) and self.mask is None and self.query.shape[2] > 1

    def visible(self, positions: Sequence[int]) -> Bool[Tensor, "heads rows keys"]:
        """The keys that each of the queries may attend to."""
        heads, keys = self.query.shape[1], self.key.shape[2]
        rows = torch.tensor(list(positions), device=self.query.device)
        if self.mask is None:
            places = torch.arange(keys, device=self.query.device)
            seen = places <= rows[:, None] if self.causal else torch.ones(len(rows), keys, dtype=torch.bool)
            return seen.to(self.query.device).expand(heads, -1, -1)
        mask = self._mask_rows(rows)
        # Kernels hide a key by adding the most negative number of the type, or more of it.
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        return seen.expand(heads, -1, -1)

    def logits(self, positions: Sequence[int]) -> Float[Tensor, "heads rows keys"]:
        """The logits of these queries in float64, from the model's own queries and keys."""
        rows = torch.tensor(list(positions), device=self.query.device)
        query = self.query[0, :, rows].double()
        key = self.key[0].double()
        grouped = query.unflatten(0, (key.shape[0], -1))
        logits = (grouped @ key.mT.unsqueeze(1)).flatten(0, 1) * self.scale
        softcap = self.options.get("softcap")
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        bias = self.options.get("position_bias")
        if bias is not None:
            logits = logits + bias[0, :, rows].double()
        if self.mask is not None and self.mask.dtype != torch.bool:
            mask = self._mask_rows(rows)
            shown = mask > torch.finfo(mask.dtype).min / 2
            logits = logits + torch.where(shown, mask, 0).double()
        return logits

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Logits that take weight and have no key, one for each head."""
        sinks = self.options.get("s_aux")
        return None if sinks is None else sinks.detach().double().reshape(-1)

    def _mask_rows(self, rows: Tensor) -> Tensor:
        mask = self.mask
        if mask is None or mask.ndim != 4:
            raise ModelError(
                f"{type(self.module).__name__} got an attention mask of shape "
                f"{None if mask is None else tuple(mask.shape)}; attnscope reads masks of four dimensions"
            )
        return mask[0][:, rows if mask.shape[2] > 1 else torch.zeros_like(rows), : self.key.shape[2]]
