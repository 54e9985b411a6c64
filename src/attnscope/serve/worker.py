"""One scan in a process of its own: `python -m attnscope.serve.worker FOLDER`.

It reads `.request.json` in the folder and prints a line of JSON for each layer and one at the end. When its standard
input ends, the server is gone, and it ends too: no scan outlives the server that shows it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.serve.library import REQUEST


def main(folder: Path) -> int:
    """Run the scan that the folder asks for."""
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    try:
        _scan(folder, json.loads((folder / REQUEST).read_text("utf-8")))
    except AttnscopeError as error:
        _say({"error": str(error)})
        return error.exit_code
    except Exception as error:  # told to the user, whatever it is
        _say({"error": f"{type(error).__name__}: {error}"})
        return 1
    (folder / REQUEST).unlink(missing_ok=True)
    _say({"finished": True})
    return 0


def _scan(folder: Path, request: dict[str, Any]) -> None:
    from attnscope.capture.text import Text, read_text

    pasted = request.get("pasted")
    text = Text(pasted, "pasted text") if pasted else read_text(request.get("text"))

    # These take seconds to load: a text that cannot be read is told before.
    from attnscope.planning import row_choice
    from attnscope.scanning import scan

    scan(
        request.get("model"),
        text,
        length=request.get("length"),
        lengths=request.get("lengths"),
        rows=row_choice(request.get("rows") or "last"),
        windows=request.get("windows") or 1,
        normalizers=request.get("normalizers") or (),
        diagnose=bool(request.get("diagnose")),
        verify=bool(request.get("verify")),
        out=folder,
        progress=lambda step: _say(step._asdict()),
    )


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _end_with_the_server() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
