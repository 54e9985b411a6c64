"""An observation gets the calls of its own thread and of the forward that it watches, and no others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from models import VOCABULARY, build
from torch import nn
from torch.nn import functional

import attnscope
from attnscope.capture.forward import run
from attnscope.capture.torch_modules import observed as observed_torch_modules
from attnscope.errors import ModelError

TOKENS = 11


class Recorded(nn.Module):
    """Attention that reports itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x[:, None]
        attnscope.capture.record(heads, heads, heads, module=self)
        return functional.scaled_dot_product_attention(heads, heads, heads)[:, 0]


class WrittenOut(nn.Module):
    """Attention in plain torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x[:, None]
        return (torch.softmax(heads @ heads.mT, -1) @ heads)[:, 0]


def token_ids() -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (1, TOKENS), generator=torch.Generator().manual_seed(5))


def states() -> torch.Tensor:
    return torch.randn(1, TOKENS, 12, generator=torch.Generator().manual_seed(5))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 3, 7, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int]] = {
    "interface": (lambda: build("gpt2"), token_ids, 3),
    "written out": (WrittenOut, states, 1),
    "PyTorch's modules": (encoder, states, 2),
    "record": (Recorded, states, 1),
}


@contextmanager
def run_elsewhere(function: Callable[[], Any]) -> Iterator[None]:
    """Another thread that calls the function again and again, at least once before the block and once in it."""
    done, calls = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        while not done.is_set():
            function()
            calls.release()

    thread = threading.Thread(target=work)
    thread.start()
    calls.acquire()
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_a_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_calls_of_another_thread_are_not_observed(subject: str) -> None:
    """Fault 28: the other thread runs the module in the middle of the watched forward."""
    make, inputs, expected = SUBJECTS[subject]
    module, given, calls = make(), inputs(), []
    plain = torch.no_grad()(lambda: module(given))

    def observe(call: Any) -> None:
        calls.append(call.queries)
        if len(calls) <= expected:
            in_a_thread(plain)

    run(module, lambda: [in_a_thread(plain), module(given)], observe)
    assert len(calls) == expected


def test_a_scan_is_the_same_while_another_thread_runs_the_model() -> None:
    """Fault 28."""
    model, ids = build("gpt2"), token_ids()
    alone = attnscope.scan(model, inputs={"input_ids": ids}, rows="all", top_n=[3], vectors="hidden")
    with run_elsewhere(torch.no_grad()(lambda: model(ids.flip(1)[:, :7]))):
        busy = attnscope.scan(model, inputs={"input_ids": ids}, rows="all", top_n=[3], vectors="hidden")
    assert alone.rows.equals(busy.rows)
    assert alone.topn.equals(busy.topn)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_module_that_runs_in_another_thread_alone_is_an_error(subject: str) -> None:
    """Fault 28: what cannot be observed is said, not left out."""
    make, inputs, _ = SUBJECTS[subject]
    module, given = make(), inputs()
    with pytest.raises(ModelError, match="in the thread of the scan"):
        run(module, lambda: in_a_thread(torch.no_grad()(lambda: module(given))), lambda call: None)


@pytest.mark.parametrize("subject", [name for name in SUBJECTS if name != "PyTorch's modules"])
@pytest.mark.parametrize("where", ["pre-hook", "hook", "observer"])
def test_a_second_forward_inside_the_first_is_not_observed(subject: str, where: str) -> None:
    """Fault 28: a hook, or the observer itself, runs the module again."""
    make, inputs, expected = SUBJECTS[subject]
    module, given, calls, inside = make(), inputs(), [], [False]

    def again(*_: Any) -> None:
        if not inside[0]:
            inside[0] = True
            module(given)
            inside[0] = False

    if where == "pre-hook":
        module.register_forward_pre_hook(again)
    if where == "hook":
        module.register_forward_hook(again)
    run(module, given, lambda call: (calls.append(call.queries), again() if where == "observer" else None))
    assert len(calls) == expected
    calls.clear()
    run(module, given, lambda call: calls.append(call.queries))
    assert len(calls) == expected


def test_an_error_in_a_forward_leaves_no_trace() -> None:
    model, ids = build("gpt2"), token_ids()

    def fail_then_run() -> None:
        with pytest.raises(IndexError):
            model(ids + VOCABULARY)
        model(ids)

    calls: list[Any] = []
    run(model, fail_then_run, calls.append)
    assert len(calls) == 3
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


def test_modules_of_other_threads_run_as_if_nobody_observed() -> None:
    """A function mode of another thread sees the calls of PyTorch's modules, as it does without an observation."""
    module, x, seen = nn.MultiheadAttention(12, 3, batch_first=True), states(), []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def work() -> None:
        with Mode():
            module(x, x, x)

    with observed_torch_modules(module, lambda call: None):
        in_a_thread(work)
    assert functional.multi_head_attention_forward in seen
