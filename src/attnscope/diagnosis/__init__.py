"""Diagnose heads: which simpler rule would do a head's work, how sure that is, and what follows from it.

The states are in `states.py`, their limits in `thresholds.py`; docs/diagnosis.md has the data behind both.
"""
