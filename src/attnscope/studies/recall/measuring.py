"""What a scorecard measures: bounds, Jacobian, nearness to Theorem S, capacity on real logits, speed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl
import torch
from torch import Tensor

from attnscope.capture.forward import forward
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import read_text, tokenize
from attnscope.errors import InputError
from attnscope.normalizers import Normalizer
from attnscope.normalizers.specs import is_file
from attnscope.scanning import scan
from attnscope.store.tables import OWN
from attnscope.theory.selectivity import top_weight_cap

LENGTHS = (64, 1024, 16384)
ROW_LENGTHS = (64, 1024)  # a Jacobian from automatic differentiation has length x length entries
REAL_LENGTHS = (64, 128, 256, 512)
RANGE = 2.0  # bounds are for logits in [-2, 2]
GAP = 2.0
TOP_N = 20
_ROWS = 8
_TIMED_ROWS, _TIMED_LENGTH = 8192, 1024


def facts(normalizer: Normalizer) -> dict[str, bool]:
    """The declared facts, which `contracts` has tested."""
    return asdict(normalizer.facts)


def bounds(normalizer: Normalizer) -> list[dict[str, Any]]:
    """For each length: the bounds of Lemma 1 and its analogues for logits in [-2, 2], and the Lipschitz constant."""
    found = []
    for length in LENGTHS:
        lower, upper = normalizer.weight_bounds(length, -RANGE, RANGE)
        found.append({"length": length, "lower": lower, "upper": upper, "lipschitz": normalizer.lipschitz(length)})
    return found


def random_rows(length: int) -> Tensor:
    """Standard Gaussian logits."""
    return torch.randn(_ROWS, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)


def gapped_rows(length: int) -> Tensor:
    """Standard Gaussian logits with one key 2 above the largest of the others."""
    z = random_rows(length)
    z[:, 0] = z[:, 1:].amax(-1) + GAP
    return z


def real_rows(model: Model, ids: Sequence[int]) -> dict[int, Tensor]:
    """Logits of the last row of each prefix of the text, in every head of every layer, by length."""
    found: dict[int, list[Tensor]] = {length: [] for length in REAL_LENGTHS if length <= len(ids)}

    def observe(call: Any) -> None:
        for length, rows in found.items():
            rows.append(call.logits([length - 1])[:, 0, :length])

    forward(model, ids, observe)
    return {length: torch.cat(rows) for length, rows in found.items()}


def selectivity(normalizer: Normalizer, kind: str, z: Tensor) -> dict[str, Any]:
    """Top weight, exact Jacobian norm, and the share of what Theorem S allows at the normalizer's Lipschitz constant.

    The share is null where the theorem does not speak: without a Lipschitz constant, with negative weights or a sum
    above one, or if the normalizer is not permutation-equivariant.
    """
    weights = normalizer.weights(z)
    top = weights.amax(-1)
    norm = normalizer.jacobian_norm(z)
    constant = normalizer.lipschitz(z.shape[-1])
    if not float(norm.max()) <= constant * (1 + 1e-6):
        raise InputError(
            f"{normalizer.name} breaks the contract Lipschitz constant: lipschitz({z.shape[-1]}) is {constant:.6g}, "
            f"below the Jacobian norm {float(norm.max()):.6g} of a row of {kind} logits"
        )
    applies = normalizer.facts.in_theorem_s and math.isfinite(constant)
    limit = top_weight_cap(z, torch.full(z.shape[:-1], constant, dtype=z.dtype)) if applies else None
    if limit is not None and not bool((top <= limit * (1 + 1e-6)).all()):
        row = int((top / limit).argmax())
        raise InputError(
            f"{normalizer.name} breaks the contract Lipschitz constant: lipschitz({z.shape[-1]}) is {constant:.6g}, at "
            f"which a row of {kind} logits can have a top weight of at most {float(limit[row]):.6g} (Theorem S), and "
            f"has {float(top[row]):.6g}"
        )
    return {
        "logits": kind,
        "length": z.shape[-1],
        "max_weight": float(top.mean()),
        "support": float((weights != 0).sum(-1).double().mean()),
        "jacobian_norm": float(norm.mean()),
        "largest_jacobian_norm": float(norm.max()),
        "limit": None if limit is None else float(limit.mean()),
        "share_of_limit": None if limit is None else float((top / limit).mean()),
    }


def selectivities(normalizer: Normalizer, real: Mapping[int, Tensor]) -> list[dict[str, Any]]:
    """`selectivity` on random, gapped and real logits."""
    found = [selectivity(normalizer, "random", random_rows(length)) for length in ROW_LENGTHS]
    found += [selectivity(normalizer, "gapped", gapped_rows(length)) for length in ROW_LENGTHS]
    return found + [selectivity(normalizer, "real", z) for z in real.values()]


def sample() -> tuple[Model, list[int]]:
    """The embedded model, and the first tokens of its text."""
    model = load_model(None)
    return model, tokenize(model.tokenizer, read_text(None))[: max(REAL_LENGTHS)]


def scan_names(normalizers: Mapping[str, Normalizer]) -> dict[str, str]:
    """What each normalizer was given as, by its name in a scan, which knows a class from a file by its own name."""
    labels = [normalizer.name if is_file(spec) else spec for spec, normalizer in normalizers.items()]
    names = {OWN: OWN} | dict(zip(labels, normalizers, strict=True))
    if len(names) <= len(normalizers):
        raise InputError(f"two normalizers have the same name: {', '.join(normalizers)}; rename one")
    return names


def capacity(normalizers: Mapping[str, Normalizer], model: Model) -> list[dict[str, Any]]:
    """What if: the sample model's own logits with each normalizer; medians over heads by length."""
    lengths = [length for length in REAL_LENGTHS if length <= (model.positions or length)]
    given = [normalizer if is_file(spec) else spec for spec, normalizer in normalizers.items()]
    names = scan_names(normalizers)
    scanned = scan(model, read_text(None), lengths=lengths, top_n=[TOP_N], normalizers=given, progress=False)
    keys = ["normalizer", "length"]
    rows = scanned.rows.group_by(keys).agg(pl.col("entropy_ratio", "participation", "max_weight").median())
    sets = scanned.topn.group_by(keys).agg(pl.col("separability", "top_mass").median())
    table = rows.join(sets, on=keys, how="left").sort("length")
    lines = sorted(table.to_dicts(), key=lambda line: list(names).index(line["normalizer"]))
    return [line | {"normalizer": names[line["normalizer"]]} for line in lines]


