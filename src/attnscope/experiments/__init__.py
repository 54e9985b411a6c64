"""Experiments on any model: those of the paper, other normalizers, and whether the guidelines hold.

    >>> from attnscope.experiments import reproduce
    >>> result = reproduce(out="runs/reproduce-sample")
    >>> {claim["id"]: claim["verdict"] for claim in result.claims}

| file | what it has |
|---|---|
| `reproduction` | the whole way: tables (kept or measured), claims, figures |
| `collect`, `window`, `reduce` | one forward a window, every table from it |
| `profiles`, `draws` | distance and expectation at every N; random sets |
| `ks_test`, `critical`, `intervals` | the exact KS test, critical N, paired test; bootstrap |
| `perturbation`, `coverage`, `circle` | g(T, eps); several heads; Figure 1 |
| `claims/`, `figures/` | what is claimed and measured; what is drawn |
"""

from __future__ import annotations

from attnscope.experiments.reproduction import Reproduction, reproduce

__all__ = ["Reproduction", "reproduce"]
