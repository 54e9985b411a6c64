"""A reproduction's tables without its pictures."""

from __future__ import annotations

from typing import Any

import polars as pl
from models import byte_tokenizer

from attnscope.capture.models import load_model
from attnscope.capture.text import Text
from attnscope.engine.blocks import LocalEngine
from attnscope.engine.store import BlocksInMemory
from attnscope.studies.paper.reproduction import ReproductionWork, collect as collect_tables
from attnscope.studies.paper.settings import plan

BOOK = Text("The quick brown fox jumps over the lazy dog; 0123456789 (again). " * 9, "a test")


def collect(module: Any, **options: Any) -> dict[str, pl.DataFrame]:
    """Run a model on the text; the tables."""
    model = load_model(module, tokenizer=byte_tokenizer())
    work = ReproductionWork.planned(model.facts, BOOK, plan(model.positions, **options))
    return collect_tables(LocalEngine(model), work, BlocksInMemory()).tables
