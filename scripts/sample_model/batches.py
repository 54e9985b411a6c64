"""The windows that the sample model is trained on: text, text with a passage copied, and repeated random tokens.

Induction heads form from repetition. CPython's documentation has little of it at a distance that varies, so a share of
the windows is synthetic: a run of random tokens, repeated until the window is full. The period differs from window to
window, so no fixed distance predicts the next token; only looking up the last occurrence of the current token does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SHORTEST_PERIOD = 4
SHORTEST_COPY = 8
COPIED_SHARE = 0.2  # of the text windows
UNPREDICTABLE = -100  # the label that cross entropy ignores


class Stage(NamedTuple):
    """A part of the training."""

    tokens: int
    window: int
    tokens_per_step: int
    random_share: float  # of windows that are repeated random tokens
    longest_period: int
    rates: tuple[float, float]  # factors of the learning rates, linear from the first to the last
    slow_heads: int  # of each of the last two layers: their queries and keys take a share of each step
    slow_rate: float  # that share


# Short periods first: with them an induction head forms within 300 steps, with periods of up to 32 not in 1,000.
STAGES = (
    Stage(660_000, 32, 2048, 0.6, 12, (1, 1), 6, 0.05),
    Stage(990_000, 64, 2048, 0.5, 32, (1, 1), 6, 0.05),
    Stage(3_300_000, 128, 4096, 0.3, 64, (1, 1), 6, 0.05),
    Stage(1_100_000, 256, 4096, 0.25, 128, (1, 1), 6, 0.05),
    Stage(2_750_000, 256, 4096, 0.25, 128, (1, 0.46), 3, 0.01),
    Stage(2_200_000, 1024, 4096, 0.25, 512, (0.46, 0.03), 3, 0.01),
)


def batch(tokens: Tensor, vocabulary: int, stage: Stage, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows and their labels, each of shape (windows, tokens)."""
    count = stage.tokens_per_step // stage.window
    repeated = round(count * stage.random_share)
    text = text_windows(tokens, count - repeated, stage.window, generator)
    random, labels = random_windows(vocabulary, repeated, stage, generator)
    return torch.cat([random, text]), torch.cat([labels, text])


def text_windows(tokens: Tensor, count: int, window: int, generator: torch.Generator) -> Tensor:
    """Random windows of the text; in some, a passage is written once more over a later one."""
    starts = torch.randint(len(tokens) - window, (count, 1), generator=generator)
    windows = tokens[starts + torch.arange(window)]
    for row in windows:
        if window < 4 * SHORTEST_COPY + 4 or torch.rand(1, generator=generator) >= COPIED_SHARE:
            continue
        length = int(torch.randint(SHORTEST_COPY, window // 4, (1,), generator=generator))
        source = int(torch.randint(window - 2 * length, (1,), generator=generator))
        target = int(torch.randint(source + length, window - length + 1, (1,), generator=generator))
        row[target : target + length] = row[source : source + length].clone()
    return windows


def random_windows(vocabulary: int, count: int, stage: Stage, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random tokens repeated with a random period; the first occurrence, which is chance, has no labels."""
    position = torch.arange(stage.window)
    period = torch.randint(SHORTEST_PERIOD, stage.longest_period + 1, (count, 1), generator=generator)
    once = torch.randint(1, vocabulary, (count, stage.window), generator=generator)
    windows = once.gather(1, position % period)
    return windows, torch.where(position < period, UNPREDICTABLE, windows)
