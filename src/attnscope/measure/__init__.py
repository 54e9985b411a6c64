"""Rows to numbers: the figures of the paper and their bounds, many rows at once.

    shared = LayerVectors(vectors)                                              # once for a layer
    rows = Rows(layer, positions, logits, visible, vectors, sinks, shared)    # a block of its rows
    per_row, per_set = columns(rows, weights, top_n)

On the CPU compiled loops do the work; elsewhere, and as their specification, the same in torch.
"""

from attnscope.measure._memory import release
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
    "release",
    "softmax_weights",
    "to_array",
]
