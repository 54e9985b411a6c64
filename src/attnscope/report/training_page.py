"""The page of a training run: one HTML file like the report, with the same drawing code, and its own parts."""

from __future__ import annotations

import html
from functools import lru_cache
from string import Template
from typing import TYPE_CHECKING, Any

from attnscope.report.page import asset, packed, policy
from attnscope.report.training_data import training_data

if TYPE_CHECKING:
    from attnscope.monitor.training_run import TrainingRun

# In the order in which they use each other.
_SCRIPTS = (
    "js/format.js",
    "js/colors.js",
    "js/svg.js",
    "js/axes.js",
    "js/charts.js",
    "js/model.js",
    "js/hints.js",
    "js/states.js",
    "js/fields.js",
    "js/map.js",
    "training/training_run.js",
    "training/curves.js",
    "training/steps.js",
    "training/alarms.js",
    "training/live.js",
    "training/main.js",
)


def render_training(run: TrainingRun) -> str:
    """The page of a training run as it is now, as one HTML document."""
    return training_document(training_data(run))


def training_document(data: dict[str, Any], links: dict[str, str] | None = None) -> str:
    """The page for the data of a training run; `links` lead to a server's list of runs, new data and events."""
    template, style, script = _assets()
    name = str(data["run"]["model"]["name"])
    return template.substitute(
        title=html.escape(f"{name}: training run"),
        policy=policy(script, style, "; connect-src 'self'" if links else ""),
        style=style,
        script=script,
        data=packed(data),
        links=packed(links or {}),
    )


@lru_cache
def _assets() -> tuple[Template, str, str]:
    return (
        Template(asset("training/training.html")),
        asset("page.css") + asset("training/training.css"),
        "\n".join(asset(name) for name in _SCRIPTS),
    )
