"""Time and memory of a scan: the same as `attnscope bench scan --json`."""

from __future__ import annotations

import sys

from attnscope.cli import run

if __name__ == "__main__":
    sys.exit(run(["bench", "scan", "--json", *sys.argv[1:]]))
