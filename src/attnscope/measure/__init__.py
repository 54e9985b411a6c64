"""Rows to numbers: the figures of the paper and their bounds, in float64, many rows at once.

    layer = Layer(vectors)                                     # once for a layer
    per_row, per_set = columns(rows, weights, top_n, layer)    # for each block of its rows

On the CPU compiled loops do the work; elsewhere, and as their specification, the same in torch.
"""

from attnscope.measure.columns import columns
from attnscope.measure.layer import Layer
from attnscope.measure.rows import Rows, softmax_weights

__all__ = ["Layer", "Rows", "columns", "softmax_weights"]
