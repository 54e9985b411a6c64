"""When do the heads of the sample model form? Draw and print what a monitored training run has to say.

    python scripts/sample_model/train.py --out model --monitor run
    python scripts/sample_model/formation.py run docs/images/formation.png

The chart has the entropy ratio of every head, and the loss below, with lines where a stage ends. Printed, as JSON: the
first measured step at which a head's entropy ratio is below 0.5; readings at the end; alarms.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import altair as alt
import polars as pl
from batches import STAGES

import attnscope
from attnscope.columns import head_name
from attnscope.show.charts import axis, color_scale, data

SHARP = 0.5
WIDTH = 720


def forming(heads: pl.DataFrame) -> pl.DataFrame:
    """The first measured step at which the entropy ratio of a head is below `SHARP`; null if it never is."""
    first = pl.col("step").filter(pl.col("entropy_ratio") < SHARP).min()
    return heads.group_by("layer", "head").agg(first.alias("formed")).sort("layer", "head")


def stage_ends() -> list[int]:
    """The last step of each stage."""
    steps = [-(-stage.tokens // stage.tokens_per_step) for stage in STAGES]
    return [sum(steps[: number + 1]) for number in range(len(steps))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    run = attnscope.load_run(arguments.run)
    assert isinstance(run, attnscope.TrainingRun)
    names = pl.struct("layer", "head").map_elements(lambda at: head_name(at["layer"], at["head"]), pl.String)
    heads = run.heads.filter(pl.col("step") % 100 == 0).with_columns(name=names)
    last = int(heads["step"].max())  # type: ignore[arg-type]
    step = alt.X("step:O", title=None, axis=None)
    cells = alt.Chart(data(heads.select("step", "name", "entropy_ratio"))).mark_rect()
    by_head = cells.encode(
        step,
        alt.Y("name:N", title="head", axis=axis(), sort=None),
        alt.Color("entropy_ratio:Q", title="Entropy ratio", scale=color_scale(domain=[0, 1])),
    ).properties(width=WIDTH, height=36 * 13)
    losses = run.scalars.filter(pl.col("step") % 20 == 0, pl.col("step") <= last, name="loss").select(
        "step", loss="value"
    )
    loss = (
        alt.Chart(data(losses))
        .mark_line(strokeWidth=1)
        .encode(
            alt.X("step:Q", title="optimizer step", axis=axis(), scale=alt.Scale(domain=[0, last])),
            alt.Y("loss:Q", title="loss", axis=axis()),
        )
        .properties(width=WIDTH, height=110)
    )
    ends = (
        alt.Chart(data(pl.DataFrame({"step": stage_ends()[:-1]}))).mark_rule(strokeDash=[3, 3]).encode(alt.X("step:Q"))
    )
    (by_head & (loss + ends)).save(arguments.picture)
    formed = forming(run.heads)
    print(
        json.dumps(
            {
                "steps": run.heads["step"].max(),
                "stage_ends": stage_ends(),
                "formed": {head_name(layer, head): at for layer, head, at in formed.rows()},
                "readings": dict(run.readings.group_by("reading").len().rows()),
                "alarms": run.alarms.to_dicts(),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
