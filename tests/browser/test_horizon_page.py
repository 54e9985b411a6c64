"""The horizon of a model in a real browser: on the map, in the panel of a head, as a finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import build, byte_tokenizer

import attnscope
from attnscope.columns import head_name


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, attnscope.Horizon]:
    text = bytes(np.random.default_rng(1).integers(97, 123, 1500, dtype=np.uint8)).decode()
    folder = tmp_path_factory.mktemp("horizon")
    sizes: dict[str, Any] = {"length": 64, "to": 256, "windows": 3, "rows": 8}
    model = build("llama-gqa")
    result = attnscope.horizon(model, text, tokenizer=byte_tokenizer(), normalizers="ssmax", out=folder, **sizes)
    return folder / "report.html", result


def test_the_horizon_is_on_the_map_in_the_panel_and_among_the_findings(
    opened: Callable[..., Any], predicted: tuple[Path, attnscope.Horizon]
) -> None:
    path, result = predicted
    layer, head, verdict = result.heads.filter(normalizer="own").select("layer", "head", "verdict").row(7)
    page = opened(f"{path.as_uri()}#head={head_name(layer, head)}")
    assert result.run["finding"]["title"] in page.locator(".finding").first.inner_text()
    assert f"Horizon: {verdict}." in page.locator(".subject").inner_text()
    figure = page.locator("figure", has_text="Top-5 mass at longer inputs")
    for words in ("90% interval", "measured in the windows", "predicted", "ssmax"):
        assert words in figure.inner_text()
    for name in ("Mass kept", "Half length", "Reach"):
        page.get_by_label("Color by").select_option(label=name)
        page.get_by_text(f"{name} of every head").first.wait_for()
