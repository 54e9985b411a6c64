"""Train short, test long: small models with each normalizer, tested far beyond the length of their training.

| file | contents |
|---|---|
| `tasks` | what is read, asked and answered, and what a reader who knows the task answers |
| `rules` | normalizers with learned parameters, within a budget of their Jacobian |
| `models`, `training` | ensembles of small models, trained and tested together |
| `running`, `summary` | the grid of settings, in worker processes, and means over seeds with intervals |
| `picture` | accuracy against budget |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._process import lazy

if TYPE_CHECKING:
    from attnscope.studies.recall.running import QUICK as QUICK
    from attnscope.studies.recall.running import Plan as Plan
    from attnscope.studies.recall.running import Recall as Recall
    from attnscope.studies.recall.running import recall as recall

_NAMES = dict.fromkeys(("QUICK", "Plan", "Recall", "recall"), "attnscope.studies.recall.running")

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
