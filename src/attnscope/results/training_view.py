"""The words and pictures of a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.columns import head_name
from attnscope.monitor.training_run import LISTED
from attnscope.report.training_summary import alarm_words, evidence, loss_words, print_training, reading_words, subject
from attnscope.results import html
from attnscope.results.heat_map import Cell, head_map
from attnscope.results.words import model_name

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.monitor.training_run import TrainingRun

_ALARMS = 5  # in the notebook output


def lines(run: TrainingRun) -> list[str]:
    """The repr: what was watched, alarms, readings at the last step, the loss, what to call next."""
    found = [f"TrainingRun: {subject(run)}"]
    if run.heads.is_empty():
        return [*found, "Nothing was measured yet.", f"Next: attnscope.load_run({str(run.folder)!r}) reads it again"]
    found += [alarm_words(run), reading_words(run), *loss_words(run)]
    last = run.steps[-1]
    calls = (
        f'.summary(), .heads, .alarms, .readings, .plot.curve("entropy_ratio"), .plot.map("max_logit", {last}), .show()'
    )
    return [*found, f"Next: {calls}"]


def body(run: TrainingRun) -> str:
    """The notebook output: alarms, a map of the readings at the last step."""
    parts = [html.heading(f"Training run of {model_name(run.run)}", subject(run))]
    if run.heads.is_empty():
        return "".join([*parts, "<p>Nothing was measured yet.</p>"])
    parts.append(f'<p class="verdict">{html.escape(alarm_words(run))}</p>')
    if not run.alarms.is_empty():
        rows = [
            (f"{line['step']:,}", head_name(line["layer"], line["head"]), line["kind"], evidence(line), line["advice"])
            for line in run.alarms.head(_ALARMS).iter_rows(named=True)
        ]
        parts.append(html.table(("Step", "Head", "Alarm", "Evidence", "Advice"), rows, words=(1, 2, 3, 4)))
    looks = {one.name: one for one in LISTED}
    cells = {
        (layer, head): Cell(looks[name].color, f"{head_name(layer, head)} {name}", looks[name].mark)
        for layer, head, name in run.readings.select("layer", "head", "reading").iter_rows()
    }
    parts.append(
        f"<div><h4>Readings at step {run.steps[-1]:,}</h4>{head_map(cells, 'Map of the heads: readings')}</div>"
    )
    parts += [f"<p>{html.escape(words)}</p>" for words in (reading_words(run), *loss_words(run))]
    parts.append(html.calls(".summary()", ".heads", ".alarms", ".readings", '.plot.curve("entropy_ratio")', ".show()"))
    return "".join(parts)


def print_summary(console: Console, run: TrainingRun, verbose: bool) -> None:
    """What `attnscope report` prints."""
    print_training(console, run, verbose)


def pictures(run: TrainingRun) -> dict[str, Any]:
    """None: a training run has a page of its own."""
    return {}
