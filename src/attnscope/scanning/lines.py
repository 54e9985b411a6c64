"""Lines of the tables, kept as the tensors they were measured in until a window is done.

A table is then built in one go: a window of many small tables takes longer to put together than to measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch

from attnscope._threads import share_out

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Lines:
    """Some rows of all heads of one layer under one normalizer."""

    layer: int
    label: str
    positions: tuple[int, ...]
    columns: dict[str, Tensor]  # of the shape of `kept`, or of one that broadcasts to it
    kept: Tensor  # (heads, rows) or (heads, rows, several): which of them become lines

    @classmethod
    def of(cls, layer: int, label: str, positions: tuple[int, ...], columns: dict[str, Tensor], kept: Tensor) -> Lines:
        """Lines that no longer need the device they were measured on."""
        return cls(layer, label, positions, {name: values.cpu() for name, values in columns.items()}, kept.cpu())

    def named(self, label: str) -> Lines:
        """The same numbers under another name."""
        return replace(self, label=label)

    def column(self, name: str) -> Tensor:
        """One column in full."""
        return torch.broadcast_to(self.columns[name], self.kept.shape)


def table(parts: Sequence[Lines], schema: pl.Schema, order: Sequence[str]) -> pl.DataFrame:
    """All lines, NaN as missing values, in the order of some columns: layer, head and position first."""
    if not parts:
        return pl.DataFrame(schema=schema)
    in_layers = sorted(parts, key=lambda part: part.layer)
    runs = [list(run) for _, run in groupby(in_layers, lambda part: (part.layer, part.label))]
    kept = torch.cat([_joined([part.kept for part in run]) for run in runs])
    chosen = None if kept.all() else kept.nonzero().squeeze(-1)
    data: dict[str, pl.Series] = {}

    def fill(name: str) -> None:
        kind = schema[name]
        if name == "normalizer":
            labels = [
                pl.repeat(label, sum(int(part.kept.sum()) for run in same for part in run), dtype=kind, eager=True)
                for label, same in groupby(runs, lambda run: run[0].label)
            ]
            data[name] = pl.concat(labels)
            return
        values = torch.cat([_joined([part.column(name) for part in run]) for run in runs])
        numbers = (values if chosen is None else values[chosen]).numpy()
        data[name] = pl.Series(name, numbers.astype(np.int32 if kind == pl.Int32 else np.float64), nan_to_null=True)

    share_out(fill, schema)
    found = pl.DataFrame({name: data[name] for name in schema})
    return found if _in_order(runs) else found.sort(order, maintain_order=True)


def _joined(pieces: list[Tensor]) -> Tensor:
    """The rows of each head one after another, as one line."""
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)).flatten()


def _in_order(runs: Sequence[Sequence[Lines]]) -> bool:
    """Whether lines are as they should be already: one normalizer, later layers and positions behind."""
    layers = [run[0].layer for run in runs]
    positions = [[position for part in run for position in part.positions] for run in runs]
    return all(a < b for line in (layers, *positions) for a, b in pairwise(line))
