"""The commands of `attnscope`."""

from __future__ import annotations

from cyclopts import App

from attnscope import __version__
from attnscope.cli.audit import audit
from attnscope.cli.bench import bench
from attnscope.cli.compare import compare, guidelines
from attnscope.cli.doctor import doctor
from attnscope.cli.reproduce import reproduce
from attnscope.cli.scan import scan
from attnscope.cli.serve import serve

app = App(
    name="attnscope",
    help="Measure how much an attention head can still tell apart.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `attnscope.cli.run` answers it
    help_epilogue="Start with: attnscope scan   (the embedded model, no network needed)",
)
app.command(scan)
app.command(bench)
app.command(audit)
app.command(reproduce)
app.command(compare)
app.command(guidelines)
app.command(doctor)
app.command(serve)
