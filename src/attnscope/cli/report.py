"""`attnscope report`: the page of a saved run, and its summary."""

from __future__ import annotations

import json as json_module
import tempfile
from pathlib import Path

from attnscope.cli.runs import Flag, JsonOption, VerboseOption
from attnscope.errors import InputError, OutputError, shown


def report(
    folder: Path,
    /,
    *,
    out: Path | None = None,
    open: Flag = False,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> int:
    """Print the summary of a saved run and write its page: of a scan, a training run, a comparison or a reproduction.

    Nothing is measured. A training run may still be going on: the page then says so, and shows it up to its last
    measured step; attnscope serve shows it live. In the folder of attnscope horizon it is the page of the scan there,
    with what is predicted. Folders of attnscope recall, scorecard and budget get no page: the error names the file to
    open.

    For example:

    - `attnscope report runs/train`
    - `attnscope report runs/train --out page.html --open`

    Parameters
    ----------
    folder
        What was given as --out to a command, or as out= to a function or to attnscope.Monitor.
    out
        The file of the page. Default: report.html in the folder.
    open
        Open the page in the browser.
    """
    from rich.console import Console

    from attnscope.cli.closing import print_closing
    from attnscope.results.loading import load_run

    result = load_run(folder)
    file = folder / "report.html" if out is None else out
    _write(file, result.page())
    if json:
        print(json_module.dumps({"kind": type(result).__name__, "page": str(file)}))
    else:
        console = Console(highlight=False)
        result.print_summary(console, verbose)
        print_closing(console, page=file)
    if open:
        import webbrowser

        webbrowser.open(file.absolute().as_uri())
    return 0


def _write(file: Path, page: str) -> None:
    """Write a page so that no reader sees half of it; the other files of the folder may be in use by a training run."""
    if not file.name or file.is_dir():
        raise InputError(f"--out takes the name of a file, e.g. page.html; received {shown(str(file))}")
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".report-") as folder:
            written = Path(folder) / file.name
            written.write_text(page, encoding="utf-8")
            written.replace(file)
    except OSError as error:
        raise OutputError(f"cannot write {shown(str(file))}: {error.strerror or error}") from error
