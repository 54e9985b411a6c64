"""Time and memory of watching a training run: the same as `attnscope bench monitor --json`."""

import sys

from attnscope.cli import run

if __name__ == "__main__":
    sys.exit(run(["bench", "monitor", "--json", *sys.argv[1:]]))
