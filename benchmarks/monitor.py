"""The cost of watching a training run: steps of two equal models in turn, one of them with a monitor.

Both are GPT-2-like with dropout, start with the same weights and random state and see the same batches. First the
monitor measures every `every`-th step, as it does in a real run; then every step. Their losses, gradients and weights
are compared bit by bit. Peak memory of a training step above the loaded model is measured in processes of its own
(`resident.py`).
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from attnscope.errors import whole_number
from attnscope.options import WholeNumber
from attnscope.progress import Step, reporting
from benchmarks.options import Hidden
from benchmarks.resident import resident_peak, run_with_plain_allocator
from benchmarks.timing import check_size, in_own_process

_VOCABULARY = 8192
_WARM_UP = 3  # steps that are not timed


class Seconds(NamedTuple):
    """Time on the clock, and time of all processors, which depends less on what else the machine does."""

    wall: float
    cpu: float


class Training:
    """A model that is trained step by step, with a random state of its own."""

    def __init__(self, size: dict[str, int], every: int | None) -> None:
        import transformers

        import attnscope

        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_positions=size["length"],
            n_layer=size["layers"],
            n_head=size["heads"],
            n_embd=size["width"],
            vocab_size=_VOCABULARY,
            bos_token_id=0,
            eos_token_id=0,
        )
        self._shape = size["batch"], size["length"]
        self.model = transformers.GPT2LMHeadModel(config).train()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batches = torch.Generator().manual_seed(1)
        self._random_state = torch.get_rng_state()
        self.monitor = None if every is None else attnscope.Monitor(self.model, every=every)
        self.losses: list[float] = []

    def watch(self, every: int) -> None:
        """Go on with another monitor, which measures more or less often."""
        import attnscope

        if self.monitor is not None:
            self.monitor.close()
            self.monitor = attnscope.Monitor(self.model, every=every)

    def step(self) -> Seconds:
        """One optimizer step; how long it took."""
        ids = torch.randint(_VOCABULARY, self._shape, generator=self._batches)
        torch.set_rng_state(self._random_state)
        begin = time.perf_counter(), time.process_time()
        self._step(ids)
        seconds = Seconds(time.perf_counter() - begin[0], time.process_time() - begin[1])
        self._random_state = torch.get_rng_state()
        return seconds

    def _step(self, ids: torch.Tensor) -> None:
        logits = self.model(input_ids=ids).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())
        if self.monitor is not None:
            self.monitor.step()

    def tensors(self) -> list[torch.Tensor]:
        """Weights, gradients and random state."""
        parameters = list(self.model.parameters())
        return [*parameters, *(each.grad for each in parameters if each.grad is not None), self._random_state]


def measure(
    *,
    length: WholeNumber = 512,
    layers: WholeNumber = 6,
    heads: WholeNumber = 6,
    width: WholeNumber = 384,
    batch: WholeNumber = 4,
    every: WholeNumber = 50,
    steps: WholeNumber = 100,
    measured: WholeNumber = 15,
    progress: Hidden = None,
) -> dict[str, Any]:
    """Time training steps with and without `attnscope.Monitor`, and check that both do the same.

    For example:

    - `python -m benchmarks monitor`
    - `python -m benchmarks monitor --steps 300 --json`

    Parameters
    ----------
    length
        Tokens of each item.
    layers
        Layers of the GPT-2-like model with random weights.
    heads
        Heads of a layer.
    width
        Width of the model.
    batch
        Items of a batch.
    every
        The monitor measures the first step and every one with a multiple of this number.
    steps
        Steps that are timed in this way, with and without the monitor in turn.
    measured
        Steps that are timed after them, all of them measured.
    """
    check_size(length, layers, heads, width, measured)
    for name, value in {"batch": batch, "every": every, "steps": steps}.items():
        whole_number(name, value, 1)
    size = {"length": length, "layers": layers, "heads": heads, "width": width, "batch": batch}
    with reporting(progress) as report:
        report(Step(0, 3, "time"))
        times = in_own_process(_times, size, every, steps, measured)
        peaks = []
        for done, watched in enumerate((False, True), 1):
            report(Step(done, 3, "memory"))
            arguments = size | {"watched": watched, "threads": torch.get_num_threads()}
            peaks.append(run_with_plain_allocator(__name__, arguments))
    plain, with_monitor = peaks
    return {
        "benchmark": "monitor",
        "size": size,
        "every": every,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **times,
        "peak_bytes": with_monitor,
        "plain_peak_bytes": plain,
        "memory_ratio": None if plain is None else round(with_monitor / plain, 4),
    }


def _times(size: dict[str, int], every: int, steps: int, measured: int) -> dict[str, Any]:
    plain, watched = Training(size, None), Training(size, every)
    for _ in range(_WARM_UP):
        plain.step()
        watched.step()
    watched.watch(every)
    whole = _in_turn(plain, watched, steps)
    # The first step and every `every`-th one are measured.
    rest = [pair for number, pair in enumerate(whole, 1) if number > 1 and number % every]
    watched.watch(1)
    each = _in_turn(plain, watched, measured)
    pairs = zip(plain.tensors(), watched.tensors(), strict=True)
    return {
        "parameters": sum(parameter.numel() for parameter in plain.model.parameters()),
        "step_seconds": round(statistics.median(one.wall for one, _ in whole), 4),
        "training": {
            f"{clock}_ratio": round(
                sum(getattr(two, clock) for _, two in whole) / sum(getattr(one, clock) for one, _ in whole), 4
            )
            for clock in Seconds._fields
        },
        "measured_step": _ratios(each),
        "unmeasured_step": _ratios(rest) if rest else None,
        "identical": plain.losses == watched.losses and all(torch.equal(*pair) for pair in pairs),
        "errors": 0 if watched.monitor is None else watched.monitor.errors,
    }


def _in_turn(plain: Training, watched: Training, steps: int) -> list[tuple[Seconds, Seconds]]:
    """Times of the steps of both models, which of them goes first in turn."""
    gc.collect()
    times = []
    for number in range(steps):
        if number % 2:
            times.append((plain.step(), watched.step()))
        else:
            second = watched.step()
            times.append((plain.step(), second))
    return times


def _ratios(pairs: list[tuple[Seconds, Seconds]]) -> dict[str, Any]:
    """The median ratio of the second time to the first on both clocks, and the quartiles of that on the wall."""
    ratios = {clock: [getattr(two, clock) / getattr(one, clock) for one, two in pairs] for clock in Seconds._fields}
    low, _, high = statistics.quantiles(ratios["wall"] * 2, n=4, method="inclusive")
    medians = {f"{clock}_ratio": round(statistics.median(some), 4) for clock, some in ratios.items()}
    return medians | {"quartiles": [round(low, 4), round(high, 4)]}


def _peak(size: dict[str, int], watched: bool) -> int | None:
    training = Training(size, 1 if watched else None)
    for _ in range(_WARM_UP):
        training.step()
    return resident_peak(training.step)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given.pop("threads"))
    print(json.dumps(_peak(given, given.pop("watched"))))
