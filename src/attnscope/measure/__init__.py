"""Measure rows: the paper's quantities and their bounds, for many rows at once.

    rows = Rows(layer, positions, logits, visible, vectors)   # a block of rows of one layer
    per_row, per_set = columns(rows, weights, top_n)

`specification.py` says what each column is, in torch on any device, and calls `theory/`. `columns.py`, `pairs.py` and
the loops in `_kernels*.py` give the same numbers on the CPU; `tests/measure/test_columns.py` compares the two with each
other and with a slow oracle.
"""

from attnscope.measure.columns import columns
from attnscope.measure.specification import Rows, Visibility, softmax_weights

__all__ = ["Rows", "Visibility", "columns", "softmax_weights"]
