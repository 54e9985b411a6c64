"""What a training run shows: alarms with their evidence and advice, the readings at the last step, medians."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnscope import columns
from attnscope.columns import head_name
from attnscope.diagnosis.view import marked_map
from attnscope.errors import parameter
from attnscope.monitor.alarms import RULES
from attnscope.monitor.training_run import LISTED, reading_looks
from attnscope.show.blocks import Block, Heading, Items, Note, Table, Verdict
from attnscope.show.numbers import counted, measured, model_name, number

if TYPE_CHECKING:
    from attnscope.monitor.training_run import TrainingRun

_ALARMS = 5  # if not verbose
_STATUSES = {
    "training": "still training",
    "finished": "finished",
    "failed": "ended by an error",
    "stopped": "stopped without being closed",
}


def blocks(run: TrainingRun, verbose: bool = False) -> list[Block]:
    """The alarms, a map of the readings at the last step, the loss, the median head at both ends."""
    heading = Heading(model_name(run.run), subject(run))
    if run.heads.is_empty():
        return [heading, Note("Nothing was measured yet.")]
    found: list[Block] = [heading, Verdict(alarm_words(run), "strong")]
    alarms = run.alarms if verbose else run.alarms.head(_ALARMS)
    found.append(
        Items(
            [
                f"step {line['step']:,}, {head_name(line['layer'], line['head'])}: {_kind(line)}, {evidence(line)}: "
                f"{line['advice']}"
                for line in alarms.iter_rows(named=True)
            ]
        )
    )
    if alarms.height < run.alarms.height:
        more = run.alarms.height - alarms.height
        found.append(Note(f"and {more:,} more ({parameter('verbose', True)})", indent=4))
    heads = [
        {"layer": layer, "head": head, "state": reading, "edge": None}
        for layer, head, reading in run.readings.select("layer", "head", "reading").iter_rows()
    ]
    title = f"Readings at step {run.steps[-1]:,}"
    note = "the first limit that a head's numbers cross; no diagnosis"
    found.append(marked_map(title, note, heads, reading_looks(run.run.get("thresholds", {}))))
    return [*found, *map(Note, loss_words(run)), _medians(run)]


def brief(run: TrainingRun) -> list[str]:
    """The lines of the repr: what was watched, alarms, readings at the last step, the loss."""
    found = [f"TrainingRun: {model_name(run.run)}, {subject(run)}"]
    if run.heads.is_empty():
        return [*found, "Nothing was measured yet."]
    return [*found, alarm_words(run), reading_words(run), *loss_words(run)]


def calls(run: TrainingRun) -> tuple[str, ...]:
    """What to call next."""
    if run.heads.is_empty():
        return (f"attnscope.load_run({str(run.folder)!r}) reads it again",)
    plots = ('.plot.curve("entropy_ratio")', f'.plot.map("max_logit", {run.steps[-1]})')
    return (".summary()", ".heads", ".alarms", ".readings", *plots, ".show()")


def subject(run: TrainingRun) -> str:
    """What was watched, how far, and whether it goes on."""
    heads = run.heads.select("layer", "head").unique()
    size = f"{counted(heads['layer'].n_unique(), 'layer')}, {counted(heads.height, 'head')}"
    steps = run.steps
    until = f"{counted(len(steps), 'measured step')} up to step {steps[-1]:,}, " if steps else ""
    return f"{size}; {until}{_STATUSES[run.status]}"


def alarm_words(run: TrainingRun) -> str:
    """The alarms in a sentence."""
    alarms = run.alarms
    if alarms.is_empty():
        return f"No alarm in {counted(len(run.steps), 'measured step')}."
    first = alarms.row(0, named=True)
    some, every = (one.select("layer", "head").n_unique() for one in (alarms, run.heads))
    where = f"{head_name(first['layer'], first['head'])}, {_kind(first)}"
    heads = f"{some} of {counted(every, 'head')}"
    return f"{counted(alarms.height, 'alarm')} in {heads}, the first at step {first['step']:,}: {where}"


def evidence(alarm: Mapping[str, Any]) -> str:
    """The value that raised an alarm, and its limit."""
    name = RULES[alarm["kind"]].measure if alarm["kind"] in RULES else None
    if alarm["value"] is None or name is None:
        return "not a number" if alarm["value"] is None else number(alarm["value"])
    return f"{columns.label(name).lower()} {measured(name, alarm['value'])} (limit {measured(name, alarm['limit'])})"


def reading_words(run: TrainingRun) -> str:
    """How many heads have which reading at the last step."""
    counts = Counter(run.readings["reading"])
    parts = ", ".join(f"{counts[one.name]} {one.name}" for one in LISTED if counts[one.name])
    return f"Readings at step {run.steps[-1]:,} (limits crossed, no diagnosis): {parts}"


def loss_words(run: TrainingRun) -> list[str]:
    """The first and the last loss, if one was given to the monitor."""
    losses = run.scalars.filter(name="loss").drop_nulls("value")
    if losses.is_empty():
        return []
    (first, start), (last, end) = (losses.row(i)[::2] for i in (0, -1))
    return [f"Loss {number(start)} at step {first:,}, {number(end)} at step {last:,}"]


def _kind(alarm: Mapping[str, Any]) -> str:
    return str(alarm["kind"]).replace("-", " ")


def _medians(run: TrainingRun) -> Table:
    """The median head at the first and the last step."""
    ends = [run.heads.filter(step=step) for step in (run.steps[0], run.steps[-1])]
    n = run.run["settings"].get("top_n")
    rows = []
    for name in run.heads.columns:
        if name in columns.COLUMNS:
            medians: list[Any] = [part[name].drop_nans().median() for part in ends]
            rows.append([columns.label(name, n), *(measured(name, median) for median in medians)])
    return Table(["Median over heads", *(f"step {part['step'][0]:,}" for part in ends)], rows)
