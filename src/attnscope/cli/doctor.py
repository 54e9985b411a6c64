"""`attnscope doctor`: what can be measured of a model, and how, tried on the model itself."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.runs import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    RevisionOption,
    TrustOption,
    VerboseOption,
)

if TYPE_CHECKING:
    from attnscope.doctor import Examination

_FACTS = ("model", "layers", "positions", "memory")  # that are printed without --verbose
FAILED = 1  # exit code if a check failed


def doctor(
    model: ModelOption = None,
    /,
    *,
    length: WholeNumber | None = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
) -> int:
    """Check in a few seconds what can be measured in a model, and whether the numbers are right.

    Runs the model on a few random tokens, with and without padding, and compares the weights that a scan would measure
    with those of the model's own eager attention. The exit code is 1 if a check fails.

    For example:

    - `attnscope doctor openai-community/gpt2`
    - `attnscope doctor path/to/model --length 32768`
    - `attnscope doctor model.gguf --json`

    Parameters
    ----------
    length
        Tokens in a window, to estimate the memory that a scan needs. Default: 1024, or the model's limit if that is
        less.
    """
    from attnscope.capture.models import load_model
    from attnscope.doctor import examine
    from attnscope.errors import InputError
    from attnscope.progress import Step, reporting

    if length is not None and length < 1:
        raise InputError(f"--length takes a whole number from 1 up; received {length}")
    with reporting(None, "loading the model") as show:
        loaded = load_model(model, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
        show(Step(0, None, "running it on a few tokens"))
        report = examine(loaded, length)
    if json:
        print(json_module.dumps(report.as_json(), allow_nan=False))
    else:
        diagnosable = not loaded.module.config.is_encoder_decoder
        _print(report, model, verbose, diagnosable)
    return 0 if report.passed else FAILED


def _print(report: Examination, model: str | None, verbose: bool, diagnosable: bool) -> None:
    """Print the verdict, the checks, a few facts or all of them, and what to type next."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.cli.closing import command_line, print_closing
    from attnscope.report.terminal import add_row, paragraph, short_path, table

    console = Console(highlight=False)
    tried = [check for check in report.checks if check.verdict != "note"]
    failed = [check.name for check in tried if check.verdict == "fail"]
    if failed:
        words = f"{len(failed)} of {len(tried)} checks failed ({', '.join(failed)}): do not trust a scan of this model."
    else:
        words = f"all {len(tried)} checks passed: a scan measures what this model computes."
    verdict = Text.assemble((f"{short_path(report.model)}: ", "bold"), (words, "bold red" if failed else "bold green"))
    console.print(paragraph(verdict))
    console.print()
    marks = {"pass": Text("ok", "green"), "note": Text(""), "fail": Text("FAIL", "red")}
    made = table(["", "Check", "Result"], range(3))
    shown = [check for check in report.checks if verbose or check.verdict != "note" or check.name in _FACTS]
    for check in shown:
        add_row(made, marks[check.verdict], check.name, check.text)
    console.print(made)
    if not failed:
        scan = command_line("scan", model, "--diagnose" if diagnosable else None)
        why = "Which heads matter most, why, and what to do." if diagnosable else "Measure every head."
        print_closing(console, commands={scan: why})
