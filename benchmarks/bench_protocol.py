"""Time and memory of the paper's protocol: the same as `attnscope bench protocol --json`."""

import sys

from attnscope.cli import run

if __name__ == "__main__":
    sys.exit(run(["bench", "protocol", "--json", *sys.argv[1:]]))
