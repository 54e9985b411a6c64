"""The spaces of configurations that claims are tested on, random and adversarial.

Sizes are small primes, with a few longer rows where a statement needs length to fail. Every draw includes adversarial
cases: one-hot and uniform weights, duplicates, outliers, antipodes, orthonormal vectors, ties, saturation.
"""

from attnscope.theory.spaces.appendix import BOUNDED_VARIABLES, CAUSAL_ROWS, P_VALUES, RANDOM_DIRECTIONS
from attnscope.theory.spaces.heads import COVERED_TOKENS, TOKEN_CHANCES
from attnscope.theory.spaces.logits import (
    EQUISPACED_LOGITS,
    QUERIES,
    SEPARABLE_LOGITS,
    SOFTMAX_LOGITS,
    STEPS,
    TWO_LOGITS,
)
from attnscope.theory.spaces.rows import ANY_SETS, FEW_OF_MANY, GROWING_ROWS, RANDOM_SETS, TOP_SETS, UNIT_TOP_SETS
from attnscope.theory.spaces.sphere import BALLS, INDEPENDENT_ROWS

__all__ = [
    "ANY_SETS",
    "BALLS",
    "BOUNDED_VARIABLES",
    "CAUSAL_ROWS",
    "COVERED_TOKENS",
    "EQUISPACED_LOGITS",
    "FEW_OF_MANY",
    "GROWING_ROWS",
    "INDEPENDENT_ROWS",
    "P_VALUES",
    "QUERIES",
    "RANDOM_DIRECTIONS",
    "RANDOM_SETS",
    "SEPARABLE_LOGITS",
    "SOFTMAX_LOGITS",
    "STEPS",
    "TOKEN_CHANCES",
    "TOP_SETS",
    "TWO_LOGITS",
    "UNIT_TOP_SETS",
]
