"""Section 4: the share of a head's top set that is distinguishable in at least one of H heads of its layer.

A head covers a token that is distinguishable in it (eq. 10). The paper assumes independent heads, 1 - (1 - p)^H;
here the coverage is counted on the heads of the layer.
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
    """Mean share of a head's top set covered by it and H - 1 other heads of the layer, for H = 1 ... most.

    The mean over all heads and all choices of the others is exact: a token that m of the other n - 1 heads cover
    is missed by H - 1 of them in C(n-1-m, H-1) / C(n-1, H-1) of the choices.
    """
    heads = len(selected)
    cover = inside.sum(0)
    shares = np.zeros(most)
    for head in range(heads):
        covered = inside[head, selected[head]]
        others = (cover - inside[head])[selected[head]]  # how many other heads cover each token
        for count in range(1, most + 1):
            choices = comb(heads - 1, count - 1)
            missed = np.array([comb(heads - 1 - int(m), count - 1) / choices for m in others])
            shares[count - 1] += np.where(covered, 1.0, 1 - missed).mean()
    return shares / heads