def speed(normalizer: Normalizer, repeats: int = 3) -> dict[str, float]:
    """Time over that of torch.softmax on 8,192 rows of 1,024 float32 logits, in this run."""
    generator = torch.Generator().manual_seed(0)
    z, g = (torch.randn(_TIMED_ROWS, _TIMED_LENGTH, generator=generator) for _ in range(2))
    forward_pass, both = against_softmax(normalizer, z, g, repeats)
    return {"forward_ratio": round(forward_pass[1], 3), "total_ratio": round(both[1], 3)}


def against_softmax(
    normalizer: Normalizer, z: Tensor, g: Tensor, repeats: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The time and its ratio to torch.softmax of the forward pass, and of forward and backward with gradients g."""
    normalizer(z[:2])  # compile the loops
    forward = paired(lambda: normalizer(z), lambda: _softmax(z), repeats)
    x = z.detach().requires_grad_()
    return forward, paired(lambda: _both(normalizer, x, g), lambda: _both(_softmax, x, g), repeats)


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def _both(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> None:
    torch.autograd.grad(function(x), x, g)


def paired(subject: Callable[[], object], base: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The median time of the subject and the median of its ratios to the base, after one warm-up each."""
    subject()
    base()
    times, ratios = [], []
    for _ in range(repeats):
        against = _time(base)
        times.append(_time(subject))
        ratios.append(times[-1] / against)
    return statistics.median(times), statistics.median(ratios)


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
