"""A plan of windows as plain data, running a model on it, and the results of windows and how they are merged.

Requirement: only numbers are kept from a layer; its tensors are freed before the next layer runs.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import polars as pl
import torch

from attnscope.capture.attention import unpadded
from attnscope.capture.checkpoints import foreign_errors
from attnscope.capture.effects import Effects, EffectSource
from attnscope.capture.forward import Inputs, forward, run
from attnscope.capture.modules import VectorSource, evaluating
from attnscope.capture.tokens import special_tokens
from attnscope.errors import InputError, parameter
from attnscope.progress import OnStep, Step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnscope.capture.attention import Call
    from attnscope.capture.models import Model, ModelFacts, PlainModel
    from attnscope.columns import VectorKind

Head = tuple[int, int]
"""Layer number, head number."""


@dataclass(frozen=True)
class Part:
    """The tables of a finished window, or of a block of them, by name, and notes for `run.json`."""

    tables: dict[str, pl.DataFrame]
    notes: dict[str, Any]


@dataclass
class WindowRecord:
    """What is recorded about a window while the model runs; measurers add the data they collect."""

    number: int = 0
    layers: dict[int, dict[str, Any]] = field(default_factory=dict)  # heads, module and kind of each
    skipped: dict[Head, str] = field(default_factory=dict)  # heads left out, with the reason
    tokens: int = 0  # without padding
    dropped_rows: int = 0  # rows without a visible key
    measure_seconds: float = 0.0

    def skip_layer(self, layer: int, heads: int, reason: str) -> None:
        """Leave all heads of a layer out."""
        self.skipped.update({(layer, head): reason for head in range(heads)})

    def skipped_heads(self) -> list[dict[str, Any]]:
        """The heads left out, as records for `run.json`."""
        return [
            {"layer": layer, "head": head, "window": self.number, "reason": reason}
            for (layer, head), reason in sorted(self.skipped.items())
        ]

    def part(self, tables: dict[str, pl.DataFrame]) -> Part:
        """The finished window with these tables."""
        notes = {
            "skipped": self.skipped_heads(),
            "heads": [self.layers[layer] for layer in sorted(self.layers)],
            "tokens": self.tokens,
            "dropped_rows": self.dropped_rows,
            "measure_seconds": self.measure_seconds,
        }
        return Part(tables, notes)


def merge_skipped(windows: Iterable[list[dict[str, Any]]]) -> dict[Head, dict[str, Any]]:
    """The skipped heads of all windows in order, each with the record of the first window in which it was skipped."""
    merged: dict[Head, dict[str, Any]] = {}
    for records in windows:
        for record in records:
            merged.setdefault((record["layer"], record["head"]), record)
    return dict(sorted(merged.items()))


def without_heads(table: pl.DataFrame, heads: Collection[Head]) -> pl.DataFrame:
    """The table without the lines of these heads; a table without heads is unchanged."""
    if not heads or not {"layer", "head"} <= set(table.columns):
        return table
    kinds = {name: table.schema[name] for name in ("layer", "head")}
    return table.join(
        pl.DataFrame(list(heads), schema=kinds, orient="row"), on=["layer", "head"], how="anti", maintain_order="left"
    )


def merge_notes(notes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The notes of several windows or blocks as one."""
    notes = list(notes)
    heads = {entry["layer"]: entry for note in notes for entry in note["heads"]}
    return {
        "skipped": list(merge_skipped(note["skipped"] for note in notes).values()),
        "heads": [heads[layer] for layer in sorted(heads)],
        **{name: sum(note[name] for note in notes) for name in ("tokens", "dropped_rows", "measure_seconds")},
    }


def merge_parts(parts: list[Part]) -> Part:
    """The windows of a block as one part, its tables sorted by layer and head."""
    if len(parts) == 1:
        return parts[0]
    tables = {}
    for name in parts[0].tables:
        table = pl.concat([part.tables[name] for part in parts])
        keys = [key for key in ("layer", "head") if key in table.columns]
        tables[name] = table.sort(keys, maintain_order=True) if keys else table
    return Part(tables, merge_notes(part.notes for part in parts))


@dataclass(frozen=True)
class BlockFiles:
    """A finished block as it is kept: a Parquet file for each table that has lines."""

    files: dict[str, bytes]
    lines: dict[str, int]
    notes: dict[str, Any]


def encode_parts(parts: list[Part]) -> BlockFiles:
    """The windows of a block as files."""
    merged = merge_parts(parts)
    files, lines = {}, {}
    for name, table in merged.tables.items():
        if table.height:
            content = io.BytesIO()
            table.write_parquet(content)
            files[name], lines[name] = content.getvalue(), table.height
    return BlockFiles(files, lines, merged.notes)


