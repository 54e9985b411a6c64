"""The commands of `attnscope`: those of the core are named here, those of the studies by their kinds of runs.

A command is a typed function that returns its exit code. Its module imports nothing heavy before the function runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import App, Group, Parameter

from attnscope import __version__
from attnscope.cli.look import doctor, report, serve
from attnscope.cli.scan import scan
from attnscope.errors import InputError
from attnscope.store.kinds import kinds, resolve

CORE: tuple[Callable[..., int], ...] = (scan, doctor, report, serve)
LOOK = "Look at a model"
GROUPS = {name: Group(name, sort_key=place) for place, name in enumerate((LOOK, "Decide", "The paper", "Normalizers"))}

app = App(
    name="attnscope",
    help="Measure how many tokens each attention head of a transformer can still separate, and say what follows.",
    version=__version__,
    group_commands=Group("Help", sort_key=len(GROUPS)),
    suppress_keyboard_interrupt=False,  # `attnscope.cli.run` answers it
    help_epilogue="Start with: attnscope scan --diagnose   (the embedded model, no network needed)",
)
for place, command in enumerate(CORE):
    app.command(command, group=GROUPS[LOOK], sort_key=place, help_epilogue="")
for verb in (verb for kind in kinds() for verb in kind.verbs):
    app.command(resolve(verb.function), name=verb.name, group=GROUPS.get(verb.group, verb.group), help_epilogue="")


@app.command(show=False, help_epilogue="")
def bench(*_: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Refuse a command that has left the package."""
    raise InputError("benchmarks are no longer a command: in the source tree, type python -m benchmarks")
