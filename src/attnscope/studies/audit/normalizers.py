"""Lemma 1, Corollary 1, the statements for each normalizer of the library, and Theorem S.

The formulas are methods of the normalizers. Here they are tested on the audit's rows, one form per normalizer, with
the torch reference of each: an audit compiles nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.normalizers import Normalizer, get, names, reference_only
from attnscope.studies.audit.contract import Claim, Form, Inequality, at_most, between, plain
from attnscope.studies.audit.logits import EQUISPACED_LOGITS, QUERIES, SEPARABLE_LOGITS, SOFTMAX_LOGITS
from attnscope.theory import vanishing
from attnscope.theory.configuration import Interval
from attnscope.theory.selectivity import (
    lipschitz_for_difference,
    lipschitz_for_range,
    sparsemax_top_weight,
    top_weight_cap,
)

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.studies.audit.logits import Equispaced, QueryRow, SeparableRow, SoftmaxRow


def _lemma_1_printed(s: SeparableRow) -> Interval:
    return vanishing.weight_bounds_printed(*s.extremes, s.length)


def _per_row(bounds: Interval) -> Interval:
    return Interval(*(side.unsqueeze(-1) for side in bounds))


def _longest_key(s: QueryRow) -> Interval:
    return _per_row(vanishing.softmax_weight_bounds_printed(s.delta.amax(-1), s.row.temperature, s.row.length))


def _token_key(s: QueryRow) -> Interval:
    temperature, length = s.row.temperature.unsqueeze(-1), s.row.length.unsqueeze(-1)
    return vanishing.softmax_weight_bounds_printed(s.delta, temperature, length)


def _sharp(s: QueryRow) -> Interval:
    return _per_row(vanishing.softmax_weight_bounds(s.delta.amax(-1), s.row.temperature, s.row.length))


def _sparsemax_share(s: SoftmaxRow) -> Tensor:
    """C2 / L of Lemma 1 for sparsemax, with C2 from the two-token row that has the row's range."""
    reach = (s.logits.amax(-1) - s.logits.amin(-1)) / s.temperature
    pair = sparsemax_top_weight(torch.stack([reach, torch.zeros_like(reach)], -1))
    return pair / (1 - pair) / s.length


VANISHING_CLAIMS = (
    Claim(
        "lemma-1", "Lemma 1", SEPARABLE_LOGITS,
        printed=Form(
            "C1/L <= alpha_i <= C2/L, C1 = min F/max F, C2 = max F/min F",
            between(lambda s: s.weights, _lemma_1_printed),
            empty=lambda s: _lemma_1_printed(s).upper >= 1,
        ),
        corrected=(
            Form(
                "m/(m+(L-1)Mx) <= alpha_i <= Mx/(Mx+(L-1)m)",
                between(lambda s: s.weights, lambda s: vanishing.weight_bounds(*s.extremes, s.length)),
            ),
        ),
        note="The sharp form is attained at every length.",
    ),
    Claim(
        "any-normalizer-vanishes", "Introduction", space=replace(
            SOFTMAX_LOGITS,
            name="sparsemax and softmax weights at temperature T",
            show=lambda s: {"logits": plain(s.logits[0]), "T": plain(s.temperature[0])},
        ),
        printed=Form(
            "sparsemax(l/T), length-independent too: top weight <= C2/L, C2 = p/(1-p) from its two-token row (R, 0)",
            at_most(lambda s: sparsemax_top_weight(s.logits / s.temperature.unsqueeze(-1)), _sparsemax_share),
        ),
        corrected=(
            Form(
                "top weight <= min_m { 1/m + K (l_(1) - mean of the m largest) }, K its Lipschitz constant",
                at_most(
                    lambda s: sparsemax_top_weight(s.logits / s.temperature.unsqueeze(-1)),
                    lambda s: top_weight_cap(s.logits, 1 / s.temperature),
                ),
            ),
            Form(
                "the same for softmax, K = 1/(2T)",
                at_most(lambda s: s.weights.amax(-1), lambda s: top_weight_cap(s.logits, 1 / (2 * s.temperature))),
            ),
        ),
        note="For F(l)/sum F(l) the two-token row (R, 0) fixes C2 = max F/min F; Lemma 1 covers that form only.",
    ),
    Claim(
        "corollary-1", "Corollary 1, longest key", QUERIES,
        printed=Form(
            "e^(-2D/T)/L <= alpha_i <= e^(2D/T)/L, D = |q| max|k_j|",
            between(lambda s: s.row.weights, _longest_key),
            empty=lambda s: _longest_key(s).upper >= 1,
        ),
        corrected=(
            Form("1/(1+(L-1)e^(2D/T)) <= alpha_i <= 1/(1+(L-1)e^(-2D/T))", between(lambda s: s.row.weights, _sharp)),
        ),
    ),
    Claim(
        "corollary-1-own-key", "Corollary 1, own key", QUERIES,
        printed=Form("the same with D = |q| |k_i| for token i", between(lambda s: s.row.weights, _token_key)),
        corrected=(
            Form(
                "sigma((l_i - max others)/T - ln(L-1)) <= alpha_i <= sigma((l_i - mean others)/T - ln(L-1))",
                between(lambda s: s.row.weights, lambda s: vanishing.logit_sandwich(s.row.logits, s.row.temperature)),
            ),
        ),
    ),
)  # fmt: skip


