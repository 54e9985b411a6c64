"""`attnscope horizon`: how far heads still select at longer inputs, predicted from short windows."""

from __future__ import annotations

import json as json_module
from typing import Annotated

from cyclopts import Parameter

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.runs import (
    WHAT_IF,
    BosOption,
    DeviceOption,
    DtypeOption,
    Flag,
    JsonOption,
    ModelOption,
    OutOption,
    RevisionOption,
    TextOption,
    TrustOption,
    VerboseOption,
    compiling_announced,
    dated_folder,
    end,
    require_model,
)


def horizon(
    model: ModelOption = None,
    /,
    *,
    text: TextOption = None,
    to: WholeNumber | None = None,
    length: WholeNumber | None = None,
    windows: WholeNumber = 8,
    rows: WholeNumber = 16,
    normalizer: Annotated[str | None, Parameter(group=WHAT_IF)] = None,
    check: Flag = False,
    check_windows: WholeNumber = 4,
    bos: BosOption = False,
    out: OutOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
) -> int:
    """Predict how far every head still selects at longer inputs, without running the model on them.

    The keys of short windows are moved to the distances that longer inputs have, as the model's own positions do it
    (rotary, ALiBi or none), and the rows are extended with them. Prints verdicts, what other normalizers would change,
    and how well the method predicts the windows themselves from a quarter of them.

    For example:

    - `attnscope horizon model.gguf --text book.txt --to 8192`
    - `attnscope horizon model.gguf --text book.txt --to 8192 --normalizer ssmax,logn:n_train=1024,entmax15`
    - `attnscope horizon model.gguf --text book.txt --to 8192 --check`
    - `attnscope horizon --length 128`

    Parameters
    ----------
    to
        The longest length to predict, in tokens, at most what the model was trained for. Default: 8 windows.
    length
        Tokens in a window. Default: 1024, or half of --to if that is less.
    windows
        How many windows, spread over the text; at least 2.
    rows
        How many rows of each window; at least 8.
    normalizer
        Normalizers to predict for on the same logits, e.g. ssmax,entmax:alpha=1.3,softmax:temperature=0.5.
    check
        Also run the model on inputs of the length --to, which the prediction has not seen, and compare.
    check_windows
        How many such inputs.
    out
        Folder for the results. Default: runs/MODEL-DATE-TIME. If it holds a scan of the same model and text, the
        prediction is added to its page; otherwise one window is scanned for the page.
    """
    require_model(model, revision)
    from rich.console import Console

    from attnscope.capture.text import read_text
    from attnscope.cli.closing import command_line, print_closing
    from attnscope.store.folders import without_infinities
    from attnscope.store.tables import HORIZON_FILES
    from attnscope.studies.horizon.predicting import horizon as predict
    from attnscope.studies.horizon.printing import print_horizon

    folder = out or dated_folder(model)
    with compiling_announced():
        result = predict(
            model,
            read_text(text),
            to=to,
            length=length,
            windows=windows,
            rows=rows,
            normalizers=() if normalizer is None else normalizer.split(","),
            check=check,
            check_windows=check_windows,
            bos=bos,
            out=folder,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
    files = ["report.html", *HORIZON_FILES]
    if json:
        paths = {name: str(folder / name) for name in files}
        answer = {"run": result.run, "files": paths, "heads": result.heads.to_dicts()}
        print(json_module.dumps(without_infinities(answer), allow_nan=False))
        return end(result.skipped_heads)
    console = Console()
    print_horizon(console, result.table, result.heads, result.run, verbose)
    code = end(result.skipped_heads)
    options = {"text": text, "to": to, "length": length, "revision": revision}
    commands = {}
    if not check:
        again = command_line("horizon", model, **options) + " --check"
        commands[again] = "Run the model on inputs of that length and compare."
    if normalizer is None:
        other = command_line("horizon", model, **options, normalizer="ssmax,logn,entmax15")
        commands[other] = "What other normalizers would keep together."
    print_closing(console, folder, files, folder / "report.html", commands)
    return code
