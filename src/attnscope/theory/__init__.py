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
from attnscope.theory.appendix import first_accepted as first_accepted
from attnscope.theory.appendix import literal_distance as literal_distance
from attnscope.theory.appendix import literal_radius as literal_radius
from attnscope.theory.appendix import lower_tail_hoeffding as lower_tail_hoeffding
from attnscope.theory.appendix import lower_tail_markov as lower_tail_markov
from attnscope.theory.appendix import lower_tail_printed as lower_tail_printed
from attnscope.theory.appendix import persistently_accepted as persistently_accepted
from attnscope.theory.configuration import Configuration as Configuration
from attnscope.theory.configuration import Interval as Interval
from attnscope.theory.configuration import leave_one_out as leave_one_out
from attnscope.theory.configuration import ranks as ranks
from attnscope.theory.configuration import top_sets as top_sets
from attnscope.theory.distance import farthest as farthest
from attnscope.theory.distance import fixed_set_gap as fixed_set_gap
from attnscope.theory.distance import fixed_set_lower as fixed_set_lower
from attnscope.theory.distance import fixed_set_upper as fixed_set_upper
from attnscope.theory.distance import fixed_set_upper_any as fixed_set_upper_any
from attnscope.theory.distance import fixed_set_upper_printed as fixed_set_upper_printed
from attnscope.theory.distance import fixed_set_upper_split as fixed_set_upper_split
from attnscope.theory.distance import fixed_set_upper_triangle as fixed_set_upper_triangle
from attnscope.theory.distance import growth_lower as growth_lower
from attnscope.theory.distance import vanishing_upper as vanishing_upper
from attnscope.theory.expectation import Estimate as Estimate
from attnscope.theory.expectation import corollary_2_small_printed as corollary_2_small_printed
from attnscope.theory.expectation import every_distance as every_distance
from attnscope.theory.expectation import expectation_drawn as expectation_drawn
from attnscope.theory.expectation import expectation_exhaustive as expectation_exhaustive
from attnscope.theory.expectation import last_token_expectation as last_token_expectation
from attnscope.theory.expectation import random_set_epsilon_printed as random_set_epsilon_printed
from attnscope.theory.expectation import random_set_lower as random_set_lower
from attnscope.theory.expectation import random_set_lower_moments as random_set_lower_moments
from attnscope.theory.expectation import random_set_main_printed as random_set_main_printed
from attnscope.theory.expectation import random_set_peeled as random_set_peeled
from attnscope.theory.expectation import random_set_second_moment_upper as random_set_second_moment_upper
from attnscope.theory.expectation import random_set_upper as random_set_upper
from attnscope.theory.expectation import random_set_upper_global as random_set_upper_global
from attnscope.theory.expectation import random_set_variance_upper as random_set_variance_upper
from attnscope.theory.geometry import Ball as Ball
from attnscope.theory.geometry import ball as ball
from attnscope.theory.geometry import coverage_independent as coverage_independent
from attnscope.theory.geometry import coverage_of_tokens as coverage_of_tokens
from attnscope.theory.geometry import coverage_range as coverage_range
from attnscope.theory.geometry import failure_bound as failure_bound
from attnscope.theory.geometry import heads_needed as heads_needed
from attnscope.theory.geometry import jensen_gap as jensen_gap
from attnscope.theory.geometry import separability_certain as separability_certain
from attnscope.theory.geometry import separability_concentrated as separability_concentrated
from attnscope.theory.geometry import separability_printed as separability_printed
from attnscope.theory.geometry import separability_separated as separability_separated
from attnscope.theory.geometry import separation_chance as separation_chance
from attnscope.theory.geometry import xi as xi
from attnscope.theory.gradient import finite_difference_bound as finite_difference_bound
from attnscope.theory.gradient import jacobian as jacobian
from attnscope.theory.gradient import jacobian_bound as jacobian_bound
from attnscope.theory.gradient import jacobian_lower as jacobian_lower
from attnscope.theory.gradient import jacobian_norm as jacobian_norm
from attnscope.theory.gradient import lemma_2_printed as lemma_2_printed
from attnscope.theory.gradient import random_direction_bounds as random_direction_bounds
from attnscope.theory.gradient import separable_bound as separable_bound
from attnscope.theory.gradient import separable_bound_entry as separable_bound_entry
from attnscope.theory.gradient import separable_bound_frobenius as separable_bound_frobenius
from attnscope.theory.gradient import separable_bound_projector as separable_bound_projector
from attnscope.theory.gradient import softmax_bound as softmax_bound
from attnscope.theory.gradient import softmax_bound_of_range as softmax_bound_of_range
from attnscope.theory.gradient import softmax_bound_printed as softmax_bound_printed
from attnscope.theory.gradient import two_logit_response as two_logit_response
from attnscope.theory.gradient import two_logit_response_printed as two_logit_response_printed
from attnscope.theory.gradient import two_logit_rows as two_logit_rows
from attnscope.theory.selectivity import entmax_budget as entmax_budget
from attnscope.theory.selectivity import lipschitz_for_difference as lipschitz_for_difference
from attnscope.theory.selectivity import lipschitz_for_range as lipschitz_for_range
from attnscope.theory.selectivity import softmax_budget as softmax_budget
from attnscope.theory.selectivity import sparsemax_budget as sparsemax_budget
from attnscope.theory.selectivity import sparsemax_top_weight as sparsemax_top_weight
from attnscope.theory.selectivity import top_weight_cap as top_weight_cap
from attnscope.theory.selectivity import weight_difference_cap as weight_difference_cap
from attnscope.theory.vanishing import logit_sandwich as logit_sandwich
from attnscope.theory.vanishing import required_gap as required_gap
from attnscope.theory.vanishing import softmax_weight_bounds as softmax_weight_bounds
from attnscope.theory.vanishing import softmax_weight_bounds_printed as softmax_weight_bounds_printed
from attnscope.theory.vanishing import weight_bounds as weight_bounds
from attnscope.theory.vanishing import weight_bounds_printed as weight_bounds_printed

_SUBJECTS = {f"{__name__}.{found.name}" for found in pkgutil.iter_modules(__path__)}
_NAMES = {name: __name__ for name, value in globals().items() if getattr(value, "__module__", "") in _SUBJECTS}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
