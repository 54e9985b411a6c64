"""`attnscope doctor`: what can be measured of a model, and how, tried on the model itself."""

from __future__ import annotations

import json as json_module

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.runs import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    RevisionOption,
    TrustOption,
)

FAILED = 1  # exit code if a check failed


def doctor(
    model: ModelOption = None,
    /,
    *,
    length: WholeNumber | None = None,
    json: JsonOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
) -> int:
    """Check in a few seconds what can be measured of a model, and whether it is right.

    Runs the model on a few random tokens, plain and padded, compares the weights that a scan would measure with those
    of the model's own eager attention, and prints one line for each check. The exit code is 1 if one of them fails.

    Examples:

        attnscope doctor

        attnscope doctor path/to/model --length 32768

        attnscope doctor model.gguf --json

    Parameters
    ----------
    length
        Tokens of a window, for the memory that is needed. Default: 1024, or the model's limit if that is less.
    """
    from attnscope.capture.models import load_model
    from attnscope.doctor import examine
    from attnscope.errors import InputError

    if length is not None and length < 1:
        raise InputError(f"--length takes a whole number from 1 up; received {length}")
    loaded = load_model(model, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
    report = examine(loaded, length)
    if json:
        print(json_module.dumps(report.as_json(), allow_nan=False))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        marks = {"pass": "[green]ok[/]", "note": "", "fail": "[red]FAIL[/]"}
        for check in report.checks:
            table.add_row(marks[check.verdict], check.name, check.text)
        console = Console(highlight=False)
        console.print(report.model, style="bold", markup=False)
        console.print(table)
    return 0 if report.passed else FAILED
