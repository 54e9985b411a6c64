"""Watch a model while it trains: which head collapses, dilutes or explodes, at which step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._process import lazy

if TYPE_CHECKING:
    from attnscope.monitor.alarms import Alarm as Alarm
    from attnscope.monitor.alarms import AlarmThresholds as AlarmThresholds
    from attnscope.monitor.alarms import StopTraining as StopTraining
    from attnscope.monitor.lightning import LightningMonitor as LightningMonitor
    from attnscope.monitor.monitor import Monitor as Monitor
    from attnscope.monitor.run_files import load as load
    from attnscope.monitor.trainer import TrainerMonitor as TrainerMonitor
    from attnscope.monitor.training_run import TrainingRun as TrainingRun

_NAMES = {
    "Alarm": "attnscope.monitor.alarms",
    "AlarmThresholds": "attnscope.monitor.alarms",
    "LightningMonitor": "attnscope.monitor.lightning",
    "Monitor": "attnscope.monitor.monitor",
    "StopTraining": "attnscope.monitor.alarms",
    "TrainerMonitor": "attnscope.monitor.trainer",
    "TrainingRun": "attnscope.monitor.training_run",
    "load": "attnscope.monitor.run_files",
}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
