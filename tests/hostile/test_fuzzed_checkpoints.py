"""Mutated configurations, tokenizers and headers: a clear error or a correct load, in bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import fuzz


@pytest.mark.parametrize("seed", [20250821])
def test_a_mutated_checkpoint_is_refused_or_loaded_right(tmp_path: Path, seed: int) -> None:
    """Faults 27 and 32; scripts/fuzz_checkpoints goes on for longer."""
    ends = fuzz(tmp_path, seed, most=60)
    assert ends.total() == 60
    assert min(ends["loaded"], ends["refused"]) > 5
