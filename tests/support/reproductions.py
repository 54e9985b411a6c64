"""A reproduction's tables without its pictures."""

from __future__ import annotations

from typing import Any

import polars as pl
from models import byte_tokenizer

from attnscope.capture.models import load_model
from attnscope.capture.text import Text
from attnscope.experiments.collect import collect as collect_tables
from attnscope.experiments.settings import plan

BOOK = Text("The quick brown fox jumps over the lazy dog; 0123456789 (again). " * 9, "a test")


def collect(module: Any, **options: Any) -> dict[str, pl.DataFrame]:
    """Run a model on the text; the tables."""
    model = load_model(module, tokenizer=byte_tokenizer())
    return collect_tables(model, BOOK, plan(model.positions, **options)).tables