# Thresholds of sparse weights are computed by iteration.
ROUNDING = 1e-9
ROWS = replace(
    SOFTMAX_LOGITS,
    name="rows of logits, each normalizer at its default settings",
    # The temperature of the space is not used: a normalizer has its default scale.
    valid=lambda case: SOFTMAX_LOGITS.valid(case) & (case["logits"].abs().amax(-1) <= 30),
    trials=700,
)


def _row_rounding(s: SoftmaxRow) -> Tensor:
    return ROUNDING * (1 + s.logits.abs().amax(-1))


def _weights_form(name: str, normalizer: Normalizer) -> Form[SoftmaxRow]:
    def bounds(s: SoftmaxRow) -> Interval:
        ends = [normalizer.weight_bounds(s.logits.shape[-1], float(row.amin()), float(row.amax())) for row in s.logits]
        lower, upper = torch.tensor(ends, dtype=s.logits.dtype).unsqueeze(-1).unbind(1)
        return Interval(lower, upper)

    claimed = between(lambda s: normalizer.weights(s.logits), bounds, lambda s: torch.full_like(s.logits, ROUNDING))
    return Form(f"{name}: weights within its bounds", reference_only()(claimed))


def _jacobian_form(name: str, normalizer: Normalizer) -> Form[SoftmaxRow]:
    claimed = at_most(
        lambda s: normalizer.jacobian_norm(s.logits), lambda s: normalizer.jacobian_bound(s.logits), _row_rounding
    )
    return Form(f"{name}: |J|_2 <= its bound", reference_only()(claimed))


def _theorem_s_form(name: str, normalizer: Normalizer) -> Form[SoftmaxRow]:
    def cap(s: SoftmaxRow) -> Tensor:
        return top_weight_cap(s.logits, torch.full_like(s.temperature, normalizer.lipschitz(s.logits.shape[-1])))

    claimed = at_most(lambda s: normalizer.weights(s.logits).amax(-1), cap, _row_rounding)
    return Form(f"{name}: top weight <= max sparsemax(K l)", reference_only()(claimed))


def _within_theorem_s(normalizer: Normalizer) -> bool:
    """Whether Theorem S applies: nonnegative equivariant weights, total at most one, finite Lipschitz constant."""
    return normalizer.facts.in_theorem_s and normalizer.lipschitz(2) < float("inf")


_ALL = {name: get(name) for name in names()}

NORMALIZER_CLAIMS = (
    Claim(
        "normalizer-weights", "Lemma 1 for each normalizer",
        # Bounds are computed row by row, from two normalized rows each.
        space=replace(ROWS, trials=100),
        corrected=tuple(_weights_form(name, n) for name, n in _ALL.items()),
    ),
    Claim(
        "normalizer-jacobian", "Corollary 3 for each normalizer", ROWS,
        corrected=tuple(_jacobian_form(name, n) for name, n in _ALL.items()),
    ),
    Claim(
        "normalizer-theorem-s", "not in the paper", ROWS,
        corrected=tuple(_theorem_s_form(name, n) for name, n in _ALL.items() if _within_theorem_s(n)),
    ),
)  # fmt: skip


def _budget(s: SoftmaxRow) -> Tensor:
    return 1 / (2 * s.temperature)


def _needed(s: Equispaced, weight: Tensor) -> Inequality:
    """K >= w^2 (L-1) / (2R) for the top weight w reached with budget K, where L >= 2/w."""
    least = lipschitz_for_range(weight, s.length, s.logit_range)
    return Inequality(torch.where(s.length >= 2 / weight, least, 0).unsqueeze(-1), s.lipschitz.unsqueeze(-1))


def _pairs(s: SoftmaxRow) -> Inequality:
    """K >= Dp / gamma for every pair of tokens with a gap."""
    gaps = (s.logits.unsqueeze(-1) - s.logits.unsqueeze(-2)).abs()
    apart = (s.weights.unsqueeze(-1) - s.weights.unsqueeze(-2)).abs()
    distinct = gaps > 1e-9
    safe = torch.where(distinct, gaps, 1)
    needed = torch.where(distinct, lipschitz_for_difference(apart, safe), 0)
    return Inequality(needed, _budget(s)[:, None, None], 1e-15 / safe)


SELECTIVITY_CLAIMS = (
    Claim(
        "theorem-s", "not in the paper", SOFTMAX_LOGITS,
        corrected=(
            Form(
                "softmax(l/T), K = 1/(2T): top weight <= max sparsemax(K l)",
                at_most(lambda s: s.weights.amax(-1), lambda s: top_weight_cap(s.logits, _budget(s))),
            ),
        ),
    ),
    Claim(
        "impossibility-1", "not in the paper", EQUISPACED_LOGITS,
        corrected=(
            Form(
                "sparsemax(K l): top weight w needs K >= w^2 (L-1)/(2R)",
                lambda s: _needed(
                    s, sparsemax_top_weight(s.lipschitz.unsqueeze(-1) * s.logits.nan_to_num(neginf=-1e9))
                ),
            ),
            Form(
                "softmax(2K l): the same",
                lambda s: _needed(s, torch.softmax(2 * s.lipschitz.unsqueeze(-1) * s.logits, -1).amax(-1)),
            ),
        ),
    ),
    Claim(
        "impossibility-2", "not in the paper", SOFTMAX_LOGITS,
        corrected=(Form("softmax(l/T): a weight difference Dp at a gap needs K >= Dp/gap", _pairs),),
    ),
)  # fmt: skip
