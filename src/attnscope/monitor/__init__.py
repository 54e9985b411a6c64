"""Watch a model while it trains: which head collapses, dilutes or explodes, at which step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._process import lazy
from attnscope.store.kinds import Description, Kind

if TYPE_CHECKING:
    from attnscope.monitor.alarms import (
        Alarm as Alarm,
        AlarmThresholds as AlarmThresholds,
        StopTraining as StopTraining,
    )
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


def describe(folder: Path, run: Mapping[str, Any]) -> Description:
    """One training run as a line of a list; its verdict is the number of alarms."""
    from attnscope.monitor.training_run import last_change, status_of

    updated = last_change(folder)
    size = f"training: {int(run['measured']):,} measured steps up to step {int(run['steps']):,}"
    file = folder / "alarms.jsonl"
    alarms = file.read_bytes().count(b"\n") if file.is_file() else 0
    words = f"{alarms:,} alarm{'' if alarms == 1 else 's'}" if alarms else "no alarms"
    time, state = updated.isoformat(timespec="seconds"), status_of(run, updated)
    return Description(run["model"]["name"], "", size, words, time, state)


KINDS = (
    Kind(
        "training",
        load="attnscope.monitor.run_files:load",
        describe="attnscope.monitor:describe",
        page="attnscope.monitor.page:page",
        live="attnscope.monitor.page",
        schema=1,
        beside=("heads/part-*.parquet", "alarms.jsonl"),
        written=(
            *("alarms.jsonl", "scalars.jsonl", "run.json", "report.html"),
            *("heads/part-*.parquet", "parameters/part-*.parquet"),
        ),
    ),
)

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
