"""`Monitor`: every head of a model, measured while it trains."""

from __future__ import annotations

import logging
import platform
import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast

import polars as pl
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from attnscope import __version__
from attnscope.capture.models import given_name
from attnscope.capture.modules import Layers
from attnscope.capture.watching import handled
from attnscope.engine.record import version
from attnscope.errors import AttnscopeError, InputError, ModelError, shown
from attnscope.monitor.alarms import Alarm, AlarmDetector, AlarmThresholds, StopTraining, describe
from attnscope.monitor.live_calls import LiveCalls, attention_modules, innermost, refuse_unwatchable
from attnscope.monitor.measuring import TOP_N, Ranks, StepMeasurement, learned_parameters
from attnscope.monitor.run_files import ALARMS, PARAMETERS, SCALARS, History, LogValues, TensorBoardWriter, now

if TYPE_CHECKING:
    from types import TracebackType

    from torch.utils.hooks import RemovableHandle

    from attnscope.capture.attention import Call, ObservedCall

logger = logging.getLogger("attnscope.monitor")

_MOST_WAITING = 500  # numbers such as the loss, kept until the next measured step
_MOST_LOGGED = 20  # different errors
_watched: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Monitor]] = weakref.WeakKeyDictionary()


class Monitor:
    """Measures every head of a model in the first training step and in every `every`-th one, and raises alarms.

    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> monitor = attnscope.Monitor(model, every=2)
    >>> for _ in range(4):
    ...     loss = model(torch.ones(3, 5, 8)).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     monitor.step(loss=loss)
    >>> monitor.close()
    >>> monitor.heads["step"].unique().to_list()
    [1, 2, 4]

    The attention calls of the training forward itself are measured; losses, gradients, weights and random state are
    bit-identical to a run without the monitor. What cannot be watched is refused here; later errors of the monitor are
    logged and counted in `errors`, and training goes on.

    Parameters
    ----------
    model
        The model that is trained: any module whose attention a scan can see, also in DistributedDataParallel.
    every
        How many optimizer steps lie between two measured ones.
    rows
        Queries that are measured of each item, at random.
    sequences
        Items of the batch that are measured, at random; on each rank of a distributed run.
    out
        Folder for the tables of the run; `attnscope.monitor.load` reads it. Default: none, they stay in memory.
    on_alarm
        Function that is called with every `Alarm`. It may raise `attnscope.monitor.StopTraining`.
    thresholds
        What decides an alarm. Default: `AlarmThresholds()`.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 50,
        rows: int = 16,
        sequences: int = 1,
        out: str | Path | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
        thresholds: AlarmThresholds | None = None,
    ) -> None:
        settings = {"every": every, "rows": rows, "sequences": sequences}
        for name, value in settings.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} takes a whole number from 1 up; received {shown(value)}")
        if thresholds is not None and not isinstance(thresholds, AlarmThresholds):
            raise InputError(f"thresholds takes attnscope.monitor.AlarmThresholds; received {shown(thresholds)}")
        if on_alarm is not None and not callable(on_alarm):
            raise InputError(f"on_alarm takes a function of one alarm; received {shown(on_alarm)}")
        for part in model.modules() if isinstance(model, nn.Module) else ():
            other = _watched[part]() if part in _watched else None
            if other is not None:
                raise InputError(f"{type(model).__name__} has a monitor already ({other!r}); close it first")
        refuse_unwatchable(model)
        self.errors = 0
        self.last_error: str | None = None
        self.log_values = LogValues()
        # Called with the step and the numbers for trackers, on one rank, after each measured step.
        self.writers: list[Callable[[int, dict[str, float]], object]] = []
        if out is not None and TensorBoardWriter.available():
            self.writers.append(TensorBoardWriter(Path(out) / "tensorboard"))
        self._model, self._every, self._rows, self._sequences = model, every, rows, sequences
        self._on_alarm = on_alarm
        self._detector = AlarmDetector(thresholds or AlarmThresholds())
        self._ranks = Ranks()
        self._layers = Layers(innermost(model))
        self._live = LiveCalls(model, self._observe, self._failed, self._restart)
        self._step = self._measured = self._errors_before = 0
        self._stride = 1  # between the numbers of two steps
        self._measurement: StepMeasurement | None = None
        self._parameters: list[dict[str, Any]] = []
        self._scalars: list[tuple[int, str, Any]] = []
        self._entries: dict[int, dict[str, Any]] = {}
        self._skipped: dict[tuple[int, int], dict[str, Any]] = {}
        self._logged: set[str] = set()
        self._optimizers: _OptimizerSteps | None = None
        self._alarms: list[Alarm] = []
        self._closed = False
        self._about = _about(model) | {
            "settings": settings | {"top_n": TOP_N},
            "thresholds": self._detector.thresholds.as_json(),
            "world_size": self._ranks.size,
        }
        self._history = History(out, self._about, writes=self._ranks.rank == 0)
        for part in attention_modules(model):
            _watched[part] = weakref.ref(self)
        self._arm_if_due()

    def __repr__(self) -> str:
        return f"<Monitor of {type(self._model).__name__}, step {self._step}, {self._measured} measured>"

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._step

    @property
    def heads(self) -> pl.DataFrame:
        """One line for each measured step, layer and head (`attnscope.monitor.run_files.HEADS`)."""
        return self._history.table("heads")

    @property
    def parameters(self) -> pl.DataFrame:
        """One line for each measured step, head and parameter of a learned normalizer."""
        return self._history.table("parameters")

    @property
    def alarms(self) -> pl.DataFrame:
        """One line for each alarm: step, layer, head, kind, value, limit, advice."""
        return pl.DataFrame(self._alarms, schema=ALARMS, orient="row")

    def step(self, number: int | None = None, *, loss: Any = None) -> None:
        """Say that an optimizer step is done; `number` is its number, counted from 1, if it is not the next one.

        Raises nothing but what `on_alarm` asks for (`StopTraining`).
        """
        scalars = {} if loss is None else {"loss": loss}
        if self._optimizers is not None and self._optimizers.stop():  # which has counted this step already
            self.add_scalars(scalars)
        else:
            self._advance(number, scalars)

    def add_scalars(self, values: Mapping[str, Any]) -> None:
        """Keep numbers of the whole model, such as the loss, for the files of the run."""
        for name, value in values.items():
            with handled(self._failed):
                self._scalars.append((self._step, name, _one_number(name, value)))
        with handled(self._failed):
            if len(self._scalars) > _MOST_WAITING:
                self._history.add({"scalars": self._take_scalars()}, self._progress("running"))

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on: plain numbers, strings, lists and dictionaries."""
        if self._scalars:  # a run that goes on from here has no others of the steps before
            with handled(self._failed):
                self._history.add({"scalars": self._take_scalars()}, self._progress("running"))
        return {
            "step": self._step,
            "measured": self._measured,
            "alarms": [list(alarm) for alarm in self._alarms],
            "detector": self._detector.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: steps are counted from there, and alarms that lasted then are not raised again."""
        with handled(self._failed):
            step, measured = int(state["step"]), int(state["measured"])
            alarms = [Alarm(*line) for line in state["alarms"]]
            if not 0 <= measured <= step:
                raise InputError(f"the state of a monitor has step {step} and {measured} measured steps; it is damaged")
            self._detector.load(state["detector"])
            self._step, self._measured, self._alarms = step, measured, alarms
            self._scalars.clear()
            self._history.begin_after(step)
            self._arm_if_due()

    def close(self, status: str = "finished") -> None:
        """Leave the model as it was, and say in run.json that the run is finished."""
        if self._closed:
            return
        self._closed = True
        if self._optimizers is not None:
            self._optimizers.stop()
        with handled(self._failed):
            self._live.disarm()
            for part in [part for part, reference in _watched.items() if reference() is self]:
                del _watched[part]
            self._history.add({"scalars": self._take_scalars()}, self._progress(status) | {"finished": now()})
            self._history.close()
            for writer in self.writers:
                if isinstance(writer, TensorBoardWriter):
                    writer.close()

    def __enter__(self) -> Monitor:
        """Count the steps of the optimizer by itself; from the first call of `step` on, only those calls."""
        self._optimizers = _OptimizerSteps(self._model, lambda: self._advance(None, {}))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._step == 0 and not self._closed:
            self._failed(ModelError("no step of an optimizer that trains the model was seen; call step() after each"))
        self.close("finished" if kind is None or issubclass(kind, StopTraining) else "failed")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused: a monitor belongs to one model in one process."""
        raise TypeError("a Monitor can be neither copied nor pickled: save state_dict(), and make one for the copy")

    def _advance(self, number: int | None, scalars: Mapping[str, Any]) -> None:
        if self._closed:
            return
        stop: list[StopTraining] = []
        with handled(self._failed):
            following = self._step + 1 if number is None else number
            if following <= self._step:
                raise InputError(
                    f"step {following} does not come after step {self._step} and is ignored; to go back, use "
                    "load_state_dict"
                )
            self._stride = 1 if self._step == 0 else following - self._step
            self._step = following
            self.add_scalars(scalars)
            try:
                if self._measurement is not None:
                    stop = self._finish(self._measurement)
            finally:
                self._arm_if_due()
        if stop:
            raise stop[0]

    def _arm_if_due(self) -> None:
        self._live.disarm()
        self._measurement = None
        if self._closed:  # by `on_alarm`
            return
        self._errors_before = self.errors
        following = self._step + self._stride
        if self._step == 0 or following // self._every > self._step // self._every:
            self._measurement = StepMeasurement(following, self._rows, self._sequences, self._ranks.rank)
            self._restart()
            self._live.arm()

    def _restart(self) -> None:
        """Forget what was measured in this step: its forward begins, or failed and may be tried again."""
        self._layers.start()
        self._parameters.clear()
        if self._measurement is not None:
            self._measurement.layers.clear()

    def _observe(self, call: Call) -> None:
        assert self._measurement is not None
        layer = self._layers.number(call.module)
        self._measurement.add(layer, self._layers.entry(call, layer), cast("ObservedCall", call))
        self._parameters += learned_parameters(self._measurement.step, layer, call.module)

    def _finish(self, measured: StepMeasurement) -> list[StopTraining]:
        """Add up the ranks, look for alarms, write and log; the result is what `on_alarm` raised to stop."""
        self._live.disarm()
        measured.step = self._step
        layers = len(measured.layers)
        if not self._ranks.add_up(measured if layers else None):
            if self.errors > self._errors_before:  # which have said why
                return []
            raise ModelError(f"step {self._step} was not measured: {self._why_nothing(layers)}")
        self._measured += 1
        self._entries |= {layer: sums.entry for layer, sums in measured.layers.items()}
        reasons = measured.skipped | dict.fromkeys(sorted(measured.not_finite()), "a number is not finite")
        for (layer, head), reason in reasons.items():
            record = {"layer": layer, "head": head, "step": self._step, "reason": reason}
            self._skipped.setdefault((layer, head), record)
        table = measured.table()
        alarms = self._detector.update(table.hstack(measured.circumstances()))
        self._alarms += alarms
        tables = {
            "heads": table,
            "parameters": pl.DataFrame(self._parameters, schema=PARAMETERS),
            "alarms": pl.DataFrame(alarms, schema=ALARMS, orient="row"),
            "scalars": self._take_scalars(),
        }
        with handled(self._failed):
            self._history.add(tables, self._progress("running"))
        self.log_values.add(self._step, table, self._alarms)
        for write in self.writers if self._ranks.rank == 0 else ():
            with handled(self._failed):
                write(self._step, self.log_values.latest)
        return self._tell(alarms)  # last: `on_alarm` may close the monitor

    def _why_nothing(self, layers: int) -> str:
        if layers:
            return "another rank measured nothing, or other heads"
        if not innermost(self._model).training:
            return "the model is in evaluation mode"
        return (
            "no attention call was seen in its training forward; a model that was compiled after the monitor was "
            "made, or runs in another thread, cannot be watched"
        )

    def _tell(self, alarms: list[Alarm]) -> list[StopTraining]:
        """Log the alarms and pass them to the function of the user; the result is what it raised to stop."""
        if self._ranks.rank == 0:
            for text in describe(alarms):
                logger.warning(text)
        stop = []
        for alarm in alarms if self._on_alarm is not None else ():
            try:
                self._on_alarm(alarm)  # type: ignore[misc]
            except StopTraining as error:
                stop.append(error)
            except Exception as error:
                self._failed(error)
        return stop

    def _failed(self, error: Exception) -> None:
        """Count an error of the monitor, and log it if it is a new one."""
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}" if not isinstance(error, AttnscopeError) else str(error)
        kind = re.sub(r"\d+", "#", self.last_error)
        if kind not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(kind)
            logger.warning("the monitor failed after step %d, training goes on: %s", self._step, self.last_error)

    def _take_scalars(self) -> pl.DataFrame:
        lines = [(step, name, float(value)) for step, name, value in self._scalars]
        self._scalars.clear()
        return pl.DataFrame(lines, schema=SCALARS, orient="row").fill_nan(None)

    def _progress(self, status: str) -> dict[str, Any]:
        """What changes in run.json."""
        return {
            "status": status,
            "finished": None,
            "steps": self._step,
            "measured": self._measured,
            "errors": self.errors,
            "last_error": self.last_error,
            "skipped_heads": list(self._skipped.values()),
            "model": self._about["model"] | {"heads": [self._entries[layer] for layer in sorted(self._entries)]},
        }