Positions = dict[int, tuple[int, ...]]
"""Positions of the queries to measure, by the length of the prefix they represent."""


@dataclass(frozen=True)
class Forward:
    """One input of the model and the rows to measure."""

    tokens: list[int]
    positions: Positions
    first_position: int | None = None  # of the tokens; None: as the model counts
    beside: tuple[list[int], ...] = ()  # other inputs of the same length, which run in the same batch


@dataclass(frozen=True)
class Window:
    """The forward passes of one window, the longest last."""

    number: int
    forwards: list[Forward]


@dataclass(frozen=True)
class WindowPlan:
    """How the tokens of a window become forward passes.

    In a causal model one forward pass serves all lengths. In an encoder every token sees every other, so each length
    needs its own, with the special tokens `before` and `after` it.
    """

    positions: Positions  # rows to measure of each length, the longest last
    causal: bool
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def forwards(self) -> int:
        """Forward passes for each window."""
        return 1 if self.causal else len(self.positions)

    @property
    def rows(self) -> int:
        """Rows measured of each head and window."""
        return sum(map(len, self.positions.values()))

    def window(self, number: int, tokens: Sequence[int]) -> Window:
        """The forward passes of the window with these tokens."""
        if self.causal:
            return Window(number, [Forward(list(tokens), self.positions)])
        extra = len(self.before) + len(self.after)
        return Window(
            number,
            [
                Forward([*self.before, *tokens[: length - extra], *self.after], {length: positions})
                for length, positions in self.positions.items()
            ],
        )


def plan_windows(
    model: Model | ModelFacts, lengths: Sequence[int], rows: Callable[[int], tuple[int, ...]]
) -> WindowPlan:
    """The plan that gives the rows `rows(length)` of every prefix of a window, special tokens included."""
    wanted = {length: rows(length) for length in lengths}
    if model.causal:
        return WindowPlan(wanted, causal=True)
    before, after = special_tokens(model.tokenizer)
    extra = len(before) + len(after)
    if lengths[0] <= extra:
        raise InputError(f"{parameter('lengths', lengths[0])} leaves no room for the {extra} special tokens")
    return WindowPlan(wanted, False, tuple(before), tuple(after))


W = TypeVar("W", bound=WindowRecord)
P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)


