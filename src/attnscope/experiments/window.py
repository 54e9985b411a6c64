"""One window of a reproduction: every table from its forwards, layer by layer.

Every layer's rows are measured while the model runs and dropped before the next layer. With several kinds of vectors,
and with and without the first key, the same forward serves all. Rows are measured by several threads, but their lines
stand in the order of layers, lengths and rows, so the same run writes the same files.

Without the first key ("sink dropped") a row is what softmax makes of its other logits: a row of L - 1 keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from attnscope.capture.attention import AttentionCall
from attnscope.errors import InputError, ModelError
from attnscope.experiments import reduce
from attnscope.experiments.circle import circle
from attnscope.experiments.coverage import layer_coverage
from attnscope.experiments.draws import draw_sets
from attnscope.experiments.perturbation import responses
from attnscope.experiments.profiles import products, profiles
from attnscope.experiments.settings import (
    FIXED_N,
    SATURATION_N,
    SHARPNESS_TEMPERATURES,
    SINKS,
    STEPS,
    TEMPERATURES,
    Settings,
    Sink,
)
from attnscope.experiments.store import NAMES
from attnscope.measure import Rows, columns, softmax_weights
from attnscope.measure.separability import unit
from attnscope.normalizers import SinkSoftmax, Softmax
from attnscope.swapping.effective_normalizer import effective_normalizer
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import ball
from attnscope.theory.gradient import finite_difference_bound, jacobian_norm, softmax_bound_printed

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.capture.models import Model
    from attnscope.capture.vectors import VectorSource

MOST_HEADS = 8  # of a layer, taken together for coverage
Pieces = dict[str, list[pl.DataFrame]]
"""Parts of each table, by its name."""
_TYPES = {int: pl.Int64, float: pl.Float64, str: pl.String}


@dataclass(frozen=True)
class Place:
    """Where a row stands: the keys of every table."""

    window: int
    layer: int
    prefix: int
    row: int
    position: int
    sink: Sink
    usable: Tensor

    def keys(self) -> dict[str, Any]:
        """The columns that every table begins with."""
        return {
            "sink": self.sink,
            "window": self.window,
            "row": self.row,
            "prefix": self.prefix,
            "layer": self.layer,
        }

    def frame(
        self, columns: dict[str, np.ndarray], length: int, keyed: dict[str, Any] | None = None, **axis: list[Any]
    ) -> pl.DataFrame:
        """Columns of shape (heads) or (heads, values of the axis) as lines, usable heads only."""
        good = self.usable.numpy()
        heads = np.flatnonzero(good)
        count = 1
        lines: dict[str, Any] = {}
        for name, values in axis.items():
            count = len(values)
            lines[name] = np.tile(np.array(values), len(heads))
        data = {name: values[good].reshape(-1) for name, values in columns.items()}
        table = pl.DataFrame({"head": np.repeat(heads, count)} | lines | data, nan_to_null=True)
        # Polars makes a column of each number in a dictionary by a query of its own: all of them in one instead.
        same = self.keys() | (keyed or {}) | {"position": self.position, "length": length}
        return table.select(*(pl.lit(value, _TYPES[type(value)]).alias(name) for name, value in same.items()), pl.all())


@dataclass
class Window:
    """The tables of one window while the model runs."""

    number: int
    model: Model
    settings: Settings
    heads: dict[int, int] = field(default_factory=dict)
    skipped: dict[tuple[int, int], str] = field(default_factory=dict)
    _pieces: Pieces = field(default_factory=lambda: {name: [] for name in NAMES})
    _profiles: dict[reduce.Sample, list[np.ndarray]] = field(default_factory=dict)
    _best_circle: tuple[tuple[float, ...], pl.DataFrame] | None = None

    def tables(self) -> dict[str, pl.DataFrame]:
        """Everything measured, once all layers are; tables are empty where there was nothing to measure."""
        for sample, layers in sorted(self._profiles.items()):
            for name, table in reduce.tests(sample, np.concatenate(layers), self.settings).items():
                self._pieces[name].append(table)
        self._profiles.clear()
        if self._best_circle is not None:
            self._pieces["circle"].append(self._best_circle[1])
        return {name: pl.concat(pieces) if pieces else pl.DataFrame() for name, pieces in self._pieces.items()}

    def layer(self, layer: int, call: Call, lengths: tuple[int, ...], sources: list[VectorSource]) -> None:
        """Measure the last rows of each length in one attention call."""
        positions = [(length, row, length - 1 - row) for length in lengths for row in range(self.settings.rows)]
        places = [position for *_, position in positions]
        logits, visible = call.logits(places).cpu(), call.visible(places).cpu()
        self._check(layer, call, visible, places)
        kinds = {source.kind: source.vectors(call).double().cpu() for source in sources}
        sinks = None if call.sinks is None else call.sinks.cpu()
        # A model that forms its logits by itself does not say what it divided them by.
        scale = call.scale if isinstance(call, AttentionCall) else None
        self.heads[layer] = logits.shape[0]
        usable = self._usable(layer, logits, visible, kinds)
        jobs = []
        for index, (length, row, position) in reversed(list(enumerate(positions))):  # the longest first
            seen = visible[0, index].nonzero().flatten()
            for sink in reversed(SINKS):
                keys = seen[1:] if sink == "dropped" else seen
                if len(keys) < 3:
                    raise InputError(
                        f"a row of {len(seen)} keys is too short to reproduce anything; use longer windows"
                    )
                place = Place(self.number, layer, length, row, position, sink, usable)
                row_logits = logits[:, None, index, keys]
                all_seen = torch.ones_like(row_logits, dtype=torch.bool)
                # Causal rows see a run of keys: a slice is a view, an index a copy.
                run = slice(int(keys[0]), int(keys[-1]) + 1)
                chosen = {
                    kind: x[:, run] if len(keys) == run.stop - run.start else x[:, keys] for kind, x in kinds.items()
                }
                rows = Rows(layer, (position,), row_logits, all_seen, next(iter(chosen.values())), sinks)
                jobs.append((place, rows, chosen, scale))
        with _one_thread_each() as pool:
            done = list(pool.map(lambda job: self._row(*job), jobs))
        for pieces in reversed(done):
            for name, tables in pieces.items():
                self._pieces[name] += tables

    def _check(self, layer: int, call: Call, visible: Tensor, places: list[int]) -> None:
        """Refuse what the paper's experiments are not defined for."""
        name = f"layer {layer} of {self.model.name} ({self.model.family})"
        if not (visible == visible[:1]).all():
            raise ModelError(f"the heads of {name} see different keys; attnscope reproduce needs them to agree")
        if self.model.causal and (visible[0] & (torch.arange(visible.shape[-1]) > torch.tensor(places)[:, None])).any():
            raise ModelError(f"{name} sees later tokens, so it is not causal as it says")
        if not isinstance(effective_normalizer(call), Softmax | SinkSoftmax):
            raise ModelError(f"{name} runs with a swapped normalizer; the paper's experiments are about softmax")

    def _usable(self, layer: int, logits: Tensor, visible: Tensor, kinds: dict[Any, Tensor]) -> Tensor:
        """Which heads have finite logits and vectors; the others are recorded and left out."""
        usable = torch.where(visible, logits, 0).isfinite().all(-1).all(-1)
        for vectors in kinds.values():
            usable = usable & vectors.isfinite().all(-1).all(-1).repeat_interleave(len(logits) // len(vectors))
        for head in (~usable).nonzero().flatten().tolist():
            self.skipped.setdefault((layer, head), "logits or vectors not finite")
        return usable

    def _row(self, place: Place, rows: Rows, kinds: dict[Any, Tensor], scale: float | None) -> Pieces:
        """One row of every head of a layer, every key visible."""
        pieces: Pieces = defaultdict(list)
        weights = softmax_weights(rows)
        if place.prefix == self.settings.longest:
            pieces["gradient"].append(self._gradient(place, rows.logits[:, 0], scale))
        for kind, vectors in kinds.items():
            per_row = self._vectors(pieces, place, kind, replace(rows, vectors=vectors), weights)
        pieces["rows"].append(place.frame(per_row, weights.shape[-1]))
        return pieces

    def _vectors(self, pieces: Pieces, place: Place, kind: str, rows: Rows, weights: Tensor) -> dict[str, np.ndarray]:
        """Everything that depends on the vectors; the columns that do not are returned."""
        keys = weights.shape[-1]
        longest = place.prefix == self.settings.longest
        top_n = self.settings.top_n(keys)
        per_row, per_set = columns(rows, weights, top_n)
        keyed = {"vectors": kind}
        pieces["topn"].append(
            place.frame({name: value[:, 0].numpy() for name, value in per_set.items()}, keys, keyed, n=top_n)
        )
        grouped = rows.grouped(weights)
        gram = products(rows.vectors)
        profile = profiles(grouped, rows.vectors, gram)  # (groups, rows, columns, n)
        sample = reduce.Sample(kind, place.sink, place.window, place.row, place.prefix)
        flat = profile.reshape(rows.heads, *profile.shape[2:])
        self._profiles.setdefault(sample, []).append(flat[place.usable.numpy()])
        drawn_n = self.settings.drawn_n(keys, longest)
        index = [n - 1 for n in drawn_n]
        top = profile[:, :, 0][..., index]
        drawn = draw_sets(grouped, rows.vectors, gram, top, drawn_n, self.settings.draws, self._seed(place))
        beside = {name: flat[:, k][:, index] for k, name in enumerate(reduce.COLUMNS)}
        beside |= {f"drawn_{name}": value.reshape(rows.heads, -1) for name, value in drawn._asdict().items()}
        norms = rows.vectors.norm(dim=-1).repeat_interleave(rows.heads // len(rows.vectors), 0)
        scaled = (weights[:, 0] * norms).sum(-1)
        beside["scaled_sum"] = np.repeat(scaled.numpy()[:, None], len(drawn_n), 1)
        of_draws = keyed | {"draws": self.settings.draws}
        pieces["drawn"].append(place.frame(beside, keys, of_draws, n=drawn_n))
        if longest and keys > SATURATION_N:
            self._separability(pieces, place, kind, rows, weights)
        if place.prefix == self.settings.lengths[0] and place.window == place.row == 0 and place.sink == "kept":
            self._circle(place, kind, rows, weights)
        return {name: value[:, 0].numpy() for name, value in per_row.items() if name != "length"}

    def _separability(self, pieces: Pieces, place: Place, kind: str, rows: Rows, weights: Tensor) -> None:
        """Separability of the top set at several temperatures, and what the heads of the layer cover together."""
        units = unit(rows.vectors)
        selected = top_sets(rows.grouped(weights), rows.grouped(rows.visible), [SATURATION_N])
        shares, norms = [], []
        for temperature in SHARPNESS_TEMPERATURES:
            sinks = None if rows.sinks is None else rows.sinks / temperature
            tempered = softmax_weights(replace(rows, logits=rows.logits / temperature, sinks=sinks))
            found = ball(Configuration(rows.grouped(tempered), units, rows.grouped(rows.visible), selected))
            shares.append(rows.ungrouped(found.separability)[:, 0, 0])
            norms.append(jacobian_norm(tempered)[:, 0] / temperature)
            if temperature == 1.0:
                inside = rows.ungrouped(found.inside)[:, 0, 0].numpy()
        cooled_columns = {
            "separability": torch.stack(shares, -1).numpy(),
            "jacobian_norm": torch.stack(norms, -1).numpy(),
        }
        keyed = {"vectors": kind}
        frame = place.frame(cooled_columns, weights.shape[-1], keyed, temperature=list(SHARPNESS_TEMPERATURES))
        pieces["sharpness"].append(frame)
        good = place.usable.numpy()
        most = min(MOST_HEADS, int(good.sum()))
        if most:
            chosen = rows.ungrouped(selected)[:, 0, 0].numpy()[good]
            covered = layer_coverage(chosen, inside[good], most)
            alone = inside[good].sum(1) / SATURATION_N
            independent = [1 - (1 - alone.mean()) ** count for count in range(1, most + 1)]
            table = {"heads": np.arange(1, most + 1), "coverage": covered, "independent": independent}
            pieces["coverage"].append(pl.DataFrame(place.keys() | keyed | table))

    def _seed(self, place: Place) -> int:
        """One for each row, the same in every run."""
        sequence = np.random.SeedSequence((self.settings.seed, place.window, place.layer, place.prefix, place.row))
        return int(sequence.generate_state(1)[0])

    def _gradient(self, place: Place, logits: Tensor, scale: float | None) -> pl.DataFrame:
        frames = []
        axis = torch.tensor(TEMPERATURES, dtype=torch.float64)
        for reading, factor in (("scaled", 1.0), ("raw", scale)):
            if factor is None:
                continue
            # With l = q.k = z / scale: g_raw(T, eps) = scale g_z(scale T, scale eps).
            temperatures, steps = [factor * t for t in TEMPERATURES], [factor * e for e in STEPS]
            found = factor * responses(logits.numpy(), temperatures, steps, self._seed(place))
            for k, step in enumerate(STEPS):
                bounds = {"bound_printed": softmax_bound_printed(axis)}
                bounds["bound_exact"] = finite_difference_bound(axis, torch.full_like(axis, step))
                sides = {"random": found[:, :, k, 0], "worst": found[:, :, k, 1]}
                sides |= {name: np.tile(bound.numpy(), (len(logits), 1)) for name, bound in bounds.items()}
                keyed = {"reading": reading, "step": step}
                frames.append(place.frame(sides, logits.shape[-1], keyed, temperature=list(TEMPERATURES)))
        return pl.concat(frames)

    def _circle(self, place: Place, kind: str, rows: Rows, weights: Tensor) -> None:
        """Keep a head to show: in the plane it tells about 0.8 of its set apart, as nearly as it does in truth, and
        of such heads the one whose weights are spread most.
        """
        if kind != self.settings.vectors[0]:
            return
        vectors = rows.vectors.repeat_interleave(rows.heads // len(rows.vectors), 0)
        true = columns(rows, weights, [FIXED_N])[1]["separability"][:, 0, 0]
        spread = 1 / weights[:, 0].square().sum(-1)
        for head in place.usable.nonzero().flatten().tolist():
            flat = circle(weights[head, 0], vectors[head], FIXED_N)
            score = (abs(flat.separability - 0.8), abs(flat.separability - float(true[head])), -float(spread[head]))
            if self._best_circle is None or score < self._best_circle[0]:
                table = pl.DataFrame(
                    {
                        "layer": place.layer,
                        "head": head,
                        "token": np.arange(len(flat.weights)),
                        "x": flat.points[:, 0].numpy(),
                        "y": flat.points[:, 1].numpy(),
                        "weight": flat.weights.numpy(),
                        "selected": flat.selected.numpy(),
                        "inside": flat.inside.numpy(),
                        "context_x": float(flat.context[0]),
                        "context_y": float(flat.context[1]),
                        "radius": flat.radius,
                        "separability": float(true[head]),
                        "vectors": kind,
                    }
                )
                self._best_circle = (score, table)


@contextmanager
def _one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """Threads for rows: rows are many and small, and torch's own threads wait for each other on them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)
