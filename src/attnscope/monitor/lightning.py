"""`LightningMonitor`: a monitor as a callback of Lightning's Trainer (the extra `lightning`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError, ModelError
from attnscope.monitor.alarms import Alarm, AlarmThresholds, StopTraining
from attnscope.monitor.live_calls import refuse_changed
from attnscope.monitor.monitor import Monitor

try:
    from lightning.pytorch import Callback
except ImportError:
    Callback = object  # type: ignore[assignment, misc, unused-ignore]

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

FOLDER = "attnscope"


class LightningMonitor(Callback):  # type: ignore[misc, unused-ignore]
    """Watches the model of a Lightning Trainer.

    >>> callback = attnscope.monitor.LightningMonitor(every=50)  # doctest: +SKIP
    >>> trainer = lightning.Trainer(callbacks=[callback])  # doctest: +SKIP

    The numbers go to the loggers of the Trainer, and every head and step to `out`, by default the folder `attnscope`
    inside the Trainer's log folder. A resumed run goes on from its checkpoint, in the same folder. `StopTraining`,
    raised by `on_alarm`, ends the training.

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
        if Callback is object:  # type: ignore[comparison-overlap, unused-ignore]
            raise InputError("LightningMonitor needs Lightning: pip install 'attnscope[lightning]'")
        self.monitor: Monitor | None = None
        self._settings = {"every": every, "rows": rows, "sequences": sequences}
        self._out = None if out is None else str(out)
        self._on_alarm, self._thresholds = on_alarm, thresholds
        self._saved: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the monitor; what cannot be watched is refused here."""
        if getattr(pl_module, "_compiler_ctx", None) is not None:
            raise ModelError("the LightningModule is compiled and cannot be watched; train it uncompiled")
        if trainer.strategy.model is not None:
            refuse_changed(trainer.strategy.model)
        self._out = self._out or str(Path(trainer.log_dir or trainer.default_root_dir) / FOLDER)
        self.monitor = Monitor(
            pl_module, **self._settings, out=self._out, on_alarm=self._on_alarm, thresholds=self._thresholds
        )
        self.monitor.writers[:] = [
            lambda step, values: [logger.log_metrics(dict(values), step) for logger in trainer.loggers]
        ]
        if self._saved is not None:
            self.monitor.load_state_dict(self._saved)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count an optimizer step, if the batch ended one."""
        if self.monitor is None or trainer.global_step <= self.monitor.steps:
            return
        try:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self.monitor.step(trainer.global_step, loss=loss)
        except StopTraining:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the watching."""
        if self.monitor is not None:
            self.monitor.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the watching of a run that failed."""
        if self.monitor is not None:
            self.monitor.close("failed")

    def state_dict(self) -> dict[str, Any]:
        """What Lightning saves with a checkpoint."""
        return {} if self.monitor is None else {"out": self._out, "monitor": self.monitor.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint when the training starts."""
        self._out, self._saved = self._out or state_dict.get("out"), state_dict.get("monitor")
