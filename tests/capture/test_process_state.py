"""Loading a model and observing it leave the process as it was."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import pytest
import torch
from huggingface_hub.utils import logging as hub_logs
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from models import VOCABULARY, build
from tqdm.auto import tqdm
from transformers import modeling_gguf_pytorch_utils as gguf
from transformers.modeling_utils import AttentionInterface
from transformers.utils import logging as logs

import attnscope
from attnscope.capture.forward import run
from attnscope.capture.loading import quiet


def progress_and_logs() -> tuple[Any, ...]:
    return (
        logs.get_verbosity(),
        hub_logs.get_verbosity(),
        logs.is_progress_bar_enabled(),
        are_progress_bars_disabled(),
    )


@pytest.mark.parametrize("hub_bars", [True, False])
@pytest.mark.parametrize("bars", [True, False])
def test_logs_and_progress_bars_are_restored(bars: bool, hub_bars: bool) -> None:
    """Fault 35."""
    original = progress_and_logs()
    try:
        (logs.enable_progress_bar if bars else logs.disable_progress_bar)()
        (enable_progress_bars if hub_bars else disable_progress_bars)()
        before = progress_and_logs()
        with quiet():
            assert progress_and_logs() == (logging.ERROR, logging.ERROR, False, True)
            assert list(gguf.tqdm([1, 2], desc="a GGUF file")) == [1, 2]
        assert progress_and_logs() == before
        assert gguf.tqdm is tqdm
    finally:
        (logs.enable_progress_bar if original[2] else logs.disable_progress_bar)()
        (disable_progress_bars if original[3] else enable_progress_bars)()


def test_observing_and_swapping_change_nothing_that_stays() -> None:
    """Fault 35."""
    model, ids = build("gpt2"), torch.arange(9)[None] % VOCABULARY

    def state() -> tuple[Any, ...]:
        return (
            dict(AttentionInterface._global_mapping),
            torch.nn.MultiheadAttention.forward,
            dict(os.environ),
            list(warnings.filters),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
        )

    before = state()
    attention = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    run(attention, (torch.ones(1, 5, 6),) * 3, lambda call: None)
    with attnscope.swap(model, "ssmax"):
        run(model, {"input_ids": ids}, lambda call: None)
    assert state() == before