def _one_number(name: str, value: Any) -> Any:
    """A number, or a tensor of one that is read when it is needed: asking a device for it would wait."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.numel() != 1 or value.is_complex():
        raise InputError(f"{name} is one real number; received a tensor of shape {tuple(value.shape)}: give its mean")
    return value.detach().clone()


class _OptimizerSteps:
    """Calls a function after each step of the optimizer that trains a model."""

    def __init__(self, model: nn.Module, counted: Callable[[], None]) -> None:
        self._model, self._counted = model, counted
        self._optimizer: torch.optim.Optimizer | None = None
        self._handle: RemovableHandle | None = register_optimizer_step_post_hook(self._after_step)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._optimizer is None:  # of several optimizers of one model, the first one counts
            if not self._trains(optimizer):
                return
            self._optimizer = optimizer
        if optimizer is self._optimizer:
            self._counted()

    def _trains(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it has half of the model's parameters, or half of its own are the model's: some may be shared.

        The model's parameters are those of now: adapters and sharding replace them after a monitor was made.
        """
        present = {id(each) for each in self._model.parameters() if each.requires_grad}
        given = {id(each) for group in optimizer.param_groups for each in group["params"]}
        return 2 * len(present & given) >= min(len(present), len(given)) > 0

    def stop(self) -> bool:
        """Count no more steps; the result is whether any was counted since the last call."""
        if self._handle is None:
            return False
        self._handle.remove()
        self._handle = None
        return self._optimizer is not None


def _about(model: nn.Module) -> dict[str, Any]:
    """What run.json says of the model and the versions."""
    module = innermost(model)
    config = getattr(module, "config", None)
    parameters = list(module.parameters())
    kinds = dict.fromkeys(str(each.dtype).removeprefix("torch.") for each in parameters if each.is_floating_point())
    return {
        "attnscope": __version__,
        "model": {
            "name": given_name(getattr(config, "name_or_path", None)) or type(module).__name__,
            "class": type(module).__name__,
            "dtype": ", ".join(kinds),
            "parameters": sum(each.numel() for each in parameters),
            "trained": sum(each.numel() for each in parameters if each.requires_grad),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "polars", "numpy")},
        },
    }
