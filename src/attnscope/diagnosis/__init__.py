"""Diagnosis of heads: which simpler rule would give a head's output, how sure that is, and what follows from it.

The states are in `states.py`, their limits in `thresholds.py`; docs/diagnosis.md has the data behind both.
"""
