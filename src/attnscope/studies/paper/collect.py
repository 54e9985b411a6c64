"""Run the model on windows and assemble the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from attnscope.capture.tokens import TokenizedText, tokenized, window_choice, window_tokens
from attnscope.engine.blocks import Blocks, Work
from attnscope.engine.run import WindowPlan, merge_notes, plan_windows, without_heads
from attnscope.engine.store import collect as collect_blocks
from attnscope.studies.paper.measuring import ProtocolMeasurer
from attnscope.studies.paper.store import TABLE_NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from attnscope.capture.documents import Corpus
    from attnscope.capture.models import ModelFacts
    from attnscope.capture.text import Text
    from attnscope.engine.blocks import Engine
    from attnscope.engine.run import Head
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
    collect_blocks(engine, Work(work.plan, ProtocolMeasurer(work.settings), store.finish), work.blocks, store, progress)
    notes = merge_notes(store.notes())
    skipped = {(record["layer"], record["head"]): record["reason"] for record in notes["skipped"]}
    return Collected(
        {name: without_heads(store.table(name), skipped) for name in TABLE_NAMES},
        {entry["layer"]: entry["heads"] for entry in notes["heads"]},
        skipped,
        store.failed,
        len(work.text),
        store.resumed,
    )
