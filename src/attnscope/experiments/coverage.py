"""Section 4 on a real model: which share of a head's top set do H heads of its layer tell apart together?

A head covers a token that is distinguishable in it (eq. 10). The paper multiplies the misses of independent heads,
1 - (1 - p)^H; here the heads are the layer's own.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def layer_coverage(
    selected: Bool[np.ndarray, "heads keys"], inside: Bool[np.ndarray, "heads keys"], most: int
) -> Float[np.ndarray, " most"]:
    """Mean share of a head's top set covered by it and H - 1 others of the layer, for H = 1 ... most.

    The mean runs over all heads and all choices of the others, exactly: a token that m of the other n - 1 heads cover
    is missed by H - 1 of them in C(n-1-m, H-1) / C(n-1, H-1) of the choices.
    """
    heads = len(selected)
    cover = inside.sum(0)
    shares = np.zeros(most)
    for head in range(heads):
        own = inside[head, selected[head]]
        elsewhere = (cover - inside[head])[selected[head]]
        for count in range(1, most + 1):
            choices = comb(heads - 1, count - 1)
            missed = np.array([comb(heads - 1 - int(m), count - 1) / choices for m in elsewhere])
            shares[count - 1] += np.where(own, 1.0, 1 - missed).mean()
    return shares / heads
