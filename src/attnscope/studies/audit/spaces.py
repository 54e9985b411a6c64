"""The spaces of configurations that claims are tested on, random and adversarial.

Sizes are small primes, with a few longer rows where a statement needs length to fail. Every draw includes adversarial
cases: one-hot and uniform weights, duplicates, outliers, antipodes, orthonormal vectors, ties, saturation.
"""

from attnscope.studies.audit.spaces_appendix import BOUNDED_VARIABLES, CAUSAL_ROWS, P_VALUES, RANDOM_DIRECTIONS
from attnscope.studies.audit.spaces_families import BALLS, INDEPENDENT_ROWS
from attnscope.studies.audit.spaces_logits import (
    EQUISPACED_LOGITS,
    QUERIES,
    SEPARABLE_LOGITS,
    SOFTMAX_LOGITS,
    STEPS,
    TWO_LOGITS,
)
from attnscope.studies.audit.spaces_rows import (
    ANY_SETS,
    COVERED_TOKENS,
    FEW_OF_MANY,
    GROWING_ROWS,
    RANDOM_SETS,
    TOKEN_CHANCES,
    TOP_SETS,
    UNIT_TOP_SETS,
)

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
