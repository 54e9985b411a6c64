"""`attnscope horizon`: how far heads still select at longer inputs, predicted from short windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from attnscope.options import (
    WHAT_IF,
    Flag,
    JsonOption,
    Loading,
    ModelOption,
    OutOption,
    TextOption,
    VerboseOption,
    WholeNumber,
    Words,
    arguments,
)


@Parameter(name="*")
@dataclass(frozen=True)
class HorizonOptions:
    """What `attnscope.horizon` predicts, and from what.

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
    normalizers
        Normalizers to predict for on the same logits, e.g. ssmax,entmax:alpha=1.3,softmax:temperature=0.5.
    check
        Also run the model on inputs of the length --to, which the prediction has not seen, and compare.
    check_windows
        How many such inputs.
    bos
        Put the model's begin token before each window.
    """

    to: WholeNumber | None = None
    length: WholeNumber | None = None
    windows: WholeNumber = 8
    rows: WholeNumber = 16
    normalizers: Annotated[Words, Parameter(name="--normalizer", group=WHAT_IF)] = ()
    check: Flag = False
    check_windows: WholeNumber = 4
    bos: Flag = False


def horizon(
    model: ModelOption = None,
    /,
    *,
    text: TextOption = None,
    options: HorizonOptions = HorizonOptions(),
    out: OutOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    loading: Loading = Loading(),
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
    out
        Folder for the results. Default: runs/MODEL-DATE-TIME. If it holds a scan of the same model and text, the
        prediction is added to its page; otherwise one window is scanned for the page.
    """
    from attnscope.capture.checkpoints import require_model

    require_model(model, loading.revision)
    from attnscope.capture.text import read_text
    from attnscope.show.command import answer, command_line, dated_folder, running
    from attnscope.studies.horizon import KINDS
    from attnscope.studies.horizon.predicting import horizon as predict

    folder = out or dated_folder(model)
    with running():
        result = predict(model, read_text(text), **arguments(options, loading), out=folder)
    files = ["report.html", *KINDS[0].written]
    settings = {"text": text, "to": options.to, "length": options.length, "revision": loading.revision}
    commands = {}
    if not options.check:
        again = command_line("horizon", model, **settings) + " --check"
        commands[again] = "Run the model on inputs of that length and compare."
    if not options.normalizers:
        other = command_line("horizon", model, **settings, normalizer="ssmax,logn,entmax15")
        commands[other] = "What other normalizers would keep together."
    paths = {name: str(folder / name) for name in files}
    return answer(
        lambda console: result.print_summary(console, verbose),
        lambda: {"run": result.run, "files": paths, "heads": result.heads.to_dicts()},
        json,
        folder=folder,
        files=files,
        page=folder / "report.html",
        commands=commands,
        skipped_heads=result.skipped_heads,
    )
