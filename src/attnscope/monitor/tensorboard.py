"""TensorBoard event files for plain training loops; frameworks have loggers of their own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


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
