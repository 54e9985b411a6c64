"""One forward a window, everything from it: the tables that figures and claims are made of.

Every layer's rows are measured while the model runs and dropped before the next layer. With several kinds of vectors,
and with and without the first key, the same forward serves all.

Without the first key ("sink dropped") a row is what softmax makes of its other logits: a row of L - 1 keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from attnscope.capture.huggingface import observed
from attnscope.capture.inputs import special_tokens, window_tokens
from attnscope.capture.text import Text, tokenize
from attnscope.capture.vectors import VectorSource
from attnscope.errors import InputError, ModelError
from attnscope.experiments import reduce
from attnscope.experiments.circle import circle
from attnscope.experiments.coverage import layer_coverage
from attnscope.experiments.draws import draw_sets
from attnscope.experiments.perturbation import responses
from attnscope.experiments.profiles import profiles
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
from attnscope.measure import Rows, columns, softmax_weights
from attnscope.measure.separability import unit
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import ball

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall
    from attnscope.capture.models import Model

Progress = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""

TABLES = ("rows", "topn", "drawn", "tests", "subsets", "gradient", "sharpness", "coverage", "circle")
MOST_HEADS = 8  # of a layer, taken together for coverage


@dataclass
class Collector:
    """The tables of a reproduction while the model runs."""

    model: Model
    text: Text
    settings: Settings
    progress: Progress | None = None
    pieces: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: {name: [] for name in TABLES})
    heads: dict[int, int] = field(default_factory=dict)
    skipped: dict[tuple[int, int], str] = field(default_factory=dict)
    tokens: int = 0
    _profiles: dict[reduce.Sample, list[np.ndarray]] = field(default_factory=dict)
    _best_circle: tuple[tuple[float, ...], pl.DataFrame] | None = None

    def run(self) -> dict[str, pl.DataFrame]:
        """Run the model on every window; the tables by name."""
        tokens = tokenize(self.model.tokenizer, self.text)
        self.tokens = len(tokens)
        settings, module = self.settings, self.model.module
        inputs = window_tokens(self.model, tokens, settings.longest, settings.windows, settings.bos, self.text.source)
        sources = [VectorSource(module, kind) for kind in settings.vectors]
        training = module.training
        module.eval()
        try:
            for number, window in enumerate(inputs):
                self._window(number, window, sources)
        finally:
            for source in sources:
                source.close()
            module.train(training)
        if self._best_circle is not None:
            self.pieces["circle"].append(self._best_circle[1])
        return {
            name: self._without_skipped(pl.concat(pieces)) if pieces else pl.DataFrame()
            for name, pieces in self.pieces.items()
        }

    def _without_skipped(self, table: pl.DataFrame) -> pl.DataFrame:
        """A head that had to be left out of one window is left out of all."""
        if not self.skipped or "head" not in table.columns:
            return table
        bad = pl.DataFrame(list(self.skipped), schema={"layer": pl.Int64, "head": pl.Int64}, orient="row")
        return table.join(bad, on=["layer", "head"], how="anti")

    def _window(self, number: int, window: list[int], sources: list[VectorSource]) -> None:
        forwards = self._forwards(window)
        layers = self.model.module.config.get_text_config().num_hidden_layers
        for index, (ids, lengths) in enumerate(forwards):
            done = (number * len(forwards) + index) * layers
            self._forward(number, ids, lengths, sources, done, self.settings.windows * len(forwards) * layers)
        for sample, layers_of in sorted(self._profiles.items()):
            for name, table in reduce.tests(sample, np.concatenate(layers_of), self.settings).items():
                self.pieces[name].append(table)
        self._profiles.clear()

    def _forwards(self, window: list[int]) -> list[tuple[list[int], tuple[int, ...]]]:
        """The inputs of a window, each with the lengths it serves: all at once if the model is causal."""
        if self.model.causal:
            return [(window, self.settings.lengths)]
        before, behind = special_tokens(self.model.tokenizer)
        extra = len(before) + len(behind)
        return [([*before, *window[: size - extra], *behind], (size,)) for size in self.settings.lengths]

    def _forward(
        self, window: int, ids: list[int], lengths: tuple[int, ...], sources: list[VectorSource], done: int, total: int
    ) -> None:
        calls = 0

        def collect(call: AttentionCall) -> None:
            nonlocal calls
            self._layer(window, sources[0].layer(call.module, calls), call, lengths, sources)
            calls += 1
            if self.progress is not None:
                self.progress(min(done + calls, total), total)

        module = self.model.module.base_model
        options = {"use_cache": False} if self.model.causal else {}
        with torch.no_grad(), observed(module, collect):
            module(input_ids=torch.tensor([ids], device=self.model.module.device), **options)
        if not calls:
            raise ModelError(
                f"{self.model.name} ({self.model.family}) does not use transformers' attention interface; "
                "attnscope cannot observe this family"
            )

    def _layer(
        self, window: int, layer: int, call: AttentionCall, lengths: tuple[int, ...], sources: list[VectorSource]
    ) -> None:
        positions = [(length, row, length - 1 - row) for length in lengths for row in range(self.settings.rows)]
        places = [position for *_, position in positions]
        logits, visible = call.logits(places).cpu(), call.visible(places).cpu()
        if not (visible == visible[:1]).all():
            raise ModelError(f"the heads of layer {layer} see different keys; attnscope reproduce needs them to agree")
        if self.model.causal and (visible[0] & (torch.arange(visible.shape[-1]) > torch.tensor(places)[:, None])).any():
            raise ModelError(f"layer {layer} of {self.model.name} sees later tokens, so it is not causal as it says")
        kinds = {source.kind: source.vectors(call).double().cpu() for source in sources}
        sinks = None if call.sinks is None else call.sinks.cpu()
        scaling = call.options.get("scaling")
        scale = call.query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        self.heads[layer] = logits.shape[0]
        usable = self._usable(layer, logits, visible, kinds)
        jobs = []
        for index, (length, row, position) in reversed(list(enumerate(positions))):  # the longest first
            seen = visible[0, index].nonzero().flatten()
            for sink in SINKS:
                keys = seen[1:] if sink == "dropped" else seen
                if len(keys) < 3:
                    raise InputError(
                        f"a row of {len(seen)} keys is too short to reproduce anything; use longer windows"
                    )
                place = _Place(window, layer, length, row, position, sink, usable)
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
            list(pool.map(lambda job: self._row(*job), jobs))

    def _usable(self, layer: int, logits: Tensor, visible: Tensor, kinds: dict[Any, Tensor]) -> Tensor:
        """Which heads have finite logits and vectors; the others are recorded and left out."""
        usable = torch.where(visible, logits, 0).isfinite().all(-1).all(-1)
        for vectors in kinds.values():
            usable = usable & vectors.isfinite().all(-1).all(-1).repeat_interleave(len(logits) // len(vectors))
        for head in (~usable).nonzero().flatten().tolist():
            self.skipped.setdefault((layer, head), "logits or vectors not finite")
        return usable

    def _row(self, place: _Place, rows: Rows, kinds: dict[Any, Tensor], scale: float) -> None:
        """One row of every head of a layer, every key visible."""
        weights = softmax_weights(rows)
        longest = place.prefix == self.settings.longest
        if longest:
            self.pieces["gradient"].append(self._gradient(place, rows.logits[:, 0], scale))
        for kind, vectors in kinds.items():
            per_row = self._vectors(place, kind, replace(rows, vectors=vectors), weights)
        self.pieces["rows"].append(place.frame(per_row, weights.shape[-1]))

    def _vectors(self, place: _Place, kind: str, rows: Rows, weights: Tensor) -> dict[str, np.ndarray]:
        """Everything that depends on the vectors; the columns that do not are returned."""
        keys = weights.shape[-1]
        longest = place.prefix == self.settings.longest
        top_n = self.settings.top_n(keys)
        per_row, per_set = columns(rows, weights, top_n)
        keyed = {"vectors": kind}
        self.pieces["topn"].append(
            place.frame({name: value[:, 0].numpy() for name, value in per_set.items()}, keys, keyed, n=top_n)
        )
        grouped = rows.grouped(weights)
        profile = profiles(grouped, rows.vectors)  # (groups, rows, columns, n)
        sample = reduce.Sample(kind, place.sink, place.window, place.row, place.prefix)
        flat = profile.reshape(rows.heads, *profile.shape[2:])
        self._profiles.setdefault(sample, []).append(flat[place.usable.numpy()])
        drawn_n = self.settings.drawn_n(keys, longest)
        index = [n - 1 for n in drawn_n]
        top = profile[:, :, 0][..., index]
        drawn = draw_sets(grouped, rows.vectors, top, drawn_n, self.settings.draws, self._seed(place))
        beside = {name: flat[:, k][:, index] for k, name in enumerate(reduce.COLUMNS)}
        beside |= {f"drawn_{name}": value.reshape(rows.heads, -1) for name, value in drawn._asdict().items()}
        scaled = (weights[:, 0] * rows.vectors.norm(dim=-1).repeat_interleave(rows.heads // len(rows.vectors), 0)).sum(
            -1
        )
        beside["scaled_sum"] = np.repeat(scaled.numpy()[:, None], len(drawn_n), 1)
        self.pieces["drawn"].append(place.frame(beside, keys, keyed, n=drawn_n))
        if longest and keys > SATURATION_N:
            self._separability(place, kind, rows, weights)
        if place.prefix == self.settings.lengths[0] and place.window == place.row == 0 and place.sink == "kept":
            self._circle(place, kind, rows, weights)
        return {name: value[:, 0].numpy() for name, value in per_row.items() if name != "length"}

    def _separability(self, place: _Place, kind: str, rows: Rows, weights: Tensor) -> None:
        """Separability of the top set at several temperatures, and what the heads of the layer cover together."""
        units = unit(rows.vectors)
        selected = top_sets(rows.grouped(weights), rows.grouped(rows.visible), [SATURATION_N])
        shares, norms = [], []
        for temperature in SHARPNESS_TEMPERATURES:
            sinks = None if rows.sinks is None else rows.sinks / temperature
            cooled = softmax_weights(replace(rows, logits=rows.logits / temperature, sinks=sinks))
            found = ball(Configuration(rows.grouped(cooled), units, rows.grouped(rows.visible), selected))
            shares.append(rows.ungrouped(found.separability)[:, 0, 0])
            norms.append(columns(rows, cooled, [SATURATION_N])[0]["jacobian_norm"][:, 0] / temperature)
            if temperature == 1.0:
                inside = rows.ungrouped(found.inside)[:, 0, 0].numpy()
        cooled_columns = {
            "separability": torch.stack(shares, -1).numpy(),
            "jacobian_norm": torch.stack(norms, -1).numpy(),
        }
        keyed = {"vectors": kind}
        frame = place.frame(cooled_columns, weights.shape[-1], keyed, temperature=list(SHARPNESS_TEMPERATURES))
        self.pieces["sharpness"].append(frame)
        good = place.usable.numpy()
        most = min(MOST_HEADS, int(good.sum()))
        if most:
            chosen = rows.ungrouped(selected)[:, 0, 0].numpy()[good]
            covered = layer_coverage(chosen, inside[good], most)
            alone = inside[good].sum(1) / SATURATION_N
            independent = [1 - (1 - alone.mean()) ** count for count in range(1, most + 1)]
            table = {"heads": np.arange(1, most + 1), "coverage": covered, "independent": independent}
            self.pieces["coverage"].append(pl.DataFrame(place.keys() | keyed | table))

    def _seed(self, place: _Place) -> int:
        """One for each row, the same in every run."""
        sequence = np.random.SeedSequence((self.settings.seed, place.window, place.layer, place.prefix, place.row))
        return int(sequence.generate_state(1)[0])

    def _gradient(self, place: _Place, logits: Tensor, scale: float) -> pl.DataFrame:
        frames = []
        for reading, factor in (("scaled", 1.0), ("raw", scale)):
            # With l = q.k = z / scale: g_raw(T, eps) = scale g_z(scale T, scale eps).
            temperatures, steps = [factor * t for t in TEMPERATURES], [factor * e for e in STEPS]
            found = factor * responses(logits.numpy(), temperatures, steps, self._seed(place))
            for k, step in enumerate(STEPS):
                sides = {"random": found[:, :, k, 0], "worst": found[:, :, k, 1]}
                keyed = {"reading": reading, "step": step}
                frames.append(place.frame(sides, logits.shape[-1], keyed, temperature=list(TEMPERATURES)))
        return pl.concat(frames)

    def _circle(self, place: _Place, kind: str, rows: Rows, weights: Tensor) -> None:
        """Keep the head whose picture in the plane is nearest to its own separability, the most spread of those."""
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


@dataclass(frozen=True)
class _Place:
    """Where a row stands: the keys of every table."""

    window: int
    layer: int
    prefix: int
    row: int
    position: int
    sink: Sink
    usable: Tensor

    def keys(self) -> dict[str, Any]:
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
        keys = {"position": self.position, "length": length, "head": np.repeat(heads, count)}
        return pl.DataFrame(self.keys() | (keyed or {}) | keys | lines | data, nan_to_null=True)
