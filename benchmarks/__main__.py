"""`python -m benchmarks`: measure this library against its peers, on this machine.

    python -m benchmarks                  what can be measured
    python -m benchmarks scan --help      options of one benchmark
    python -m benchmarks scan --json      one JSON object on standard output and nothing else

A benchmark is a function `measure` that returns its report; its options are the function's parameters.
"""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from attnscope import cli
from attnscope.options import JsonOption
from attnscope.show import terminal
from benchmarks import tables

BENCHMARKS = {
    "normalizers": "normalizers against torch.softmax and the entmax package",
    "scan": "scans, the naive way and other capture tools against a plain forward pass",
    "protocol": "the algorithms of the paper's protocol against a plain forward pass",
    "monitor": "training steps with a monitor against steps without",
    "scale": "scans with Ray workers, and the driver of a large run",
    "swap": "forward passes with other normalizers against the model's own",
    "compare": "six normalizers on the same logits against one scan",
    "lipmax-defaults": "the weight of one planted key, by length and settings of lipmax",
}

app = App(
    name="benchmarks",
    help="Measure speed and memory as ratios to peers in the same run. `--json` prints one JSON object.",
    version_flags=(),
    suppress_keyboard_interrupt=False,
)
for name, about in BENCHMARKS.items():
    app.command(f"benchmarks.{name.replace('-', '_')}:measure", name=name, help=f"Measure {about}.")


@app.meta.default
def measured(*words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)], json: JsonOption = False) -> int:
    """Run one benchmark, and print its report as tables or as JSON."""
    report: Any = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    if not isinstance(report, dict):  # a page of help
        return 0
    blocks = tables.TABLES.get(report["benchmark"])
    if json or blocks is None:
        print(json_module.dumps(report))
    else:
        terminal.write(Console(), blocks(report))
    return 0


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    return cli.run(arguments, app.meta, "benchmarks")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
