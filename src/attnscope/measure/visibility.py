"""Which keys the rows of a block see, in the forms that measuring needs.

Most layers of a model have the same masks, so what is computed here for one layer is reused for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from jaxtyping import Bool
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Visibility:
    """The masks of a block of rows."""

    visible: Bool[Tensor, "heads rows keys"]

    @property
    def shared(self) -> bool:
        """Whether all heads share one mask in memory."""
        return _shared(self.visible)

    def of_all_heads(self, visible: Bool[Tensor, "heads rows keys"]) -> bool:
        """Whether two masks, each shared by all heads, are the same."""
        alike = visible.shape == self.visible.shape and visible.device == self.visible.device
        return alike and self.shared and _shared(visible) and torch.equal(visible[0], self.visible[0])

    @cached_property
    def masks(self) -> NDArray[np.bool_]:
        """The masks of all rows, (masks, keys); only those of one head if all heads have the same."""
        masks = self.visible[0] if self.shared else self.visible.flatten(0, 1)
        return masks.cpu().contiguous().numpy()

    @cached_property
    def mask_of(self) -> NDArray[np.int64]:
        """Index of the mask of every row of every head."""
        heads, rows, _ = self.visible.shape
        return np.tile(np.arange(rows), heads) if self.shared else np.arange(heads * rows)

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """For each mask, the first visible key, the end of the visible keys, and their number; zeros if none."""
        masks = self.masks
        lengths = masks.sum(-1)
        ends = masks.shape[-1] - masks[:, ::-1].argmax(-1)
        return np.stack([masks.argmax(-1), np.where(lengths > 0, ends, 0), lengths], -1)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The end of the visible keys, (heads or 1, rows)."""
        return self.spans[:, 1].reshape(-1, self.visible.shape[1])

    @cached_property
    def length(self) -> NDArray[np.int64]:
        """How many keys each row sees, (heads, rows)."""
        heads, rows, _ = self.visible.shape
        return np.broadcast_to(self.spans[:, 2].reshape(-1, rows), (heads, rows))


def _shared(visible: Bool[Tensor, "heads rows keys"]) -> bool:
    return len(visible) == 1 or visible.stride(0) == 0
