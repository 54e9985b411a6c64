"""A monitor refuses at set-up or never harms the run (Faults 24 and 33)."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model
from models import build
from torch import nn
from training import HEADS, SUBJECTS, CustomAttention, OnTokens, batches, gpt2, loss_of, train

import attnscope
from attnscope.errors import InputError, ModelError, OutputError
from attnscope.monitor import run_files

# Refused at set-up


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.mT, -1) @ x


class UsesHelper(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper(self.layer(x))


def compiled_in_place() -> nn.Module:
    model = gpt2()
    model.compile(backend="eager")
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "no module": (lambda: "gpt2", "takes the model that is trained, a torch.nn.Module; received 'gpt2'"),
    "no attention": (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "no attention was found in Sequential"),
    "no attention, custom code": (Perceptron, "no attention was found in Perceptron"),
    "no attention, transformers": (lambda: tiny_model("mamba"), "no attention was found in MambaForCausalLM"),
    "compiled": (lambda: torch.compile(gpt2(), backend="eager"), "is compiled .* train the model uncompiled"),
    "compiled in place": (compiled_in_place, "GPT2LMHeadModel is compiled"),
    "threads": (lambda: nn.DataParallel(gpt2()), "use DistributedDataParallel"),
    "no weights": (lambda: gpt2().to("meta"), "on the meta device"),
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_watched_is_refused_when_the_monitor_is_made(what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises((InputError, ModelError), match=message):
        attnscope.Monitor(make())


def test_a_kernel_whose_mask_cannot_be_read_is_refused() -> None:
    model = gpt2()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ModelError, match="'flex_attention', whose mask attnscope cannot read"):
        attnscope.Monitor(model)


@pytest.mark.parametrize("name", ["FullyShardedDataParallel", "DeepSpeedEngine"])
def test_wrappers_that_shard_weights_in_their_own_way_are_refused(name: str) -> None:
    wrapper: Any = type(name, (OnTokens,), {})
    with pytest.raises(ModelError, match=r"cannot be watched.*FSDP2"):
        attnscope.Monitor(wrapper(CustomAttention("sdpa")))


@pytest.mark.parametrize("setting", ["every", "rows", "sequences"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3"])
def test_settings_that_mean_nothing_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{setting} takes a whole number from 1 up; received {value!r}"):
        attnscope.Monitor(gpt2(), **{setting: value})


def test_other_arguments_are_checked() -> None:
    with pytest.raises(InputError, match="thresholds takes"):
        attnscope.Monitor(gpt2(), thresholds=attnscope.Thresholds())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="on_alarm takes a function"):
        attnscope.Monitor(gpt2(), on_alarm="print")  # type: ignore[arg-type]


def test_attention_in_a_function_that_a_module_calls_is_found() -> None:
    model = UsesHelper().train()
    monitor = attnscope.Monitor(model, every=1)
    model(torch.randn(2, 1, 30, 4)).sum().backward()
    monitor.step()
    assert monitor.heads.height == 1


def test_a_second_monitor_on_one_model_is_refused_until_the_first_is_closed() -> None:
    model = gpt2()
    first = attnscope.Monitor(model)
    for part in (model, model.transformer, nn.Sequential(model)):
        with pytest.raises(InputError, match=r"has a monitor already .* close it first"):
            attnscope.Monitor(part)
    attnscope.Monitor(gpt2()).close()
    first.close()
    attnscope.Monitor(model).close()


def test_a_folder_of_another_kind_of_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    attnscope.scan(build("gpt2"), inputs={"input_ids": next(batches(1))}, out=tmp_path, top_n=[3], progress=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    model = gpt2()
    with pytest.raises(OutputError, match="another kind of run"):
        attnscope.Monitor(model, out=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    attnscope.Monitor(model).close()  # it was not left marked as watched


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to the output folder"):
        attnscope.Monitor(gpt2(), out=tmp_path / "file" / "run")


# Never harms


def test_a_failure_while_measuring_is_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from attnscope.monitor import measuring

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("in layer 3")

    plain = train(gpt2(), 4)
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1)
    monkeypatch.setattr(measuring, "_add_block", fail)
    assert train(model, 4, monitor).same_bits(plain)
    assert monitor.errors == 8  # two layers, four steps
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "training goes on: ZeroDivisionError: in layer 3" in caplog.text


@pytest.mark.parametrize("subject", SUBJECTS)
def test_capture_that_fails_leaves_the_forward_alone(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnscope.capture import watching

    def fail(*arguments: Any) -> None:
        raise ModelError("cannot be read")

    plain = train(SUBJECTS[subject](), 2)
    model = SUBJECTS[subject]()
    monitor = attnscope.Monitor(model, every=1)
    monkeypatch.setattr(watching.WatchedForward, "complete", fail)
    assert train(model, 2, monitor).same_bits(plain)
    assert monitor.errors > 0
    assert monitor.heads.height == 0


def test_arguments_of_record_that_do_not_fit_stop_a_scan_and_not_a_training_step() -> None:
    class Wrong(CustomAttention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            attnscope.capture.record(x, x, x)
            return super().forward(x)

    model = OnTokens(Wrong("sdpa")).train()
    with pytest.raises(InputError, match="record takes query"):
        attnscope.scan(model, inputs=next(batches(1)), progress=False)
    monitor = attnscope.Monitor(model, every=1)
    train(model, 1, monitor)
    assert monitor.heads.height == HEADS
    assert "record takes query" in str(monitor.last_error)


def test_a_kernel_that_becomes_unreadable_is_reported_and_training_goes_on() -> None:
    from transformers.modeling_utils import AttentionInterface

    model = gpt2()
    monitor = attnscope.Monitor(model, every=1)
    AttentionInterface.register("mine", AttentionInterface._global_mapping["sdpa"])
    try:
        model.config._attn_implementation = "mine"
        train(model, 2, monitor)
    finally:
        del AttentionInterface._global_mapping["mine"]
    assert monitor.heads.height == 0
    assert monitor.errors > 0


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_is_compiled_later_is_left_alone_and_reported(
    in_place: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    plain = train(torch.compile(gpt2(), backend="eager"), 3)
    torch._dynamo.reset()
    model: Any = gpt2()
    monitor = attnscope.Monitor(model, every=1)
    if in_place:
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    assert train(model, 3, monitor).same_bits(plain)
    assert monitor.heads.height == 0
    logged = [record.getMessage() for record in caplog.records if record.name == "attnscope.monitor"]
    assert len(logged) <= 2
    assert all("compiled" in message for message in logged)
    torch._dynamo.reset()


def test_a_full_disk_does_not_stop_training_and_steps_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1, out=tmp_path / "run")
    write_all = run_files.write_all

    def full(*arguments: Any) -> None:
        raise OutputError(errno.ENOSPC, "No space left on device")

    train(model, 1, monitor)
    monkeypatch.setattr(run_files, "write_all", full)
    train(model, 2, monitor)
    assert monitor.errors == 2
    monkeypatch.setattr(run_files, "write_all", write_all)
    train(model, 1, monitor)
    monitor.close()
    assert attnscope.monitor.load(tmp_path / "run").heads["step"].unique().to_list() == [1, 2, 3, 4]
    assert attnscope.monitor.load(tmp_path / "run").run["errors"] == 2


def test_a_step_that_goes_backwards_is_refused_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1)
    for number in (1, 2, 2, 1, 3):
        loss_of(model, next(batches(1))).backward()
        monitor.step(number)
    assert monitor.heads["step"].unique().to_list() == [1, 2, 3]
    assert monitor.errors == 2
    assert caplog.text.count("does not come after step 2 and is ignored") == 1


def test_a_model_in_evaluation_mode_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    model = gpt2().eval()
    monitor = attnscope.Monitor(model, every=1)
    train(model, 2, monitor)
    assert monitor.heads.height == 0
    assert "step 1 was not measured: the model is in evaluation mode" in caplog.text


def test_a_loss_that_is_no_number_is_missing(tmp_path: Path) -> None:
    model = gpt2()
    with attnscope.Monitor(model, every=1, out=tmp_path) as monitor:
        for loss in (torch.tensor(float("nan")), 2.5, "much"):
            loss_of(model, next(batches(1))).backward()
            monitor.step(loss=loss)
    run = attnscope.monitor.load(tmp_path)
    assert run.scalars.rows() == [(1, "loss", None), (2, "loss", 2.5)]
    assert run.heads["step"].unique().to_list() == [1, 2, 3]
    assert run.run["errors"] == 1


def test_a_closed_monitor_does_nothing_and_can_be_closed_again() -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1)
    train(model, 1, monitor)
    monitor.close()
    monitor.close()
    train(model, 1, monitor)
    assert monitor.heads["step"].unique().to_list() == [1]
    assert monitor.errors == 0


@pytest.mark.parametrize("swapped", [True, False])
def test_a_model_and_its_monitor_are_freed_together(swapped: bool) -> None:
    model = gpt2()
    if swapped:
        attnscope.swap(model, "ssmax")
    monitor = attnscope.Monitor(model, every=1)
    train(model, 1, monitor)
    references = [weakref.ref(model), weakref.ref(monitor)]
    del model, monitor
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_model_trains_on_if_its_monitor_is_gone() -> None:
    plain = train(gpt2(), 2)
    model = gpt2()
    monitor: Any = attnscope.Monitor(model, every=1)
    del monitor
    gc.collect()
    assert train(model, 2).same_bits(plain)
    monitor = attnscope.Monitor(model, every=1)
    train(model, 1, monitor)
    assert monitor.heads.height > 0


# Going on


def resumed(state: dict[str, Any], model: nn.Module, out: Path | None = None) -> attnscope.Monitor:
    monitor = attnscope.Monitor(model, every=2, rows=4, out=out)
    monitor.load_state_dict(json.loads(json.dumps(state)))
    return monitor


@pytest.mark.parametrize("files", [True, False])
def test_a_resumed_run_measures_what_an_uninterrupted_one_does(files: bool, tmp_path: Path) -> None:
    def run(steps: list[int], folder: Path | None) -> Any:
        model = gpt2(dropout=0.0)
        state: dict[str, Any] | None = None
        given = list(batches(sum(steps)))
        for part, count in enumerate(steps):
            if state is None:
                monitor = attnscope.Monitor(model, every=2, rows=4, out=folder)
            else:
                monitor = resumed(state, model, folder)
            for ids in given[sum(steps[:part]) : sum(steps[:part]) + count]:
                loss_of(model, ids).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
                model.zero_grad()
                monitor.step()
            state = monitor.state_dict()
            monitor.close()
        return monitor.heads

    folders = (tmp_path / "one", tmp_path / "two") if files else (None, None)
    whole, in_parts = run([9], folders[0]), run([3, 2, 4], folders[1])
    assert in_parts.equals(whole if files else whole.filter(whole["step"] > 5))


def test_losses_before_a_checkpoint_are_on_disk_with_it(tmp_path: Path) -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=50, out=tmp_path)
    train(model, 3, between=lambda *_: monitor.step(loss=2.0))
    monitor.state_dict()
    assert attnscope.monitor.load(tmp_path).scalars["step"].to_list() == [1, 2, 3]


KILLED = """
import os, signal, sys, torch
from training import batches, gpt2, loss_of
import attnscope
model = gpt2(dropout=0.0)
monitor = attnscope.Monitor(model, every=1, out=sys.argv[1])
for ids in batches(10):
    loss_of(model, ids).backward()
    monitor.step(loss=1.0)
    if monitor.state_dict()["step"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_keeps_its_finished_steps_and_goes_on_from_an_earlier_one(tmp_path: Path) -> None:
    support = Path(__file__).resolve().parent.parent / "support"
    paths = os.pathsep.join([str(support), str(Path(attnscope.__file__).parent.parent)])
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == -signal.SIGKILL
    run = attnscope.monitor.load(tmp_path)
    assert run.heads["step"].unique().to_list() == [1, 2, 3, 4, 5]
    assert run.run["status"] == "running"
    model = gpt2(dropout=0.0)
    with attnscope.Monitor(model, every=1, out=tmp_path) as monitor:
        monitor.load_state_dict({"step": 3, "measured": 3, "alarms": [], "detector": []})
        train(model, 1, monitor)
    run = attnscope.monitor.load(tmp_path)
    assert run.heads["step"].unique().to_list() == [1, 2, 3, 4]
    assert run.scalars["step"].unique().to_list() == [1, 2, 3, 4]
    assert (run.run["status"], run.run["steps"]) == ("finished", 4)


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    model = gpt2()
    with pytest.raises(ZeroDivisionError), attnscope.Monitor(model, out=tmp_path):
        raise ZeroDivisionError
    assert attnscope.monitor.load(tmp_path).run["status"] == "failed"


def test_a_state_that_is_no_state_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    monitor = attnscope.Monitor(gpt2())
    monitor.load_state_dict({"step": 3})
    assert monitor.errors == 1
    assert monitor.state_dict()["step"] == 0
