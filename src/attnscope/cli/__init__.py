"""The command line: `attnscope VERB [MODEL] [options]`. One file per verb.

Requirements of the design:

- typed functions are the interface; each verb imports what it needs when it runs, so that
  `attnscope --help` loads neither torch nor transformers;
- with `--json`, standard output carries one machine-readable object and nothing else; everything meant for
  people goes to standard error;
- exit codes: 0 done, 1 a check found the failure it was asked to look for, 2 bad usage or input, 3 partial
  result.
"""

from __future__ import annotations

import os
import sys

from cyclopts import App, CycloptsError

from attnscope import __version__
from attnscope.cli.audit import audit
from attnscope.cli.bench import bench
from attnscope.cli.compare import compare, guidelines
from attnscope.cli.doctor import doctor
from attnscope.cli.reproduce import reproduce
from attnscope.cli.scan import scan
from attnscope.cli.serve import serve
from attnscope.errors import AttnscopeError

BAD_USAGE, INTERRUPTED = 2, 130

app = App(
    name="attnscope",
    help="Measure how much an attention head can still tell apart.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `run` answers it
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


def main() -> None:
    """Run the command line and exit with its code."""
    # torch's idle OpenMP threads would spin on the cores that measuring uses; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors meant for the user are one line on standard error."""
    try:
        return app(arguments, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except AttnscopeError as error:
        print(f"attnscope: {error}", file=sys.stderr)
        return error.exit_code
    except CycloptsError as error:
        message = " ".join(str(error).split())
        print(f"attnscope: {message} See attnscope --help.", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("attnscope: interrupted", file=sys.stderr)
        return INTERRUPTED
