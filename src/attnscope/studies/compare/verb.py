"""`attnscope compare`: effects of other normalizers on a model; `attnscope guidelines`: the paper's advice, tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from attnscope.options import (
    JsonOption,
    Loading,
    ModelOption,
    OutOption,
    TextOption,
    VerboseOption,
    WholeNumber,
    WholeNumbers,
    Words,
    arguments,
)


@Parameter(name="*")
@dataclass(frozen=True)
class EvaluationOptions:
    """What normalizers are evaluated on.

    Parameters
    ----------
    lengths
        Prefix lengths of each window to report, e.g. 128,512. Default: powers of two up to the model's limit or 1024.
    windows
        How many consecutive windows of the text to evaluate.
    top_n
        The size of the top set.
    """

    lengths: WholeNumbers | None = None
    windows: WholeNumber = 1
    top_n: WholeNumber = 20


@Parameter(name="*")
@dataclass(frozen=True)
class CompareOptions(EvaluationOptions):
    """The same, and what is fitted before.

    Parameters
    ----------
    calibration
        Also fit each normalizer's parameter to the smallest KL divergence from the unmodified model: one value for
        all heads (global) or one per head (head).
    calibration_windows
        How many further windows of the text to calibrate on.
    """

    calibration: Annotated[Literal["global", "head"] | None, Parameter(name="--calibrate")] = None
    calibration_windows: WholeNumber = 2


def compare(
    model: ModelOption = None,
    /,
    *,
    normalizers: Annotated[Words | None, Parameter(name=["--normalizers", "-n"])] = None,
    text: TextOption = None,
    options: CompareOptions = CompareOptions(),
    mode: Literal["both", "what-if", "swapped"] = "both",
    out: OutOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    loading: Loading = Loading(),
) -> int:
    """Compare normalizers on a model: perplexity, agreement, capacity, gradients, time and memory.

    Writes compare.parquet, compare.json and a chart of separability against perplexity (SVG, PDF, PNG and Vega-Lite),
    and prints tables.

    For example:

    - `attnscope compare`
    - `attnscope compare model.gguf -n softmax,ssmax,entmax:alpha=1.3`
    - `attnscope compare model.gguf --text book.txt --calibrate global`

    Parameters
    ----------
    normalizers
        Names with optional settings, separated by commas, e.g. softmax,entmax:alpha=1.3. Default: softmax, ssmax,
        entmax15, sparsemax, topk:k=64 and lipmax.
    mode
        what-if applies each normalizer to the original logits of every layer; swapped replaces it in the model, so
        that the change propagates through the layers; both does both.
    out
        Folder for the results. Default: runs/MODEL-DATE-TIME.
    """
    from attnscope.capture.checkpoints import require_model

    require_model(model, loading.revision)
    from attnscope.capture.text import read_text
    from attnscope.show.command import answer, command_line, dated_folder, running
    from attnscope.store.folders import output_folder
    from attnscope.studies.compare.comparing import DEFAULT_NORMALIZERS, FILES, MODES, compare as compare_model

    chosen = DEFAULT_NORMALIZERS if normalizers is None else normalizers
    modes = MODES if mode == "both" else (mode,)
    with running(), output_folder(out or dated_folder(model)) as folder:
        result = compare_model(model, read_text(text), chosen, modes=modes, **arguments(options, loading))
        result.write(folder)
    files = {name: str(folder / name) for name in FILES if (folder / name).is_file()}
    settings = {"text": text, "revision": loading.revision}
    commands = {}
    if options.calibration is None:
        fit = command_line("compare", model, **settings, calibrate="global")
        commands[fit] = "Fit each normalizer's setting to the model before comparing."
    advice = command_line("guidelines", model, **settings)
    commands[advice] = "The paper's advice on the active set, entropy and temperature, tested."
    return answer(
        lambda console: result.print_summary(console, verbose),
        lambda: {"run": result.run, "files": files, "table": result.table.to_dicts()},
        json,
        folder=folder,
        files=list(files),
        page=folder / "capacity.svg" if "capacity.svg" in files else None,
        commands=commands,
    )


def guidelines(
    model: ModelOption = None,
    /,
    *,
    text: TextOption = None,
    options: EvaluationOptions = EvaluationOptions(),
    out: OutOption = None,
    json: JsonOption = False,
    loading: Loading = Loading(),
) -> int:
    """Test the paper's three guidelines on a model: what each predicts, what was measured, and a verdict.

    For example:

    - `attnscope guidelines`
    - `attnscope guidelines openai-community/gpt2 --text book.txt --windows 4`

    Parameters
    ----------
    out
        Folder for guidelines.json. Default: runs/MODEL-DATE-TIME.
    """
    from attnscope.capture.checkpoints import require_model

    require_model(model, loading.revision)
    from attnscope.capture.text import read_text
    from attnscope.show.command import answer, command_line, dated_folder, running
    from attnscope.store.folders import output_folder
    from attnscope.studies.compare.guidelines import guidelines as try_guidelines

    with running(), output_folder(out or dated_folder(model)) as folder:
        result = try_guidelines(model, read_text(text), **arguments(options, loading))
        result.write(folder)
    return answer(
        result.print_summary,
        result.as_json,
        json,
        folder=folder,
        files=["guidelines.json"],
        commands={command_line("compare", model, text=text): "Normalizers side by side, on the same model and text."},
    )
