"""`TrainerMonitor`: a monitor as a callback of transformers' Trainer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState, PrinterCallback, ProgressCallback

from attnscope.errors import ModelError
from attnscope.monitor.alarms import Alarm, AlarmThresholds, StopTraining
from attnscope.monitor.monitor import Monitor

if TYPE_CHECKING:
    from types import FrameType

    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments

FOLDER = "attnscope"
_SCALARS = ("loss", "eval_loss", "grad_norm", "learning_rate")


class TrainerMonitor(TrainerCallback, ExportableState):
    """Watches the model of a Trainer of transformers.

    >>> callback = attnscope.monitor.TrainerMonitor(every=50)
    >>> trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])  # doctest: +SKIP

    The numbers go to the trackers that the Trainer reports to, and every head and step to `out`, by default the folder
    `attnscope` inside the Trainer's output folder. A resumed run goes on from its checkpoint. `StopTraining`, raised by
    `on_alarm`, ends the training after the step.

    Parameters are those of `attnscope.Monitor`; `monitor` is that one, from the start of the training on.
    """

    def __init__(
        self,
        every: int = 50,
        rows: int = 16,
        sequences: int = 1,
        out: str | Path | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
        thresholds: AlarmThresholds | None = None,
    ) -> None:
        self.monitor: Monitor | None = None
        self._settings = {"every": every, "rows": rows, "sequences": sequences}
        self._out = None if out is None else str(out)
        self._on_alarm, self._thresholds = on_alarm, thresholds
        self._trainer: Trainer | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Make the monitor; what cannot be watched is refused here."""
        if args.torch_compile:
            raise ModelError("torch_compile is set: a compiled model cannot be watched; train it uncompiled")
        if args.n_gpu > 1 and args.world_size == 1:
            raise ModelError("nn.DataParallel runs copies of the model in other threads; start one process per device")
        if self.monitor is not None:  # of a training that ended with an error
            self.monitor.close("failed")
        model: nn.Module = given["model"]
        out = self._out or Path(str(args.output_dir)) / FOLDER
        self.monitor = Monitor(model, **self._settings, out=out, on_alarm=self._on_alarm, thresholds=self._thresholds)
        self._trainer = _running_trainer(self)
        self.monitor.writers[:] = [] if self._trainer is None else [self._log]
        callbacks = cast("dict[str, Any]", state.stateful_callbacks)
        saved = callbacks.setdefault(type(self).__name__, {})  # the Trainer looks for an entry when it saves
        if state.global_step > 0:
            self.monitor.load_state_dict(_saved_state(saved, state.global_step))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> TrainerControl:
        """Count an optimizer step."""
        if self.monitor is not None:
            try:
                self.monitor.step(state.global_step)
            except StopTraining:
                control.should_training_stop = True
        return control

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Keep the loss and its like for the page."""
        logs: Mapping[str, Any] = given.get("logs") or {}
        if self.monitor is not None:
            self.monitor.add_scalars({name: logs[name] for name in _SCALARS if name in logs})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """End the watching."""
        if self.monitor is not None:
            self.monitor.close()

    def state(self) -> dict[str, Any]:
        """What the Trainer saves with a checkpoint."""
        saved = None if self.monitor is None else self.monitor.state_dict()
        return {"args": {**self._settings, "out": self._out}, "attributes": {"saved": saved}}

    def _log(self, step: int, values: dict[str, float]) -> None:
        """Pass numbers to the trackers through the Trainer, without the ones that print every number."""
        assert self._trainer is not None
        handler, control = self._trainer.callback_handler, self._trainer.control
        callbacks, should_log = handler.callbacks, control.should_log
        handler.callbacks = [each for each in callbacks if each is not self and not _prints(each)]
        try:
            self._trainer.log(dict(values))
        finally:
            handler.callbacks, self._trainer.control.should_log = callbacks, should_log


def _prints(callback: TrainerCallback) -> bool:
    return isinstance(callback, ProgressCallback | PrinterCallback) or "Notebook" in type(callback).__name__


def _running_trainer(callback: TrainerCallback) -> Trainer | None:
    """The Trainer that is calling this callback: callbacks are not told."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer) and callback in owner.callback_handler.callbacks:
            return owner
        frame = frame.f_back
    return None


def _saved_state(saved: Any, step: int) -> dict[str, Any]:
    """The monitor's state in a checkpoint; that of a checkpoint without a monitor has only the step."""
    entries = saved if isinstance(saved, list) else [saved]
    states = [entry.get("attributes", {}).get("saved") for entry in entries if isinstance(entry, dict)]
    fitting = [state for state in states if isinstance(state, dict) and state.get("step") == step]
    return fitting[-1] if fitting else {"step": step, "measured": 0, "alarms": [], "detector": []}
