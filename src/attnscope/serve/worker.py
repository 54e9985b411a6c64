"""One scan in a separate process: `python -m attnscope.serve.worker FOLDER`.

It reads `.request.json` in the folder and prints one line of JSON for each layer, when loops are compiled, and at the
end. It exits when its standard input is closed, so that no scan outlives its server.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.progress import watch_compiling
from attnscope.serve.library import REQUEST

_LONGEST = 10_000  # characters of a message


def main(folder: Path) -> int:
    """Run the scan that `.request.json` in the folder describes; returns the exit code."""
    threading.Thread(target=_exit_with_server, daemon=True).start()
    try:
        _scan(folder, json.loads((folder / REQUEST).read_text("utf-8")))
    except AttnscopeError as error:
        _send({"error": str(error)})
        return error.exit_code
    except Exception as error:  # any error is reported on the page
        _send({"error": f"{type(error).__name__}: {error}"[:_LONGEST]})
        return 1
    (folder / REQUEST).unlink(missing_ok=True)
    _send({"finished": True})
    return 0


def _scan(folder: Path, request: dict[str, Any]) -> None:
    from attnscope.capture.text import Text, read_text

    pasted = request.get("pasted")
    text = Text(pasted, "pasted text") if pasted else read_text(request.get("text"))

    # Imported after the text is read: they take seconds to load, and an unreadable text is reported at once.
    from attnscope.measure.settings import row_choice
    from attnscope.scanning import scan

    with watch_compiling(lambda now: _send({"compiling": now})):
        scan(
            request.get("model"),
            text,
            length=request.get("length"),
            lengths=request.get("lengths"),
            rows=row_choice(request.get("rows") or "last"),
            windows=request.get("windows") or 1,
            normalizers=request.get("normalizers") or (),
            bounds=request.get("bounds"),
            diagnose=bool(request.get("diagnose")),
            verify=bool(request.get("verify")),
            out=folder,
            progress=lambda step: _send(step._asdict()),
        )


def _send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _exit_with_server() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
