"""One window of a reproduction: every table from its attention calls, layer by layer.

The same forward serves several kinds of vectors, and rows with and without the first key. Rows are measured by several
threads, but their lines are in the order of layers, lengths and rows, so the same run writes the same files.

Without the first key ("sink dropped"), a row is the softmax of its other logits: a row of L - 1 keys.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from attnscope._process import parallel_for
from attnscope.capture.attention import AttentionCall
from attnscope.engine.run import Part, WindowRecord
from attnscope.errors import InputError
from attnscope.experiments import reduce
from attnscope.experiments.circle import circle
from attnscope.experiments.coverage import layer_coverage
from attnscope.experiments.profiles import products, profiles
from attnscope.measure import Rows, columns, softmax_weights
from attnscope.measure.specification import unit
from attnscope.studies.paper.measuring import check_call, usable_heads
from attnscope.studies.paper.random_sets import draw_sets
from attnscope.studies.paper.responses import responses
from attnscope.studies.paper.settings import (
    FIXED_N,
    SATURATION_N,
    SHARPNESS_TEMPERATURES,
    SINKS,
    STEPS,
    TEMPERATURES,
    Settings,
    Sink,
)
from attnscope.studies.paper.store import LAST_ROW_NAMES
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import ball
from attnscope.theory.gradient import finite_difference_bound, jacobian_norm, softmax_bound_printed

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.columns import VectorKind
    from attnscope.engine.run import LayerCall, Positions

MOST_HEADS = 8  # of a layer, taken together for coverage
Pieces = dict[str, list[pl.DataFrame]]
"""Parts of each table, by its name."""
_TYPES = {int: pl.Int64, float: pl.Float64, str: pl.String}


@dataclass(frozen=True)
class RowKey:
    """What identifies a row in every table, and the heads that can be measured in it."""

    window: int
    layer: int
    prefix: int
    row: int
    position: int
    sink: Sink
    usable: Tensor

    def keys(self) -> dict[str, Any]:
        """The columns that every table starts with."""
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
        # Polars would run a separate query for each number in a dictionary: build all columns in one instead.
        same = self.keys() | (keyed or {}) | {"position": self.position, "length": length}
        return table.select(*(pl.lit(value, _TYPES[type(value)]).alias(name) for name, value in same.items()), pl.all())


@dataclass(frozen=True)
class PaperMeasurer:
    """Measures what the paper's experiments need: the measurer of a reproduction."""

    settings: Settings

    @property
    def vectors(self) -> tuple[VectorKind, ...]:
        """The kinds of vectors that the settings name."""
        return self.settings.vectors

    def start(self, number: int) -> Window:
        """The empty record of a window."""
        return Window(number, settings=self.settings)

    def measure(self, window: Window, layer: LayerCall, positions: Positions) -> None:
        """Measure the last rows of each length in one attention call."""
        window.measure(layer, positions)

    def finish(self, window: Window) -> Part:
        """All tables of the window."""
        return window.part(window.tables())


