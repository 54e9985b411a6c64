"""`attnscope compare`: effects of other normalizers on a model; `attnscope guidelines`: the paper's advice, tested."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Literal

from cyclopts import Parameter

from attnscope.cli.numbers import WholeNumber, optional_numbers
from attnscope.cli.runs import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    OutOption,
    RevisionOption,
    TextOption,
    TrustOption,
    VerboseOption,
    compiling_announced,
    dated_folder,
    require_model,
)


def compare(
    model: ModelOption = None,
    /,
    *,
    normalizers: Annotated[str | None, Parameter(name=["--normalizers", "-n"])] = None,
    text: TextOption = None,
    lengths: str | None = None,
    windows: WholeNumber = 1,
    top_n: WholeNumber = 20,
    mode: Literal["both", "what-if", "swapped"] = "both",
    calibrate: Literal["global", "head"] | None = None,
    calibration_windows: WholeNumber = 2,
    out: OutOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
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
    lengths
        Prefix lengths of each window to report, e.g. 128,512. Default: powers of two up to the model's limit or 1024.
    windows
        How many consecutive windows of the text to evaluate.
    top_n
        The size of the top set.
    mode
        what-if applies each normalizer to the original logits of every layer; swapped replaces it in the model, so
        that the change propagates through the layers; both does both.
    calibrate
        Also fit each normalizer's parameter to the smallest KL divergence from the unmodified model: one value for
        all heads (global) or one per head (head).
    calibration_windows
        How many further windows of the text to calibrate on.
    out
        Folder for the results. Default: runs/MODEL-DATE-TIME.
    """
    require_model(model, revision)
    from rich.console import Console

    from attnscope.capture.text import read_text
    from attnscope.cli.closing import command_line, print_closing
    from attnscope.store.folders import output_folder, without_infinities
    from attnscope.studies.compare.comparing import DEFAULT_NORMALIZERS, FILES, MODES
    from attnscope.studies.compare.comparing import compare as compare_model

    chosen = DEFAULT_NORMALIZERS if normalizers is None else normalizers.split(",")
    with compiling_announced(), output_folder(out or dated_folder(model)) as folder:
        result = compare_model(
            model,
            read_text(text),
            chosen,
            lengths=optional_numbers("--lengths", lengths),
            windows=windows,
            top_n=top_n,
            modes=MODES if mode == "both" else (mode,),
            calibration=calibrate,
            calibration_windows=calibration_windows,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        result.write(folder)
    files = {name: str(folder / name) for name in FILES if (folder / name).is_file()}
    if json:
        table = without_infinities(result.table.to_dicts())
        print(json_module.dumps({"run": result.run, "files": files, "table": table}))
    else:
        result.print_summary(Console(), verbose)
        options = {"text": text, "revision": revision}
        advice = command_line("guidelines", model, **options)
        commands = {advice: "The paper's advice on the active set, entropy and temperature, tested."}
        if calibrate is None:
            fit = command_line("compare", model, **options, calibrate="global")
            commands = {fit: "Fit each normalizer's setting to the model before comparing."} | commands
        picture = folder / "capacity.svg"
        print_closing(Console(), folder, list(files), picture if "capacity.svg" in files else None, commands)
    return 0


def guidelines(
    model: ModelOption = None,
    /,
    *,
    text: TextOption = None,
    lengths: str | None = None,
    windows: WholeNumber = 1,
    top_n: WholeNumber = 20,
    out: OutOption = None,
    json: JsonOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
) -> int:
    """Test the paper's three guidelines on a model: what each predicts, what was measured, and a verdict.

    For example:

    - `attnscope guidelines`
    - `attnscope guidelines openai-community/gpt2 --text book.txt --windows 4`

    Parameters
    ----------
    lengths
        Prefix lengths of each window, e.g. 64,512. Default: powers of two up to the model's limit or 1024.
    windows
        How many consecutive windows of the text to evaluate.
    top_n
        The size of the top set.
    out
        Folder for guidelines.json. Default: runs/MODEL-DATE-TIME.
    """
    require_model(model, revision)
    from rich.console import Console

    from attnscope.capture.text import read_text
    from attnscope.cli.closing import command_line, print_closing
    from attnscope.store.folders import output_folder, without_infinities
    from attnscope.studies.compare.guidelines import guidelines as try_guidelines

    with compiling_announced(), output_folder(out or dated_folder(model)) as folder:
        result = try_guidelines(
            model,
            read_text(text),
            lengths=optional_numbers("--lengths", lengths),
            windows=windows,
            top_n=top_n,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        result.write(folder)
    if json:
        print(json_module.dumps(without_infinities(result.as_json())))
        return 0
    result.print_summary(Console())
    commands = {command_line("compare", model, text=text): "Normalizers side by side, on the same model and text."}
    print_closing(Console(), folder, ["guidelines.json"], None, commands)
    return 0
