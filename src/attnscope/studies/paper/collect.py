"""Run the model on windows and assemble the tables for figures and claims."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from attnscope.capture.tokens import TokenizedText, tokenized, window_choice, window_tokens
from attnscope.engine.blocks import Blocks, Work
from attnscope.engine.run import Part, WindowPlan, WindowRecord, merge_notes, plan_windows, without_heads
from attnscope.engine.store import collect as collect_blocks
from attnscope.experiments.window import PaperMeasurer, Window
from attnscope.studies.paper.measuring import ProtocolMeasurer, ProtocolWindow
from attnscope.studies.paper.store import table_names

if TYPE_CHECKING:
    from pathlib import Path

    from attnscope.capture.documents import Corpus
    from attnscope.capture.models import ModelFacts
    from attnscope.capture.text import Text
    from attnscope.columns import VectorKind
    from attnscope.engine.blocks import Engine
    from attnscope.engine.run import Head, LayerCall, Measurer, Positions
    from attnscope.engine.store import PartStore
    from attnscope.progress import OnStep
    from attnscope.studies.paper.settings import Settings


class Collected(NamedTuple):
    """The tables of a reproduction by name, and the facts that its record states about the run."""

    tables: dict[str, pl.DataFrame]
    heads: dict[int, int]  # by layer
    skipped: dict[Head, str]
    failed: list[dict[str, Any]]  # blocks
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


@dataclass(frozen=True)
class ReproductionWork:
    """A reproduction that is planned: its windows, one in each block."""

    settings: Settings
    text: TokenizedText
    plan: WindowPlan
    blocks: Blocks

    @classmethod
    def planned(
        cls, model: ModelFacts, text: Text | Corpus, settings: Settings, folder: Path | None = None
    ) -> ReproductionWork:
        """Choose the windows: the first ones of a text, spread evenly over a corpus."""
        choice = window_choice(text, None, 0, False)
        tokens = tokenized(model, text, choice, folder)
        windows = window_tokens(model, tokens, settings.longest, settings.windows, settings.bos, choice)
        plan = plan_windows(model, settings.lengths, settings.positions)
        return cls(settings, tokens, plan, Blocks(windows))


def collect(engine: Engine, work: ReproductionWork, store: PartStore, progress: OnStep | None = None) -> Collected:
    """Measure every window that the store does not have yet; a head that is left out of one is left out of all."""
    settings = work.settings
    measurer: Measurer[Any, Part] = BothMeasurer(settings) if settings.protocol else PaperMeasurer(settings)
    collect_blocks(engine, Work(work.plan, measurer, store.finish), work.blocks, store, progress)
    notes = merge_notes(store.notes())
    skipped = {(record["layer"], record["head"]): record["reason"] for record in notes["skipped"]}
    return Collected(
        {name: without_heads(store.table(name), skipped) for name in table_names(settings)},
        {entry["layer"]: entry["heads"] for entry in notes["heads"]},
        skipped,
        store.failed,
        len(work.text),
        store.resumed,
    )
