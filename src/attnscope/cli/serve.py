"""`attnscope serve`: a local web server for the runs of a folder."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.runs import Flag
from attnscope.errors import InputError, shown, written_as


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
