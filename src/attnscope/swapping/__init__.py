"""Replace the normalizer in a loaded model, the weights or output of single heads, or the keys that heads keep.

>>> model, ids = attnscope.load_model().module, torch.arange(12)[None]
>>> with attnscope.swap(model, "entmax15", layers=[0]):
...     swapped = model(ids, labels=ids).loss
>>> with attnscope.swapping.intervene(model, {(0, 1): attnscope.swapping.first_key}):
...     changed = model(ids, labels=ids).loss
"""

from attnscope._process import lazy
from attnscope.swapping.budgets import AppliedBudget, apply_budget, cache_bytes
from attnscope.swapping.changes import Swap, first_key, intervene, mean_outputs, sink_and_last, swap, top_share
from attnscope.swapping.key_budget import HeadBudget, KeyBudget, load_budget
from attnscope.swapping.storage import load, restore

__all__ = [
    "AppliedBudget",
    "HeadBudget",
    "KeyBudget",
    "Swap",
    "apply_budget",
    "cache_bytes",
    "first_key",
    "intervene",
    "load",
    "load_budget",
    "mean_outputs",
    "restore",
    "sink_and_last",
    "swap",
    "top_share",
]

__getattr__, __dir__ = lazy(__name__, __path__, {})
