"""The paper's statements as pure functions, printed and corrected side by side.

"Limitations of Normalization in Attention Mechanism" (Mudarisov, Burtsev, Petrova, State, 2025). One file per
subject; each docstring gives the statement, its place in the paper, and the idea of the proof. Shapes are in the
signatures. A parameter is explained once: those of most statements in `attnscope.theory.configuration`, the others
at the top of their file.

| file | statements |
|---|---|
| `vanishing` | Lemma 1, Corollary 1 |
| `distance` | eq. (7), Theorem 1(1), B1 to B4 |
| `expectation` | eq. (8), Theorem 1(2), Corollary 2, E1 to E4 |
| `geometry` | eq. (10), Theorem 2, T2a to T2d; section 4, coverage |
| `gradient` | Lemma 2, Corollary 3, J1 to J4, finite steps, the example of section 2.3 |
| `appendix` | the appendix: significance, a step of its proofs, literal rows |
| `selectivity` | Theorem S and two impossibilities |

`attnscope.studies.audit` has the claims, the configurations to test them on, and the search for violations.

All functions but `distance.distance` can also be called as `attnscope.theory.NAME`.
"""

from __future__ import annotations

import pkgutil

from attnscope._process import lazy
from attnscope.theory.appendix import (
    first_accepted as first_accepted,
    literal_distance as literal_distance,
    literal_radius as literal_radius,
    lower_tail_hoeffding as lower_tail_hoeffding,
    lower_tail_markov as lower_tail_markov,
    lower_tail_printed as lower_tail_printed,
    persistently_accepted as persistently_accepted,
)
from attnscope.theory.configuration import (
    Configuration as Configuration,
    Interval as Interval,
    leave_one_out as leave_one_out,
    ranks as ranks,
    top_sets as top_sets,
)
from attnscope.theory.distance import (
    farthest as farthest,
    fixed_set_gap as fixed_set_gap,
    fixed_set_lower as fixed_set_lower,
    fixed_set_upper as fixed_set_upper,
    fixed_set_upper_any as fixed_set_upper_any,
    fixed_set_upper_printed as fixed_set_upper_printed,
    fixed_set_upper_split as fixed_set_upper_split,
    fixed_set_upper_triangle as fixed_set_upper_triangle,
    growth_lower as growth_lower,
    vanishing_upper as vanishing_upper,
)
from attnscope.theory.expectation import (
    Estimate as Estimate,
    corollary_2_small_printed as corollary_2_small_printed,
    every_distance as every_distance,
    expectation_drawn as expectation_drawn,
    expectation_exhaustive as expectation_exhaustive,
    last_token_expectation as last_token_expectation,
    random_set_epsilon_printed as random_set_epsilon_printed,
    random_set_lower as random_set_lower,
    random_set_lower_moments as random_set_lower_moments,
    random_set_main_printed as random_set_main_printed,
    random_set_peeled as random_set_peeled,
    random_set_second_moment_upper as random_set_second_moment_upper,
    random_set_upper as random_set_upper,
    random_set_upper_global as random_set_upper_global,
    random_set_variance_upper as random_set_variance_upper,
)
from attnscope.theory.geometry import (
    Ball as Ball,
    ball as ball,
    coverage_independent as coverage_independent,
    coverage_of_tokens as coverage_of_tokens,
    coverage_range as coverage_range,
    failure_bound as failure_bound,
    heads_needed as heads_needed,
    jensen_gap as jensen_gap,
    separability_certain as separability_certain,
    separability_concentrated as separability_concentrated,
    separability_printed as separability_printed,
    separability_separated as separability_separated,
    separation_chance as separation_chance,
    xi as xi,
)
from attnscope.theory.gradient import (
    finite_difference_bound as finite_difference_bound,
    jacobian as jacobian,
    jacobian_bound as jacobian_bound,
    jacobian_lower as jacobian_lower,
    jacobian_norm as jacobian_norm,
    lemma_2_printed as lemma_2_printed,
    random_direction_bounds as random_direction_bounds,
    separable_bound as separable_bound,
    separable_bound_entry as separable_bound_entry,
    separable_bound_frobenius as separable_bound_frobenius,
    separable_bound_projector as separable_bound_projector,
    softmax_bound as softmax_bound,
    softmax_bound_of_range as softmax_bound_of_range,
    softmax_bound_printed as softmax_bound_printed,
    two_logit_response as two_logit_response,
    two_logit_response_printed as two_logit_response_printed,
    two_logit_rows as two_logit_rows,
)
from attnscope.theory.selectivity import (
    entmax_budget as entmax_budget,
    lipschitz_for_difference as lipschitz_for_difference,
    lipschitz_for_range as lipschitz_for_range,
    softmax_budget as softmax_budget,
    sparsemax_budget as sparsemax_budget,
    sparsemax_top_weight as sparsemax_top_weight,
    top_weight_cap as top_weight_cap,
    weight_difference_cap as weight_difference_cap,
)
from attnscope.theory.vanishing import (
    logit_sandwich as logit_sandwich,
    required_gap as required_gap,
    softmax_weight_bounds as softmax_weight_bounds,
    softmax_weight_bounds_printed as softmax_weight_bounds_printed,
    weight_bounds as weight_bounds,
    weight_bounds_printed as weight_bounds_printed,
)

_SUBJECTS = {f"{__name__}.{found.name}" for found in pkgutil.iter_modules(__path__)}
_NAMES = {name: __name__ for name, value in globals().items() if getattr(value, "__module__", "") in _SUBJECTS}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
