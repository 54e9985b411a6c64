"""Models as people keep them: adapters, packed weights, weights elsewhere. Oracle: the model's own eager weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import build, byte_tokenizer

from attnscope.capture.loading import weights_digest
from attnscope.capture.models import load_model
from attnscope.scanning import ScanResult, scan

LENGTH = 33
HERE = ("transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.ln_f", "lm_head")
SPREAD = dict.fromkeys(HERE, "cpu") | {"transformer.h.1": "disk", "transformer.h.2": "disk"}


def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, for the package that is to take this over
        return torch.ao.quantization.quantize_dynamic(build("llama-gqa"), {torch.nn.Linear}, dtype=torch.qint8)


def check_rows(result: ScanResult, model: Any, text: str) -> None:
    """Spread of every row against the weights that the model hands out itself."""
    ids = torch.tensor([byte_tokenizer()(text)["input_ids"][:LENGTH]])
    kernel = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(input_ids=ids, output_attentions=True).attentions
    model.set_attn_implementation(kernel)
    assert result.rows.height > 0
    for line in result.rows.iter_rows(named=True):
        own = attentions[line["layer"]][0, line["head"], line["position"], : line["length"]].double().numpy()
        assert line["max_weight"] == pytest.approx(own.max(), rel=1e-4)
        assert line["participation"] == pytest.approx(1 / (own**2).sum(), rel=1e-4)
        assert line["entropy"] == pytest.approx(-(own * np.log(own)).sum(), rel=1e-4)


@pytest.mark.parametrize("vectors", ["value", "output"])
@pytest.mark.parametrize(
    ("family", "targets"), [("gpt2", ["c_attn", "c_proj"]), ("llama-gqa", ["q_proj", "v_proj", "o_proj"])]
)
def test_an_adapter_of_peft_is_measured_as_if_merged(
    family: str, targets: list[str], vectors: Any, text: str, tmp_path: Path
) -> None:
    """Fault 10."""
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        config = peft.LoraConfig(r=3, target_modules=targets, init_lora_weights=False, fan_in_fan_out=family == "gpt2")
        torch.manual_seed(0)
        return peft.get_peft_model(build(family).double(), config).double().eval()

    options: Any = {"tokenizer": byte_tokenizer(), "length": LENGTH, "rows": 5, "top_n": [1, 3], "vectors": vectors}
    wrapped = scan(adapted(), text, out=tmp_path / "run", **options)
    merged = scan(adapted().merge_and_unload(), text, **options)
    for mine, other in ((wrapped.rows, merged.rows), (wrapped.topn, merged.topn)):
        numbers = [name for name in mine.columns if name != "normalizer"]
        np.testing.assert_allclose(mine[numbers].to_numpy(), other[numbers].to_numpy(), rtol=1e-7, atol=1e-10)
    plain = scan(build(family).double(), text, **options)
    assert not np.allclose(plain.rows["entropy"], wrapped.rows["entropy"], rtol=1e-4)


@pytest.mark.parametrize("vectors", ["value", "output", "hidden"])
def test_packed_weights_are_scanned_and_saved(vectors: Any, text: str, tmp_path: Path) -> None:
    """Fault 10: int8."""
    model = quantized()
    options: Any = {"tokenizer": byte_tokenizer(), "length": LENGTH, "rows": 5, "top_n": [3], "vectors": vectors}
    result = scan(model, text, out=tmp_path / "run", bounds="paper", **options)
    check_rows(result, model, text)
    assert result.topn.null_count().sum_horizontal().item() == 0


@pytest.mark.parametrize("place", ["auto", {"": "cpu"}, SPREAD], ids=["auto", "cpu", "partly on disk"])
def test_a_device_map_changes_no_number(place: Any, model_folder: Path, text: str, tmp_path: Path) -> None:
    """Fault 10: spread over devices, memory and disk."""
    options: Any = {"length": LENGTH, "rows": 5, "top_n": [3], "vectors": "output", "windows": 2, "bounds": "paper"}
    whole = scan(model_folder, text, **options)
    spread = scan(model_folder, text, device_map=place, out=tmp_path / "run", **options)
    assert spread.rows.equals(whole.rows)
    assert spread.topn.equals(whole.topn)
    assert ("offloaded" in spread.run["model"]["device"]) == (place is SPREAD)


def test_the_digest_reads_weights_wherever_they_are(model_folder: Path, tmp_path: Path) -> None:
    """Two runs may share windows only if their weights agree: also where the model has only empty places."""
    from accelerate import cpu_offload, disk_offload

    def offloaded(how: Any, change: float, *more: Any) -> str:
        model = load_model(model_folder).module
        with torch.no_grad():
            model.transformer.h[1].attn.c_attn.weight.mul_(1 + change)
        how(model, *more, execution_device=torch.device("cpu"))
        assert any(parameter.is_meta for parameter in model.parameters())
        return weights_digest(model)

    plain = weights_digest(load_model(model_folder).module)
    assert weights_digest(load_model(model_folder, device_map=SPREAD).module) == plain
    assert offloaded(disk_offload, 0, str(tmp_path / "same")) == plain
    assert offloaded(disk_offload, 1e-3, str(tmp_path / "other")) != plain
    assert offloaded(cpu_offload, 0) == plain
    assert offloaded(cpu_offload, 1e-3) != plain


def test_the_digest_reads_packed_weights() -> None:
    one, same, other = quantized(), quantized(), quantized()
    linear = other.model.layers[1].mlp.up_proj
    weight = linear.weight().dequantize() * 1.5
    scales = torch.quantize_per_tensor(weight, float(weight.abs().max()) / 127, 0, torch.qint8)
    linear.set_weight_bias(scales, linear.bias())
    assert weights_digest(one) == weights_digest(same)
    assert weights_digest(one) != weights_digest(other)
