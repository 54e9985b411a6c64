"""The command line: `attnscope VERB [MODEL] [options]`.

Requirements of the design:

- typed functions are the interface; each verb imports what it needs when it runs, so that
  `attnscope --help` loads neither torch nor transformers;
- with `--json`, standard output carries one machine-readable object and nothing else;
  everything meant for people goes to standard error;
- exit codes: 0 done, 1 a check found the failure it was asked to look for, 2 bad usage or
  input, 3 partial result.
"""

from __future__ import annotations

import sys

from cyclopts import App

from attnscope import __version__
from attnscope.errors import AttnscopeError

app = App(
    name="attnscope",
    help="Measure how much an attention head can still tell apart.",
    version=__version__,
)


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        sys.exit(app())
    except AttnscopeError as error:
        print(f"attnscope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
