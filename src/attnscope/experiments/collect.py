"""Run the model on windows and assemble the tables for figures and claims."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from attnscope.capture.text import Text
from attnscope.capture.windows import text_tokens, window_tokens
from attnscope.engine.parts import Part, WindowRecord, merge_skipped, without_heads
from attnscope.engine.run import run_windows
from attnscope.engine.windows import plan_windows
from attnscope.experiments.protocol.measuring import ProtocolMeasurer, ProtocolWindow
from attnscope.experiments.store import table_names
from attnscope.experiments.window import PaperMeasurer, Window

if TYPE_CHECKING:
    from attnscope.capture.models import Model
    from attnscope.capture.vector_kinds import VectorKind
    from attnscope.engine.parts import Head, Parts
    from attnscope.engine.run import LayerCall, Measurer
    from attnscope.engine.windows import Positions
    from attnscope.experiments.settings import Settings
    from attnscope.progress import Report


class Collected(NamedTuple):
    """The tables of a reproduction by name, and the facts that its record states about the run."""

    tables: dict[str, pl.DataFrame]
    heads: dict[int, int]  # by layer
    skipped: dict[Head, str]
    tokens: int  # of the text
    resumed: int  # windows read back from an earlier run


@dataclass
class BothWindow(WindowRecord):
    """The last rows and all rows of one window while the model runs."""

    last: Window = field(kw_only=True)
    every: ProtocolWindow = field(kw_only=True)


@dataclass(frozen=True)
class BothMeasurer:
    """Measures the last rows and, by the paper's protocol, all rows in one forward."""

    settings: Settings

    @property
    def vectors(self) -> tuple[VectorKind, ...]:
        """The kinds of vectors that the settings name."""
        return self.settings.vectors

    def start(self, number: int) -> BothWindow:
        """The empty record of a window."""
        return BothWindow(number, last=self._last.start(number), every=self._every.start(number))

    def measure(self, window: BothWindow, layer: LayerCall, positions: Positions) -> None:
        """Measure one attention call."""
        self._last.measure(window.last, layer, positions)
        self._every.measure(window.every, layer, positions)
        window.skipped |= window.last.skipped | window.every.skipped

    def finish(self, window: BothWindow) -> Part:
        """All tables of the window."""
        return window.part(window.last.tables() | self._every.tables(window.every))

    @property
    def _last(self) -> PaperMeasurer:
        return PaperMeasurer(self.settings)

    @property
    def _every(self) -> ProtocolMeasurer:
        return ProtocolMeasurer(self.settings)


def collect(
    model: Model, text: Text, settings: Settings, progress: Report | None = None, parts: Parts | None = None
) -> Collected:
    """Measure every window; a head that is left out of one window is left out of all."""
    tokens = text_tokens(model, text)
    inputs = window_tokens(model, tokens, settings.longest, settings.windows, settings.bos, text.source)
    windows = plan_windows(model, inputs, settings.lengths, settings.positions)
    measurer: Measurer[Any, Part] = BothMeasurer(settings) if settings.protocol else PaperMeasurer(settings)
    finished = list(run_windows(model, windows, measurer, progress=progress, parts=parts))
    skipped = merge_skipped(part.notes["skipped"] for part in finished)
    tables = {}
    for name in table_names(settings):
        pieces = [part.tables[name] for part in finished if part.tables[name].width]
        tables[name] = without_heads(pl.concat(pieces), skipped) if pieces else pl.DataFrame()
    return Collected(
        tables,
        {entry["layer"]: entry["heads"] for part in finished for entry in part.notes["heads"]},
        {head: record["reason"] for head, record in skipped.items()},
        len(tokens),
        sum(part.resumed for part in finished),
    )
