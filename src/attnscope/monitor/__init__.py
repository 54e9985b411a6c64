"""Watch a model while it trains: which head collapses, dilutes or explodes, at which step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._lazy import lazy

if TYPE_CHECKING:
    from attnscope.monitor.run_reading import load as load
    from attnscope.monitor.training_run import TrainingRun as TrainingRun

_NAMES = {
    "TrainingRun": "attnscope.monitor.training_run",
    "load": "attnscope.monitor.run_reading",
}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
