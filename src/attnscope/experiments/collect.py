"""Run the model on windows and put together the tables that figures and claims are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from attnscope.capture.text import Text
from attnscope.capture.windows import text_tokens, window_tokens
from attnscope.engine.parts import merge_skipped, without_heads
from attnscope.engine.run import run_windows
from attnscope.engine.windows import plan_windows
from attnscope.experiments.store import NAMES
from attnscope.experiments.window import PaperMeasurer

if TYPE_CHECKING:
    from attnscope.capture.models import Model
    from attnscope.engine.parts import Head, Parts
    from attnscope.experiments.settings import Settings

Progress = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""


class Collected(NamedTuple):
    """The tables of a reproduction by name, and what its record says of the run."""

    tables: dict[str, pl.DataFrame]
    heads: dict[int, int]  # by layer
    skipped: dict[Head, str]
    tokens: int  # of the text
    resumed: int  # windows read back from an earlier run


def collect(
    model: Model, text: Text, settings: Settings, progress: Progress | None = None, parts: Parts | None = None
) -> Collected:
    """Measure every window; a head that had to be left out of one is left out of all."""
    tokens = text_tokens(model, text)
    inputs = window_tokens(model, tokens, settings.longest, settings.windows, settings.bos, text.source)
    windows = plan_windows(model, inputs, settings.lengths, settings.positions)
    show = None if progress is None else lambda step: progress(step.done, step.total)
    finished = list(run_windows(model, windows, PaperMeasurer(settings), progress=show, parts=parts))
    skipped = merge_skipped(part.notes["skipped"] for part in finished)
    tables = {}
    for name in NAMES:
        pieces = [part.tables[name] for part in finished if part.tables[name].width]
        tables[name] = without_heads(pl.concat(pieces), skipped) if pieces else pl.DataFrame()
    return Collected(
        tables,
        {entry["layer"]: entry["heads"] for part in finished for entry in part.notes["heads"]},
        {head: record["reason"] for head, record in skipped.items()},
        len(tokens),
        sum(part.resumed for part in finished),
    )
