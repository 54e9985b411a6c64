"""Through the loggers of transformers' Trainer and of Lightning; TensorBoard's files for plain loops."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from training import HEADS, TOKENS, batches, gpt2, loss_of, train
from transformers import Trainer, TrainerCallback, TrainingArguments

import attnscope
from attnscope.errors import InputError, ModelError
from attnscope.monitor import Alarm, StopTraining, TrainerMonitor
from attnscope.monitor.run_files import HEADS as SCHEMA, MEASURES, MOST_NAMES, LogValues


class Collecting(TrainerCallback):
    """A tracker: what it is told to log, by step."""

    def __init__(self) -> None:
        self.logged: dict[int, dict[str, float]] = {}

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.logged.setdefault(state.global_step, {}).update(given["logs"])


def trainer_on(folder: Path, *callbacks: TrainerCallback, **settings: Any) -> Trainer:
    ids = torch.cat(list(batches(12)))
    data: Any = [{"input_ids": row, "labels": row} for row in ids]
    common = {
        "per_device_train_batch_size": 5, "max_steps": 6, "learning_rate": 1e-3, "report_to": [], "use_cpu": True,
        "logging_steps": 2, "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False, "seed": 5,
    }  # fmt: skip
    arguments = TrainingArguments(str(folder), **(common | settings))
    return Trainer(gpt2(), arguments, train_dataset=data, eval_dataset=data, callbacks=list(callbacks))


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def test_the_trainer_reports_the_numbers_and_trains_as_without(tmp_path: Path, capsys: Any) -> None:
    plain = trainer_on(tmp_path / "plain")
    plain.train()
    said = capsys.readouterr().out
    tracker, callback = Collecting(), TrainerMonitor(every=2, rows=4)
    watched = trainer_on(tmp_path / "watched", callback, tracker)
    watched.train()
    assert all(torch.equal(*pair) for pair in zip(weights_of(plain), weights_of(watched), strict=True))
    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (plain, watched)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert callback.monitor is not None
    assert callback.monitor.errors == 0
    run = attnscope.monitor.load(tmp_path / "watched" / "attnscope")
    assert run.heads["step"].unique().to_list() == [1, 2, 4, 6]
    assert run.run["status"] == "finished"
    assert run.scalars.filter(name="loss")["step"].to_list() == [2, 4, 6]
    last = run.heads.filter(step=6)
    assert tracker.logged[6]["attention/entropy_ratio/median"] == pytest.approx(last["entropy_ratio"].median())
    assert "attention" not in capsys.readouterr().out.replace(said, "")


def test_gradient_accumulation_of_the_trainer_is_one_step(tmp_path: Path) -> None:
    callback = TrainerMonitor(every=1, rows=4)
    trainer_on(tmp_path, callback, gradient_accumulation_steps=2, max_steps=3).train()
    assert attnscope.monitor.load(tmp_path / "attnscope").heads["step"].unique().to_list() == [1, 2, 3]


def test_evaluation_of_the_trainer_is_not_mixed_in(tmp_path: Path) -> None:
    """Evaluation has batches of eight items, training of five."""
    callback = TrainerMonitor(every=1, rows=1000, sequences=1000)
    trainer_on(tmp_path, callback, eval_strategy="steps", eval_steps=1).train()
    run = attnscope.monitor.load(tmp_path / "attnscope")
    assert run.heads.select("step", "rows").unique().sort("step").rows() == [(step, 5 * TOKENS) for step in range(1, 7)]
    assert run.scalars.filter(name="eval_loss").height == 6


def test_a_resumed_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer_on(tmp_path / "whole", TrainerMonitor(every=1, rows=4), **saving).train()
    whole = attnscope.monitor.load(tmp_path / "whole" / "attnscope")

    class Crash(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == 5:
                raise KeyboardInterrupt

    folder = tmp_path / "in parts"
    crashed = trainer_on(folder, TrainerMonitor(every=1, rows=4), Crash(), **saving)
    with pytest.raises(KeyboardInterrupt):
        crashed.train()
    callback = next(each for each in crashed.callback_handler.callbacks if isinstance(each, TrainerMonitor))
    assert callback.monitor is not None
    assert callback.monitor.heads["step"].max() == 5
    callback.monitor.close("failed")
    again = TrainerMonitor(every=1, rows=4)
    trainer_on(folder, again, **saving).train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert attnscope.monitor.load(folder / "attnscope").heads.equals(whole.heads)
    assert again.monitor is not None
    assert again.monitor.errors == 0


def test_a_checkpoint_without_a_monitor_can_be_resumed_with_one(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer_on(tmp_path, max_steps=2, **saving).train()
    trainer_on(tmp_path, TrainerMonitor(every=1), **saving).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert attnscope.monitor.load(tmp_path / "attnscope").heads["step"].unique().to_list() == [3, 4, 5, 6]


def test_a_tracker_that_is_down_does_not_stop_the_monitor(tmp_path: Path) -> None:
    class Down(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if any(name.startswith("attention/") for name in given["logs"]):
                raise ConnectionError("no route to the tracker")

    callback = TrainerMonitor(every=1, rows=4)
    trainer_on(tmp_path, callback, Down()).train()
    assert callback.monitor is not None
    assert callback.monitor.errors == 6
    assert attnscope.monitor.load(tmp_path / "attnscope").heads["step"].max() == 6


def test_an_alarm_may_stop_the_trainer(tmp_path: Path) -> None:
    def stop(alarm: Alarm) -> None:
        raise StopTraining

    class Explode(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == 2:
                with torch.no_grad():
                    given["model"].transformer.h[0].attn.c_attn.weight *= 10

    trainer = trainer_on(tmp_path, TrainerMonitor(every=1, on_alarm=stop), Explode())
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_trainer_that_compiles_is_refused_before_its_first_step(tmp_path: Path) -> None:
    trainer = trainer_on(tmp_path, TrainerMonitor())
    trainer.args.torch_compile = True
    with pytest.raises(ModelError, match="torch_compile is set"):
        trainer.train()


def test_names_for_trackers_are_bounded_however_many_heads_there_are() -> None:
    generator = torch.Generator().manual_seed(0)
    values = LogValues()
    names: set[str] = set()
    for step in range(1, 12):
        for layers, heads in ((96, 96), (3, 2)):
            keys = [(step, layer, head) for layer in range(layers) for head in range(heads)]
            numbers = torch.rand(len(keys), len(MEASURES), generator=generator).tolist()
            table = pl.DataFrame(
                [(*key, 4, 9.0, *line) for key, line in zip(keys, numbers, strict=True)], schema=SCHEMA, orient="row"
            )
            if layers == 96:
                alarms = [Alarm(step, 90, head, "dilution", 1.0, 0.98, "") for head in range(step // 11 * 96)]
                values.add(step, table, alarms)
                names |= set(values.latest)
    assert len(names) <= MOST_NAMES
    assert {"attention/layer_95/entropy_ratio/median", "attention/L90H0/entropy_ratio"} <= names
    few = LogValues()
    few.add(1, table, [Alarm(1, 0, 0, "not-finite", None, None, "")] * 3)
    assert few.latest["attention/layer_2/separability/lowest"] == table.filter(layer=2)["separability"].min()
    worst = table.sort("max_logit").tail(1).row(0, named=True)
    assert few.latest[f"attention/L{worst['layer']}H{worst['head']}/max_logit"] == worst["max_logit"]
    assert few.latest["attention/alarms"] == 3


def test_plain_loops_write_event_files_if_tensorboard_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = gpt2()
    with attnscope.Monitor(model, every=1, out=tmp_path) as monitor:
        train(model, 3, monitor)
        assert monitor.errors == 0
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("attention/max_logit/highest")] == [1, 2, 3]


def test_lightning_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "attnscope.monitor.lightning", raising=False)
    with pytest.raises(InputError, match=r"pip install 'attnscope\[lightning\]'"):
        importlib.import_module("attnscope.monitor.lightning").LightningMonitor()


# Lightning


def lightning_run(folder: Path, *callbacks: Any, steps: int = 6, checkpoint: str | None = None, **settings: Any) -> Any:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = gpt2()

        def training_step(self, batch: Any, index: int) -> Any:
            return loss_of(self.model, batch)

        def validation_step(self, batch: Any, index: int) -> None:
            loss_of(self.model, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    torch.manual_seed(5)
    data = torch.utils.data.DataLoader(list(torch.cat(list(batches(12)))), batch_size=5)  # type: ignore[arg-type]
    trainer = lightning.Trainer(
        max_steps=steps, default_root_dir=folder, callbacks=list(callbacks), accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, logger=settings.pop("logger", False),
        num_sanity_val_steps=1, enable_checkpointing=False, **settings,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, data, data, ckpt_path=checkpoint)
    return trainer


@pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and loggers
def test_lightning_reports_the_numbers_and_trains_as_without(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from attnscope.monitor import LightningMonitor

    plain = lightning_run(tmp_path / "plain", val_check_interval=2)
    callback = LightningMonitor(every=2, rows=4, out=tmp_path / "run")
    watched = lightning_run(
        tmp_path / "watched", callback, val_check_interval=2, logger=CSVLogger(tmp_path / "csv"), log_every_n_steps=1
    )
    pairs = zip(plain.lightning_module.parameters(), watched.lightning_module.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert callback.monitor is not None
    assert callback.monitor.errors == 0
    run = attnscope.monitor.load(tmp_path / "run")
    assert run.heads["step"].unique().to_list() == [1, 2, 4, 6]
    assert run.heads.height == 4 * 2 * HEADS
    assert run.scalars["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert watched.logger.log_dir is not None
    logged = pl.read_csv(Path(watched.logger.log_dir) / "metrics.csv", infer_schema_length=None)
    values = logged.drop_nulls("attention/entropy_ratio/median").sort("step")["attention/entropy_ratio/median"]
    medians = run.heads.group_by("step", maintain_order=True).agg(pl.col("entropy_ratio").median())["entropy_ratio"]
    assert values.to_list() == pytest.approx(medians.to_list())


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_lightning_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    from attnscope.monitor import LightningMonitor

    first = lightning_run(tmp_path, LightningMonitor(every=1, rows=4, out=tmp_path / "run"), steps=4)
    first.save_checkpoint(tmp_path / "four.ckpt")
    callback = LightningMonitor(every=1, rows=4)
    lightning_run(tmp_path, callback, steps=7, checkpoint=str(tmp_path / "four.ckpt"), limit_train_batches=12)
    assert callback.monitor is not None
    assert callback.monitor.errors == 0
    run = attnscope.monitor.load(tmp_path / "run")
    assert run.heads["step"].unique().to_list() == [1, 2, 3, 4, 5, 6, 7]
