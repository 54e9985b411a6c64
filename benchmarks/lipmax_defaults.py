"""Weight of one planted key among Gaussian logits, by length: lipmax with several settings against other normalizers.

A row has n logits from N(0, 1); the logit of one key is then set to the expected maximum of
the others, sqrt(2 ln n), plus a gap. Reported for each length, as means over rows: the weight of the planted key, the
number of keys with nonzero weight, and the Jacobian norm.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from attnscope.normalizers import parse

LENGTHS = (64, 1024, 16384, 65536)
GAPS = (0.5, 2.0)
ROWS = 64
RIVALS = ("softmax", "ssmax", "sparsemax", "entmax15")
GRID = tuple(f"lipmax:kappa={kappa}:cap={cap}" for kappa in (0.25, 0.5, 1.0, 2.0) for cap in (1.0, 2.0, 4.0, 8.0))


def measure() -> dict[str, Any]:
    results = []
    for gap in GAPS:
        for n in LENGTHS:
            generator = torch.Generator().manual_seed(n)
            logits = torch.randn(ROWS, n, generator=generator, dtype=torch.float64)
            logits[:, 0] = math.sqrt(2 * math.log(n)) + gap
            for spec in (*RIVALS, *GRID):
                normalizer = parse(spec)
                weights = normalizer.weights(logits)
                results.append(
                    {
                        "normalizer": spec,
                        "gap": gap,
                        "length": n,
                        "planted_weight": round(float(weights[:, 0].mean()), 4),
                        "support": round(float((weights > 0).sum(-1).double().mean()), 1),
                        "jacobian_norm": round(float(normalizer.jacobian_norm(logits).mean()), 4),
                        "lipschitz": round(normalizer.lipschitz(n), 3),
                    }
                )
    return {"benchmark": "lipmax defaults", "rows": ROWS, "results": results}
