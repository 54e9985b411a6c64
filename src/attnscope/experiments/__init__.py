"""Experiments on any model: the paper's own, comparisons of normalizers, and tests of the paper's guidelines.

    >>> sorted(name for name in dir(attnscope.experiments) if name[0].isupper())
    ['Comparison', 'Reproduction']

| file | contents |
|---|---|
| `reproduction` | `reproduce`: measure or load the tables, evaluate the claims, draw the figures |
| `collect`, `window`, `reduce` | one forward per window, and every table from it |
| `profiles`, `draws` | distance and expectation at every N; random sets |
| `ks_test`, `critical`, `intervals` | exact KS test; critical N and paired test; bootstrap intervals |
| `perturbation`, `coverage`, `circle` | g(T, eps); coverage by several heads; Figure 1 |
| `claims/`, `figures/` | the paper's empirical claims; its figures |
| `compare`, `calibration`, `fidelity` | other normalizers in a model, and what they change |
| `guidelines` | the paper's advice, tested on a model |
| `horizon/` | how far heads still select at longer inputs, predicted from short windows |
| `recall/` | small models trained at a short length with each normalizer, tested far beyond |
| `scorecard/` | facts, bounds and measurements of normalizers, side by side |
| `user_normalizer` | a normalizer from a file of the user's own |
| `budget/` | which keys each head should keep, compared with other methods |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._process import lazy

if TYPE_CHECKING:
    from attnscope.studies.compare.comparing import Comparison as Comparison
    from attnscope.studies.paper.reproduction import Reproduction as Reproduction
    from attnscope.studies.paper.reproduction import reproduce as reproduce

_NAMES = {
    "Comparison": "attnscope.studies.compare.comparing",
    "Reproduction": "attnscope.studies.paper.reproduction",
    "reproduce": "attnscope.studies.paper.reproduction",
}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
