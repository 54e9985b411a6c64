"""Every family of the table: rebuilt weights are the model's own, and watching it changes nothing.

`make families` writes docs/families.md from the same findings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from examine import TOLERANCE, examine, examine_padded
from families import FAMILIES, HEADS, tiny_model

import attnscope

TABLE = Path(__file__).parents[2] / "docs" / "families.md"
MEASURED = [family for family in FAMILIES if not re.search(rf"^\| {family} .*refused", TABLE.read_text("utf-8"), re.M)]
# Latent attention (one latent, expanded to every head) and written-out attention have a key for each head.
ONE_KEY_A_HEAD = {HEADS}
# One for each way in which heads, positions, masks or kernels differ; the others run with --all.
USUAL = {
    "bart",  # cross attention
    "bert",  # an encoder
    "bloom",  # ALiBi
    "deepseek_v3",  # latent attention
    "diffllama",  # differences of two maps
    "gemma2",  # softcap and windows
    "gpt2",  # learned positions
    "gpt_oss",  # sinks
    "gptj",  # written-out attention
    "llama",  # rotary positions, groups of heads
    "longformer",  # refused
    "qwen3_next",  # layers without attention
    "t5",  # a learned bias
}


def families(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in USUAL else pytest.mark.thorough) for name in names]


@pytest.mark.parametrize("family", families(FAMILIES))
def test_a_scan_sees_what_the_model_computes(family: str) -> None:
    """Faults 7, 8 and 9."""
    found = examine(family)
    assert found.line in TABLE.read_text("utf-8").splitlines(), f"run make families: {found.line}"
    if found.route.startswith("refused"):
        return
    assert found.worst < TOLERANCE
    assert found.same_output, "the output is not bit-identical while the model is watched"
    assert found.kernel < TOLERANCE
    heads, groups = found.defined
    assert found.heads == heads
    assert found.groups == groups or found.groups == ONE_KEY_A_HEAD
    says, shows = found.causal
    assert shows or not says, "a query sees a later key although the model is taken for causal"
    assert found.largest > 1.5 / 23, "uniform attention would pass any comparison"


@pytest.mark.parametrize("family", families(MEASURED))
def test_rows_of_a_padded_batch_are_those_of_the_model(family: str) -> None:
    """Faults 2, 3 and 29: left, right and mixed padding; a decoder is padded on other sides than its encoder."""
    found = examine_padded(family)
    assert found.worst < TOLERANCE
    assert (found.lost, found.kept, found.counted) == (0, 0, 0)


def test_the_table_lists_the_families_that_are_tested() -> None:
    assert set(FAMILIES) >= USUAL
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line.startswith("| ") and "`" in line]
    assert [line.split("|")[1].strip() for line in lines] == FAMILIES
    assert sum("refused" not in line for line in lines) >= 60


@pytest.mark.parametrize("family", ["gptj", "codegen", "mpt", "bloom", "falcon", "opt", "llama"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_a_16_bit_model_see_the_keys_before_them_alone(family: str, dtype: torch.dtype) -> None:
    """Some families add the mask of the 16-bit type to scores of float32."""
    model = tiny_model(family).to(dtype)
    ids = torch.arange(3, 14)[None]
    rows = attnscope.scan(model, inputs={"input_ids": ids}, rows="all", top_n=[3]).rows
    assert rows["length"].to_list() == (rows["position"] + 1).to_list()
    assert rows["logit_range"].max() < 100
