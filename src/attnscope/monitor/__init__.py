"""Watch a model while it trains: which head collapses, dilutes or explodes, at which step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._lazy import lazy

if TYPE_CHECKING:
    from attnscope.monitor.run_files import TrainingRun as TrainingRun
    from attnscope.monitor.run_files import load as load

_NAMES = {
    "TrainingRun": "attnscope.monitor.run_files",
    "load": "attnscope.monitor.run_files",
}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