@dataclass(frozen=True)
class LayerCall:
    """One attention call of one sequence, with the number of its layer and the vectors that its weights average."""

    number: int  # of the layer
    call: Call
    vectors: dict[VectorKind, Tensor]
    name: str  # of the layer, for messages
    causal: bool  # whether the plan relies on no query seeing a later key
    effects: Effects | None = None  # what its heads add to the residual stream, if the measurer asks for it

    def in_blocks(
        self,
        record: WindowRecord,
        positions: tuple[int, ...],
        measure: Callable[[tuple[int, ...]], None],
        *,
        budget: int,
        copies: int,
        most_rows: int | None = None,
    ) -> bool:
        """Call `measure` on blocks of positions that fit the budget: `copies` float64 arrays of heads x rows x keys.

        A block that runs out of memory anyway is halved. If not even one row fits, the layer is skipped and the result
        is False.
        """
        heads, keys = self.call.heads, self.call.keys
        size = max(1, min(most_rows or len(positions), budget // (heads * keys * 8 * copies)))
        start = 0
        while start < len(positions):
            block = positions[start : start + size]
            try:
                measure(block)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                if len(block) == 1:
                    record.skip_layer(self.number, heads, f"out of memory on a single row of {keys} keys")
                    return False
                size = len(block) // 2
                continue
            start += len(block)
        return True


class Measurer(Protocol[W, P_co]):
    """Turns the attention calls of a window into a finished part: `start`, `measure` for each call, `finish`."""

    @property
    def vectors(self) -> Sequence[VectorKind | Literal["effects"]]:
        """The kinds of vectors that calls must come with; with "effects", also what heads add to the stream."""

    def start(self, number: int) -> W:
        """The empty record of a window."""

    def measure(self, record: W, layer: LayerCall, positions: Positions) -> None:
        """Measure the wanted rows of one call and add them to the record."""

    def finish(self, record: W) -> P_co:
        """The finished window."""


def run_windows(
    model: Model,
    windows: Iterable[Window],
    measurer: Measurer[W, P],
    *,
    progress: OnStep | None = None,
    begin: Step | None = None,
) -> Iterator[P]:
    """Yield the finished part of each window in order.

    Steps are layers. `begin` says how many were done before the first window and how many there are in all; by default
    the windows are all there is.
    """
    layers = model.layers
    if begin is None:
        windows = list(windows)
        begin = Step(0, layers * sum(len(window.forwards) for window in windows), windows=len(windows))
    for window in windows:
        yield _run_window(model, window, measurer, layers, begin._replace(window=window.number), progress)
        begin = begin._replace(done=begin.done + layers * len(window.forwards))


def _run_window(
    model: Model, window: Window, measurer: Measurer[W, P], layers: int, begin: Step, progress: OnStep | None
) -> P:
    record = measurer.start(window.number)
    record.tokens = len(window.forwards[-1].tokens)
    measuring = False
    prefix = f"window {window.number + 1} of {begin.windows}, " if begin.windows > 1 else ""
    with _sources(model.module, measurer.vectors) as sources:
        for index, each in enumerate(window.forwards):
            calls = 0

            def collect(call: Call, index: int = index, positions: Positions = each.positions) -> None:
                nonlocal calls
                layer = sources.vectors[0].layer(call.module, calls)
                calls += 1
                done = begin.done + index * layers + min(calls, layers)  # a layer that attends twice counts once

                def measure(effects: Effects | None) -> None:
                    nonlocal measuring
                    measuring = True
                    _measure(model, measurer, record, layer, call, positions, sources, effects)
                    if progress is not None:
                        progress(begin._replace(done=done, layer=layer, doing=prefix + f"layer {layer}"))
                    measuring = False

                sources.follow(call, measure)

            doing, advice = f"run {model.name} ({model.family})", "check that transformers runs it on input_ids alone"
            with foreign_errors(doing, advice, lambda: not measuring):
                forward(model, torch.tensor([each.tokens, *each.beside]), collect, first_position=each.first_position)
    return measurer.finish(record)


def run_inputs(
    model: PlainModel,
    inputs: Inputs,
    measurer: Measurer[W, P],
    rows: Callable[[int], tuple[int, ...]],
    *,
    progress: OnStep | None = None,
) -> Iterator[P]:
    """Run a module once on tensors; each item of the batch is a window, of which `rows(length)` are measured.

    Rows of padding are left out before rows are chosen: `length` is how many rows see a key.
    """
    records: dict[int, W] = {}
    calls = 0

    def collect(call: Call) -> None:
        nonlocal calls
        layer = sources.vectors[0].layer(call.module, calls)
        first = calls == 0
        calls += 1
        done = calls

        def measure(effects: Effects | None) -> None:
            for item in range(call.batch):
                if item not in records:
                    records[item] = measurer.start(item)
                record, one = records[item], call.only(item)
                queries = unpadded(one)
                record.dropped_rows += one.heads * (one.queries - len(queries))
                if first:
                    record.tokens = len(queries)
                if queries:
                    positions = {len(queries): tuple(queries[index] for index in rows(len(queries)))}
                    _measure(model, measurer, record, layer, one, positions, sources, effects)
            if progress is not None:  # the number of layers is not known in advance
                progress(Step(done, None, f"layer {layer}", layer=layer))

        sources.follow(call, measure)

    with _sources(model.module, measurer.vectors) as sources:
        run(model.module, inputs, collect)
    for item in sorted(records):
        yield measurer.finish(records[item])


@dataclass(frozen=True)
class _Sources:
    """Where the vectors and the effects of calls come from."""

    vectors: list[VectorSource]
    effects: EffectSource | None

    def follow(self, call: Call, measure: Callable[[Effects | None], None]) -> None:
        """Measure a call: at once, or when its block has ended and its effects are known."""
        if self.effects is None:
            measure(None)
        else:
            self.effects.follow(call, measure)


@contextmanager
def _sources(module: nn.Module, kinds: Sequence[VectorKind | Literal["effects"]]) -> Iterator[_Sources]:
    """The vectors of each kind, and effects if asked for, while the module runs in evaluation mode."""
    with ExitStack() as stack:
        vectors = [stack.enter_context(closing(VectorSource(module, k))) for k in kinds if k != "effects"]
        followed = "effects" in kinds or "output" in kinds
        effects = stack.enter_context(closing(EffectSource(module))) if followed else None
        stack.enter_context(evaluating(module))
        yield _Sources(vectors, effects)


def _measure(
    model: Model | PlainModel,
    measurer: Measurer[W, P],
    record: W,
    layer: int,
    call: Call,
    positions: Positions,
    sources: _Sources,
    effects: Effects | None,
) -> None:
    started = time.perf_counter()
    record.layers[layer] = sources.vectors[0].entry(call, layer)
    vectors = {source.kind: source.vectors(call) for source in sources.vectors}
    if effects is not None and "output" in vectors:
        effects.refuse_changed()
    name = f"layer {layer} of {model.name} ({model.family})"
    measurer.measure(record, LayerCall(layer, call, vectors, name, model.causal, effects), positions)
    record.measure_seconds += time.perf_counter() - started


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; on the CPU, torch reports this only in the message of a RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
