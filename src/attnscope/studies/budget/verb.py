"""`attnscope budget`: which keys each head should keep, compared with other ways to choose them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnscope.options import JsonOption, Loading, ModelOption, OutOption, TextOption, WholeNumber, arguments


@Parameter(name="*")
@dataclass(frozen=True)
class BudgetOptions:
    """How large a budget is, and what it is measured and compared on.

    Parameters
    ----------
    keep
        The share of all key-value pairs to keep, above 0 and at most 1.
    length
        Tokens of the context whose keys are kept or dropped. Default: 1024, or what the model allows.
    windows
        How many windows to compare on; at least 3.
    calibration_windows
        How many windows to measure on.
    seed
        For the methods that draw, and the recall task.
    horizon
        Folder of `attnscope horizon` for the same model: says which heads reach further than the window they keep.
    """

    keep: Annotated[float, Parameter(allow_leading_hyphen=True)] = 0.25
    length: WholeNumber | None = None
    windows: WholeNumber = 8
    calibration_windows: WholeNumber = 4
    seed: WholeNumber = 0
    horizon: Path | None = None


def budget(
    model: ModelOption = None,
    /,
    *,
    text: TextOption = None,
    options: BudgetOptions = BudgetOptions(),
    out: OutOption = None,
    json: JsonOption = False,
    loading: Loading = Loading(),
) -> int:
    """Give every head a budget of keys, and compare it with other methods at the same number of kept pairs.

    Measures the error of every key-value head by kind (first + recent keys, or those with the largest weights) and
    number of keys, on the first half of the text, and takes the budgets with the smallest total error. On the second
    half it compares them with random, uniform and shuffled budgets, StreamingLLM, key norms, SnapKV-like and AdaKV-like
    choices, and the exact largest weights: KL divergence, perplexity, and recall of passages of the context.

    Writes budget.json, for attnscope.swapping.apply_budget; full_attention_heads.tsv and config.json, for DuoAttention;
    layers.json, keys by layer; and comparison.parquet.

    For example:

    - `attnscope budget`
    - `attnscope budget model.gguf --text book.txt --keep 0.25 --out budget`
    - `attnscope budget model.gguf --text book.txt --keep 0.1 --length 512 --windows 12`

    Parameters
    ----------
    out
        Folder for the results: new, empty, or of an earlier budget. Default: runs/MODEL-DATE-TIME.
    """
    from attnscope.capture.checkpoints import require_model

    require_model(model, loading.revision)
    from attnscope.capture.text import read_text
    from attnscope.show.command import answer, dated_folder, running
    from attnscope.studies.budget.running import FILES, budget as make_budget, refuse_folder

    folder = out or dated_folder(model)
    refuse_folder(folder)
    with running():
        result = make_budget(model, read_text(text), **arguments(options, loading))
    result.save(folder)
    paths = {name: str(folder / name) for name in FILES}
    return answer(
        result.print_summary,
        lambda: {"budget": result.budget.as_json(), "files": paths},
        json,
        folder=folder,
        files=FILES,
    )
