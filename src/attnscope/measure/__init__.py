"""Rows to numbers: the figures of the paper and their bounds, in float64, many rows at once."""
