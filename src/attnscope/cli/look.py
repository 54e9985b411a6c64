"""`attnscope doctor`, `attnscope report` and `attnscope serve`: check a model, and look at what was saved."""

from __future__ import annotations

import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from attnscope.errors import InputError, OutputError, shown, written_as
from attnscope.options import Flag, JsonOption, Loading, ModelOption, VerboseOption, WholeNumber, arguments

FAILED = 1  # exit code if a check failed


def doctor(
    model: ModelOption = None,
    /,
    *,
    length: WholeNumber | None = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    loading: Loading = Loading(),
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
    from attnscope.progress import Step, reporting
    from attnscope.show import terminal
    from attnscope.show.command import answer, command_line

    if length is not None and length < 1:
        raise InputError(f"--length takes a whole number from 1 up; received {length}")
    with reporting(None, "loading the model") as show:
        loaded = load_model(model, **arguments(loading))
        show(Step(0, None, "running it on a few tokens"))
        report = examine(loaded, length)
    commands = {}
    if report.passed and loaded.module.config.is_encoder_decoder:  # a diagnosis would refuse it
        commands[command_line("scan", model)] = "Measure every head."
    elif report.passed:
        commands[command_line("scan", model, "--diagnose")] = "Which heads matter most, why, and what to do."
    answer(
        lambda console: terminal.write(console, report.blocks(verbose), verbose),
        report.as_json,
        json,
        commands=commands,
    )
    return 0 if report.passed else FAILED


def report(
    folder: Path,
    /,
    *,
    out: Path | None = None,
    open: Flag = False,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> int:
    """Print the summary of a saved run of any kind and write its page.

    Nothing is measured. A training run may still be going on: the page then says so, and shows it up to its last
    measured step; attnscope serve shows it live. In the folder of attnscope horizon it is the page of the scan there,
    with what is predicted.

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
    from attnscope.show.command import answer
    from attnscope.store.kinds import kind_of, load_run

    result = load_run(folder)
    file = folder / "report.html" if out is None else out
    _write(file, result.page())
    answer(
        lambda console: result.print_summary(console, verbose),
        lambda: {"kind": kind_of(folder).name, "page": str(file)},
        json,
        page=file,
    )
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


def serve(
    folder: Path = Path("runs"),
    /,
    *,
    host: str = "127.0.0.1",
    port: WholeNumber = 8765,
    read_only: Flag = False,
    open: Flag = False,
) -> int:
    """Show the runs of a folder in the browser: open, follow, compare, rename and delete them, start scans.

    The server is reachable from this machine only. With a --host that others can reach it is read-only.

    For example:

    - `attnscope serve --open`
    - `attnscope serve my/runs --port 9000`

    Parameters
    ----------
    folder
        The folder with the runs, where new scans are saved too; runs is created if it is missing.
    host
        The address to listen on.
    port
        The port to listen on; 0 chooses a free one.
    read_only
        Show runs, but let no one start scans or change runs.
    open
        Open the page in the browser.
    """
    import uvicorn

    from attnscope.serve.app import create_app
    from attnscope.serve.guard import is_loopback

    if not host or "\0" in host:
        raise InputError(f"--host takes an address; received {shown(host)}")
    if folder == Path("runs"):
        with suppress(FileExistsError):
            folder.mkdir()
    app = create_app(folder, host, read_only=read_only or not is_loopback(host))
    listening = _listen(host, port)
    host_in_url = f"[{host}]" if ":" in host else host
    address = f"http://{host_in_url}:{listening.getsockname()[1]}/"
    print(f"attnscope: serving {folder} at {address} (Ctrl-C stops it)", file=sys.stderr, flush=True)
    if not is_loopback(host):
        print(f"attnscope: anyone who can reach {host} can read these runs, but not change them", file=sys.stderr)
    if open:
        import webbrowser

        webbrowser.open(address)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3))
    app.state.ending = lambda: server.should_exit
    try:
        with written_as("python"):  # the page's fields are called as the parameters are
            server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises the signal again after its shutdown
        pass
    finally:
        listening.close()
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; InputError if the address cannot be used."""
    if not 0 <= port < 65536:
        raise InputError(f"--port takes a number from 0 to 65535; received {shown(port)}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # before the address is printed, so that it works at once
    except (OSError, ValueError) as error:  # ValueError: no name that could be looked up
        listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen on {host[:200]}:{port}: {reason}; choose another --port or --host") from None
    return listening
