"""The commands of `attnscope`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from attnscope import __version__
from attnscope.cli.audit import audit
from attnscope.cli.budget import budget
from attnscope.cli.compare import compare, guidelines
from attnscope.cli.doctor import doctor
from attnscope.cli.horizon import horizon
from attnscope.cli.recall import recall
from attnscope.cli.report import report
from attnscope.cli.reproduce import reproduce
from attnscope.cli.scan import scan
from attnscope.cli.scorecard import scorecard
from attnscope.cli.serve import serve
from attnscope.errors import InputError

app = App(
    name="attnscope",
    help="Measure how many tokens each attention head of a transformer can still separate, and say what follows.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `attnscope.cli.run` answers it
    help_epilogue="Start with: attnscope scan --diagnose   (the embedded model, no network needed)",
)
for command in (scan, report, serve, compare, horizon, budget, guidelines, reproduce, recall, scorecard, audit, doctor):
    app.command(command, help_epilogue="")


@app.command(show=False, help_epilogue="")
def bench(*_: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Refuse a command that has left the package."""
    raise InputError("benchmarks are no longer a command: in the source tree, type python -m benchmarks")