@dataclass
class Window(WindowRecord):
    """The tables of one window while the model runs."""

    settings: Settings = field(kw_only=True)
    _pieces: Pieces = field(default_factory=lambda: {name: [] for name in LAST_ROW_NAMES})
    _profiles: dict[reduce.Sample, list[np.ndarray]] = field(default_factory=dict)
    _best_circle: tuple[tuple[float, ...], pl.DataFrame] | None = None

    def tables(self) -> dict[str, pl.DataFrame]:
        """Everything measured, once all layers are; tables are empty where there was nothing to measure."""
        for sample, layers in sorted(self._profiles.items()):
            # Layers with a sliding window, or those of a decoder compared with its encoder, see fewer keys: a smaller
            # range of N.
            most = max(profile.shape[-1] for profile in layers)
            profile = np.concatenate([profile for profile in layers if profile.shape[-1] == most])
            for name, table in reduce.tests(sample, profile, self.settings).items():
                self._pieces[name].append(table)
        self._profiles.clear()
        if self._best_circle is not None:
            self._pieces["circle"].append(self._best_circle[1])
        return {name: pl.concat(pieces) if pieces else pl.DataFrame() for name, pieces in self._pieces.items()}

    def measure(self, layer: LayerCall, positions: Positions) -> None:
        """Measure the requested rows of one attention call, each with and without its first key."""
        call = layer.call
        wanted = [(length, row, position) for length, group in positions.items() for row, position in enumerate(group)]
        queries = [position for *_, position in wanted]
        logits, visible = call.logits(queries).cpu(), call.visible(queries).cpu()
        check_call(layer, visible, queries)
        kinds = {kind: vectors.double().cpu() for kind, vectors in layer.vectors.items()}
        sinks = None if call.sinks is None else call.sinks.cpu()
        # A model that computes its logits itself does not say what it divided them by.
        scale = call.scale if isinstance(call, AttentionCall) else None
        usable = usable_heads(self, layer.number, logits, visible, kinds)
        jobs = []
        for index, (length, row, position) in enumerate(wanted):
            all_keys = visible[0, index].nonzero().flatten()
            for sink in SINKS:
                keys = all_keys[1:] if sink == "dropped" else all_keys
                if len(keys) < 3:
                    raise InputError(
                        f"a row of {len(all_keys)} keys is too short to reproduce anything; use longer windows"
                    )
                row_key = RowKey(self.number, layer.number, length, row, position, sink, usable)
                row_logits = logits[:, None, index, keys]
                all_visible = torch.ones_like(row_logits, dtype=torch.bool)
                # Causal rows see contiguous keys: a slice is a view, an index would copy.
                run = slice(int(keys[0]), int(keys[-1]) + 1)
                chosen = {
                    kind: x[:, run] if len(keys) == run.stop - run.start else x[:, keys] for kind, x in kinds.items()
                }
                rows = Rows(layer.number, (position,), row_logits, all_visible, next(iter(chosen.values())), sinks)
                jobs.append((row_key, rows, chosen, scale))
        measured: dict[int, Pieces] = {}

        def measure(job: int) -> None:
            measured[job] = self._row(*jobs[job])

        parallel_for(measure, reversed(range(len(jobs))))  # the longest first
        for job in range(len(jobs)):
            for name, tables in measured[job].items():
                self._pieces[name] += tables

    def _row(self, row_key: RowKey, rows: Rows, kinds: dict[Any, Tensor], scale: float | None) -> Pieces:
        """One row of every head of a layer, every key visible."""
        pieces: Pieces = defaultdict(list)
        weights = softmax_weights(rows)
        if row_key.prefix == self.settings.longest:
            pieces["gradient"].append(self._gradient(row_key, rows.logits[:, 0], scale))
        for kind, vectors in kinds.items():
            per_row = self._vectors(pieces, row_key, kind, replace(rows, vectors=vectors), weights)
        pieces["rows"].append(row_key.frame(per_row, weights.shape[-1]))
        return pieces

    def _vectors(
        self, pieces: Pieces, row_key: RowKey, kind: str, rows: Rows, weights: Tensor
    ) -> dict[str, np.ndarray]:
        """Measure everything that depends on the vectors; returns the columns that do not."""
        keys = weights.shape[-1]
        longest = row_key.prefix == self.settings.longest
        top_n = self.settings.top_n(keys)
        per_row, per_set = columns(rows, weights, top_n)
        keyed = {"vectors": kind}
        pieces["topn"].append(
            row_key.frame({name: value[:, 0].numpy() for name, value in per_set.items()}, keys, keyed, n=top_n)
        )
        grouped = rows.grouped(weights)
        gram = products(rows.vectors)
        profile = profiles(grouped, rows.vectors, gram)  # (groups, rows, columns, n)
        sample = reduce.Sample(kind, row_key.sink, row_key.window, row_key.row, row_key.prefix)
        flat = profile.reshape(rows.heads, *profile.shape[2:])
        self._profiles.setdefault(sample, []).append(flat[row_key.usable.numpy()])
        drawn_n = self.settings.drawn_n(keys, longest)
        index = [n - 1 for n in drawn_n]
        top = profile[:, :, 0][..., index]
        drawn = draw_sets(grouped, rows.vectors, gram, top, drawn_n, self.settings.draws, self._seed(row_key))
        drawn_columns = {name: flat[:, k][:, index] for k, name in enumerate(reduce.COLUMNS)}
        drawn_columns |= {f"drawn_{name}": value.reshape(rows.heads, -1) for name, value in drawn._asdict().items()}
        norms = rows.vectors.norm(dim=-1).repeat_interleave(rows.heads // len(rows.vectors), 0)
        scaled = (weights[:, 0] * norms).sum(-1)
        drawn_columns["scaled_sum"] = np.repeat(scaled.numpy()[:, None], len(drawn_n), 1)
        of_draws = keyed | {"draws": self.settings.draws}
        pieces["drawn"].append(row_key.frame(drawn_columns, keys, of_draws, n=drawn_n))
        if longest and keys > SATURATION_N:
            self._separability(pieces, row_key, kind, rows, weights)
        if row_key.prefix == self.settings.lengths[0] and row_key.window == row_key.row == 0 and row_key.sink == "kept":
            self._circle(row_key, kind, rows, weights)
        return {name: value[:, 0].numpy() for name, value in per_row.items() if name != "length"}

    def _separability(self, pieces: Pieces, row_key: RowKey, kind: str, rows: Rows, weights: Tensor) -> None:
        """Separability of the top set at several temperatures, and what the heads of the layer cover together."""
        units = unit(rows.vectors)
        selected = top_sets(rows.grouped(weights), rows.grouped(rows.visible), [SATURATION_N])
        shares, norms = [], []
        for temperature in SHARPNESS_TEMPERATURES:
            sinks = None if rows.sinks is None else rows.sinks / temperature
            tempered = softmax_weights(replace(rows, logits=rows.logits / temperature, sinks=sinks))
            nearest = ball(Configuration(rows.grouped(tempered), units, rows.grouped(rows.visible), selected))
            shares.append(rows.ungrouped(nearest.separability)[:, 0, 0])
            norms.append(jacobian_norm(tempered)[:, 0] / temperature)
            if temperature == 1.0:
                inside = rows.ungrouped(nearest.inside)[:, 0, 0].numpy()
        tempered_columns = {
            "separability": torch.stack(shares, -1).numpy(),
            "jacobian_norm": torch.stack(norms, -1).numpy(),
        }
        keyed = {"vectors": kind}
        frame = row_key.frame(tempered_columns, weights.shape[-1], keyed, temperature=list(SHARPNESS_TEMPERATURES))
        pieces["sharpness"].append(frame)
        good = row_key.usable.numpy()
        most = min(MOST_HEADS, int(good.sum()))
        if most:
            chosen = rows.ungrouped(selected)[:, 0, 0].numpy()[good]
            covered = layer_coverage(chosen, inside[good], most)
            alone = inside[good].sum(1) / SATURATION_N
            independent = [1 - (1 - alone.mean()) ** count for count in range(1, most + 1)]
            table = {"heads": np.arange(1, most + 1), "coverage": covered, "independent": independent}
            pieces["coverage"].append(pl.DataFrame(row_key.keys() | keyed | table))

    def _seed(self, row_key: RowKey) -> int:
        """A seed for each row, the same in every run."""
        sequence = np.random.SeedSequence(
            (self.settings.seed, row_key.window, row_key.layer, row_key.prefix, row_key.row)
        )
        return int(sequence.generate_state(1)[0])

    def _gradient(self, row_key: RowKey, logits: Tensor, scale: float | None) -> pl.DataFrame:
        frames = []
        axis = torch.tensor(TEMPERATURES, dtype=torch.float64)
        for reading, factor in (("scaled", 1.0), ("raw", scale)):
            if factor is None:
                continue
            # With l = q.k = z / scale: g_raw(T, eps) = scale g_z(scale T, scale eps).
            temperatures, steps = [factor * t for t in TEMPERATURES], [factor * e for e in STEPS]
            response = factor * responses(logits.numpy(), temperatures, steps, self._seed(row_key))
            for k, step in enumerate(STEPS):
                bounds = {"bound_printed": softmax_bound_printed(axis)}
                bounds["bound_exact"] = finite_difference_bound(axis, torch.full_like(axis, step))
                sides = {"random": response[:, :, k, 0], "worst": response[:, :, k, 1]}
                sides |= {name: np.tile(bound.numpy(), (len(logits), 1)) for name, bound in bounds.items()}
                keyed = {"reading": reading, "step": step}
                frames.append(row_key.frame(sides, logits.shape[-1], keyed, temperature=list(TEMPERATURES)))
        return pl.concat(frames)

    def _circle(self, row_key: RowKey, kind: str, rows: Rows, weights: Tensor) -> None:
        """Choose the head shown in Figure 1.

        Its separability in the plane should be near 0.8 and near that in all dimensions; among such heads, the one
        whose weights are spread most is kept.
        """
        if kind != self.settings.vectors[0]:
            return
        vectors = rows.vectors.repeat_interleave(rows.heads // len(rows.vectors), 0)
        true = columns(rows, weights, [FIXED_N])[1]["separability"][:, 0, 0]
        spread = 1 / weights[:, 0].square().sum(-1)
        for head in row_key.usable.nonzero().flatten().tolist():
            flat = circle(weights[head, 0], vectors[head], FIXED_N)
            score = (abs(flat.separability - 0.8), abs(flat.separability - float(true[head])), -float(spread[head]))
            if self._best_circle is None or score < self._best_circle[0]:
                table = pl.DataFrame(
                    {
                        "layer": row_key.layer,
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
