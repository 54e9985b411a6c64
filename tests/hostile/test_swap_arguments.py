"""What swap is given, and what it leaves untouched in the model."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from models import VOCABULARY, build

import attnscope
from attnscope.capture.forward import run
from attnscope.errors import InputError
from attnscope.swapping import mean_outputs, replacement as layout


def token_ids(batch: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (batch, 9), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "the mapping is empty"),
        (("ssmax", 1.5), r"layers takes whole numbers; received 1\.5"),
        (("ssmax", [0, 1.0]), "layers takes whole numbers"),
        (("ssmax", []), "layers takes whole numbers"),
        (("ssmax", True), "layers takes whole numbers"),
        (("ssmax", None, 0.0), "heads takes whole numbers"),
        (("ssmax", object()), "layers takes whole numbers"),
        (({True: "ssmax"},), "keys are a layer or"),
        (({(0, 1.0): "ssmax"},), "keys are a layer or"),
        (({None: "ssmax"},), "keys are a layer or"),
    ],
)
def test_selections_that_are_none_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attnscope.swap(build("gpt2"), *arguments)


def test_hooks_do_not_fire_in_the_trial_run_and_stay() -> None:
    """Fault 35: a counter of forwards counts the user's own alone, also after hooks were added or removed."""
    model, fired = build("gpt2"), []
    block = model.transformer.h[1]
    handles = [
        model.register_forward_pre_hook(lambda *_: fired.append("pre-hook")),
        block.attn.register_forward_hook(lambda *_: fired.append("hook")),
        block.register_forward_hook(lambda *_, **__: fired.append("last"), with_kwargs=True),
    ]
    with attnscope.swap(model, "ssmax"):
        assert fired == []
        with torch.no_grad():
            model(token_ids())
        assert fired == ["pre-hook", "hook", "last"]
    for handle in handles:
        handle.remove()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_hooks_that_transformers_adds_in_the_trial_run_stay() -> None:
    """It adds those that collect weights when they are first asked for, and remembers that it has."""
    model = build("gpt2", "eager")
    model.config.output_attentions = True
    model.transformer.register_forward_hook(lambda *_: None)
    with torch.no_grad(), attnscope.swap(model, "softmax"):
        assert len(model(token_ids()).attentions) == 3


def test_a_swap_in_another_thread_takes_no_rows_from_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 28: the trial run pauses the observers of its own thread alone."""
    model, calls = build("gpt2"), []
    trying, scanned = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        trying.set()
        scanned.wait(20)

    monkeypatch.setattr(layout, "_check", wait)
    thread = threading.Thread(target=lambda: layout.sites(model))

    def observe(call: Any) -> None:
        calls.append(call.queries)
        if len(calls) == 1:
            thread.start()
            trying.wait(20)

    run(model, token_ids(), observe)
    scanned.set()
    thread.join()
    assert calls == [9, 9, 9]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_in_float64_is_swapped(attention: str) -> None:
    """transformers' eager attention takes its softmax in float32 and rounds; its formula is the same."""
    model, ids = build("llama-gqa", attention).double(), token_ids()
    with torch.no_grad():
        plain = model(ids).logits
        with attnscope.swap(model, "softmax"):
            swapped = model(ids).logits
    torch.testing.assert_close(swapped, plain, rtol=1e-5, atol=1e-5)


def test_mean_outputs_leave_out_rows_of_padding() -> None:
    """Fault 2: rows behind the last token of a causal model see keys, and are padding all the same."""
    model, ids = build("gpt2"), token_ids()
    padded = torch.cat([ids, ids[:, :4]], 1)
    mask = torch.ones_like(padded)
    mask[:, 9:] = 0
    alone = mean_outputs(model, [{"input_ids": ids}])
    behind = mean_outputs(model, [{"input_ids": padded, "attention_mask": mask}])
    assert alone.keys() == behind.keys()
    for head, output in alone.items():
        torch.testing.assert_close(behind[head], output, rtol=1e-4, atol=1e-5)
