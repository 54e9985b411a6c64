"""The numbers that trackers get: a bounded set of names, and TensorBoard event files for plain loops.

| names | what |
|---|---|
| `attention/entropy_ratio/median`, `.../lowest`, `.../highest` | of all heads, for every measure |
| `attention/layer_3/entropy_ratio/median`, ... | of a layer, for as many measures as fit (in 76 layers: the median) |
| `attention/L3H5/entropy_ratio` | of a head that had an alarm, or was the worst of all heads in this measure early on |
| `attention/alarms` | how many alarms there have been |
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from attnscope.columns import head_name
from attnscope.monitor.alarms import RULES, Alarm
from attnscope.monitor.run_files import MEASURES

MOST_NAMES = 300
_MOST_HEADS = 40  # names of single heads
_MOST_WORST = 20  # of them, without an alarm: in the first steps, the worst head is another one each time
_PREFIX = "attention"
_ENDS = ("median", "lowest", "highest")
# The measures by importance, and the ends at which a head is the worst one.
_BY_IMPORTANCE = ("entropy_ratio", "max_logit", "separability", "jacobian_norm", "logit_std", "max_weight")
_WORST = (
    ("max_logit", True),
    ("entropy_ratio", False),
    ("entropy_ratio", True),
    ("separability", False),
    ("jacobian_norm", True),
)


class LogValues:
    """The latest numbers for trackers, and which single heads they name."""

    def __init__(self) -> None:
        self.step = 0  # of the latest numbers
        self.latest: dict[str, float] = {}
        self._heads: dict[tuple[int, int, str], None] = {}

    def add(self, step: int, table: pl.DataFrame, alarms: Sequence[Alarm]) -> None:
        """Take the lines of a measured step, and all alarms so far."""
        values: dict[str, float | None] = {f"{_PREFIX}/alarms": len(alarms)}
        for measure in MEASURES:
            values |= _spread(f"{_PREFIX}/{measure}", table[measure])
        layers = table["layer"].unique(maintain_order=True).to_list()
        room = (MOST_NAMES - _MOST_HEADS - len(values)) // max(1, len(layers))
        ends = _ENDS if room >= len(_ENDS) else _ENDS[:1]
        others = [measure for measure in MEASURES if measure not in _BY_IMPORTANCE]
        for measure in (*_BY_IMPORTANCE, *others)[: room // len(ends)]:
            for layer in layers:
                lines = table.filter(pl.col("layer") == layer)[measure]
                values |= _spread(f"{_PREFIX}/layer_{layer}/{measure}", lines, ends)
        for alarm in alarms:
            about = RULES[alarm.kind].measure
            if about is not None and len(self._heads) < _MOST_HEADS:
                self._heads[alarm.layer, alarm.head, about] = None
        for measure, highest in _WORST:
            worst = table.drop_nulls(measure).sort(measure, descending=highest).head(1)
            for layer, head in worst.select("layer", "head").iter_rows():
                if len(self._heads) < _MOST_WORST:
                    self._heads[layer, head, measure] = None
        for layer, head, measure in self._heads:
            lines = table.filter((pl.col("layer") == layer) & (pl.col("head") == head))[measure]
            values[f"{_PREFIX}/{head_name(layer, head)}/{measure}"] = lines[0] if len(lines) else None
        self.step = step
        self.latest = {name: float(value) for name, value in values.items() if value is not None}


def _spread(name: str, values: pl.Series, ends: Sequence[str] = _ENDS) -> dict[str, float | None]:
    numbers = {"median": values.median(), "lowest": values.min(), "highest": values.max()}
    return {f"{name}/{end}": numbers[end] for end in ends}  # type: ignore[misc]


class TensorBoardWriter:
    """Writes the numbers of measured steps to event files; the writer is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    @staticmethod
    def available() -> bool:
        """Whether the package `tensorboard` is installed."""
        return importlib.util.find_spec("tensorboard") is not None

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Write the numbers of one step."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
