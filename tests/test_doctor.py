"""`attnscope doctor`: its checks pass on sound models, and fail where something is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from families import tiny_model
from models import build
from transformers.modeling_utils import AttentionInterface

from attnscope import cli
from attnscope.capture import attention
from attnscope.capture.models import Model
from attnscope.doctor import Examination, examine


def examined(module: Any) -> Examination:
    return examine(Model(module, None, "tiny", None))


def verdicts(report: Examination) -> dict[str, str]:
    return {check.name: check.verdict for check in report.checks}


def text(report: Examination, name: str) -> str:
    return next(check.text for check in report.checks if check.name == name)


EAGER = ("gemma2-softcap", "gpt-oss-sinks")  # transformers has no other kernel for them


@pytest.mark.parametrize("family", ["gpt2", "llama-gqa", "mistral-window", *EAGER])
def test_a_sound_model_passes(family: str) -> None:
    module = build(family, "eager" if family in EAGER else "sdpa")
    before = module.config._attn_implementation
    report = examined(module)
    assert report.passed, report.checks
    assert module.config._attn_implementation == before


@pytest.mark.parametrize("family", ["bert", "bart", "t5", "bloom"])
def test_encoders_decoders_and_written_out_attention_pass(family: str) -> None:
    report = examined(tiny_model(family))
    assert report.passed, report.checks


def test_what_cannot_be_compared_is_said() -> None:
    """Falcon chooses its kernel when it is built, and calls torch's function, which returns no weights."""
    report = examined(tiny_model("falcon"))
    assert report.passed
    assert verdicts(report)["one sequence"] == "note"
    assert "not compared" in text(report, "one sequence")


def test_features_are_named() -> None:
    assert "sinks" in text(examined(build("gpt-oss-sinks", "eager")), "logits")
    report = examined(build("gemma2-softcap", "eager"))
    assert "softcap" in text(report, "logits")
    assert "sliding window of 17" in text(report, "logits")
    assert "6 heads, 2 of keys and values" in text(examined(build("llama-gqa")), "layers")


def test_weights_that_are_not_the_models_own_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that forgets the scale must not pass."""
    rebuild = attention.rebuild_logits
    monkeypatch.setattr(attention, "rebuild_logits", lambda *args, scale, **options: rebuild(*args, scale=1, **options))
    report = examined(build("llama-gqa"))
    assert {name for name, verdict in verdicts(report).items() if verdict == "fail"} == {"one sequence", "padded batch"}


def test_padding_that_is_not_told_apart_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnscope import doctor

    monkeypatch.setattr(doctor, "unpadded", lambda call: list(range(call.queries)))
    report = examined(tiny_model("bert"))
    assert verdicts(report)["padded batch"] == "fail"
    assert "padding" in text(report, "padded batch")


def test_a_kernel_of_another_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def patched(*args: Any, **options: Any) -> Any:
        return sdpa(*args, **options)

    sdpa = AttentionInterface._global_mapping["sdpa"]
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", patched)
    report = examined(build("gpt2"))
    assert report.passed
    assert f"'sdpa' is {__name__}" in text(report, "patches")


def test_a_model_without_softmax_attention_fails_by_name() -> None:
    report = examined(tiny_model("mamba"))
    assert verdicts(report)["attention"] == "fail"
    assert "no softmax attention" in text(report, "attention")


def test_positions_without_a_limit_are_said_to_have_none() -> None:
    """XLNet's configuration says -1."""
    assert text(examined(tiny_model("xlnet")), "positions") == "no limit in its configuration"


def test_the_command_prints_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 24
    assert "bit-identical while observed" in " ".join(shown.split())


def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert {"model", "positions", "memory", "versions", "output"} <= {check["name"] for check in report["checks"]}


def test_a_bfloat16_model_passes() -> None:
    assert examined(build("llama-gqa").to(torch.bfloat16)).passed


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("llama", "heads sum to their layer"),
        ("qwen3_next", "a gate"),
        ("bitnet", "a norm of each head"),
        ("gemma2", "a norm of their sum"),
    ],
)
def test_what_heads_add_is_summed_up(family: str, says: str) -> None:
    report = examined(tiny_model(family))
    assert verdicts(report)["effects"] == "pass"
    said = text(report, "effects")
    assert says in said
    assert float(said.split("within ")[1].split(",")[0]) < 1e-5


def test_effects_that_cannot_be_measured_are_named() -> None:
    report = examined(tiny_model("diffllama"))
    assert verdicts(report)["effects"] == "note"
    assert "DiffLlamaAttention (layers.0.self_attn) combines" in text(report, "effects")


def test_a_model_of_zeros_passes() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert examined(model).passed
