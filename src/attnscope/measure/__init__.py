"""Rows to numbers: the figures of the paper and their bounds, many rows at once.

    layer_vectors = LayerVectors(vectors)                                           # once per layer
    rows = Rows(layer, positions, logits, visible, vectors, sinks, layer_vectors)   # a block of its rows
    per_row, per_set = columns(rows, weights, top_n)

`rows.py`, `topn.py`, `distance.py` and `separability.py` are the specification, in torch on any device, and call
`theory/`. `fast.py` and the loops in `_kernels_*.py` give the same numbers on the CPU; `tests/measure/test_columns.py`
holds the two against each other and against a slow oracle.
"""

from attnscope.measure._scratch import free_scratch
from attnscope.measure.columns import arrays, columns, to_array
from attnscope.measure.layer import LayerVectors, all_finite
from attnscope.measure.rows import Rows, softmax_weights
from attnscope.measure.visibility import Visibility

__all__ = [
    "LayerVectors",
    "Rows",
    "Visibility",
    "all_finite",
    "arrays",
    "columns",
    "free_scratch",
    "softmax_weights",
    "to_array",
]
