"""Training runs for the tests: hand-made, of any size, with numbers that can be told apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from attnscope.monitor.run_files import HEADS, MEASURES, TrainingFiles, now

RECORD: dict[str, Any] = {
    "status": "running",
    "attnscope": "0.2.0",
    "model": {"name": "tiny-gpt2", "class": "GPT2LMHeadModel", "layers": 3, "heads": 15},
    "settings": {"every": 50, "rows": 16, "sequences": 1, "top_n": 20},
    "thresholds": {"collapse_entropy": 0.1, "dilution_entropy": 0.97},
    "versions": {"python": "3.11"},
    "errors": 0,
    "last_error": None,
    "steps": 0,
    "measured": 0,
}


def measured_step(step: int, layers: int = 3, heads: int = 5, seed: int = 0) -> pl.DataFrame:
    """The lines of one measured step: one head collapses, one goes to the first key, one stays dilute."""
    random = np.random.default_rng((seed, step))
    progress = 1 - math.exp(-step / 2000)
    lines = []
    for layer in range(layers):
        for head in range(heads):
            slow = 0.3 + 0.7 * ((layer * heads + head) % 7) / 7
            entropy = float(np.clip(0.98 - 0.6 * progress * slow + random.normal(0, 0.01), 0, 1))
            weight = float(np.clip(0.02 + 0.5 * progress * slow + random.normal(0, 0.01), 0, 1))
            sink = float(np.clip(0.05 + 0.3 * progress * slow, 0, 1))
            if (layer, head) == (1, 2) and step > 3000:
                entropy, weight = 0.02, 0.99
            if (layer, head) == (2, 0):
                sink, entropy, weight = 0.05 + 0.93 * progress, 0.9 - 0.8 * progress, 0.05 + 0.93 * progress
            if (layer, head) == (0, 4):
                entropy, weight = 0.99, 0.01
            values = {
                "max_logit": 2 + 20 * progress * slow + 30 * weight,
                "logit_std": 0.3 + 2 * progress * slow,
                "entropy_ratio": entropy,
                "max_weight": weight,
                "participation": 1 / max(weight, 0.004),
                "sink_weight": sink,
                "top_mass": min(1.0, weight + 0.3),
                "separability": float(np.clip(0.1 + 0.6 * progress * slow, 0, 1)),
                "null_random": 0.08,
                "jacobian_norm": weight * (1 - weight),
                "jacobian_bound": min(0.5, 2 * weight * (1 - weight)),
            }
            lines.append({"step": step, "layer": layer, "head": head, "rows": 16, "length": 256.0, **values})
    table = pl.DataFrame(lines, schema=HEADS)
    assert set(MEASURES) <= set(table.columns)
    return table


def made_alarm(step: int, layer: int = 1, head: int = 2, kind: str = "entropy-collapse") -> dict[str, Any]:
    advice = "lower the learning rate, or bound the logits (query-key normalization, a softcap) <b>now</b>"
    return {
        "step": step,
        "layer": layer,
        "head": head,
        "kind": kind,
        "value": 0.02,
        "limit": 0.1,
        "advice": advice,
    }


class Training:
    """A training run at work: its folder grows with every `measure`."""

    def __init__(self, folder: Path, layers: int = 3, heads: int = 5, **record: Any) -> None:
        self.layers, self.heads = layers, heads
        self.files = TrainingFiles(folder)
        self.record = RECORD | {"started": now()} | record
        self.files.write_record(self.record)

    def measure(self, step: int, alarms: tuple[dict[str, Any], ...] = ()) -> None:
        self.files.add_table("heads", measured_step(step, self.layers, self.heads))
        loss = 4 * math.exp(-step / 3000) + 1 + 0.1 * math.sin(step)
        self.files.add_lines("scalars", [{"step": step, "name": "loss", "value": loss}])
        self.files.add_lines("alarms", alarms)
        self.record = self.record | {"steps": step, "measured": self.record["measured"] + 1}
        self.files.write_record(self.record)

    def finish(self) -> None:
        self.files.write_record(self.record | {"status": "finished"})
        self.files.close()


def made_training(folder: Path, steps: int = 100, **options: Any) -> Path:
    """A finished run of `steps` measured steps, every 50; L1H2 collapses after step 3,000 with one alarm."""
    training = Training(folder, **options)
    for step in range(50, 50 * steps + 1, 50):
        training.measure(step, (made_alarm(step),) if step == 3050 else ())
    training.finish()
    return folder
