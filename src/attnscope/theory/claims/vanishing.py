"""Lemma 1, Corollary 1, and the introduction's "any length-independent normalizer"."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.theory import vanishing
from attnscope.theory.audit import Claim, Form, at_most, between
from attnscope.theory.configuration import Interval
from attnscope.theory.selectivity import sparsemax_top_weight, top_weight_cap
from attnscope.theory.spaces import QUERIES, SEPARABLE_LOGITS, SOFTMAX_LOGITS
from attnscope.theory.spaces.families import plain

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.spaces.logits import QueryRow, SeparableRow, SoftmaxRow


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


CLAIMS = (
    Claim(
        id="lemma-1",
        place="Lemma 1",
        space=SEPARABLE_LOGITS,
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
        id="any-normalizer-vanishes",
        place="Introduction",
        space=replace(
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
        id="corollary-1",
        place="Corollary 1, longest key",
        space=QUERIES,
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
        id="corollary-1-own-key",
        place="Corollary 1, own key",
        space=QUERIES,
        printed=Form("the same with D = |q| |k_i| for token i", between(lambda s: s.row.weights, _token_key)),
        corrected=(
            Form(
                "sigma((l_i - max others)/T - ln(L-1)) <= alpha_i <= sigma((l_i - mean others)/T - ln(L-1))",
                between(lambda s: s.row.weights, lambda s: vanishing.logit_sandwich(s.row.logits, s.row.temperature)),
            ),
        ),
    ),
)
