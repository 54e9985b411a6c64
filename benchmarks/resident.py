"""Peak resident memory of a process while something runs, above its size before.

The system keeps a high-water mark (VmHWM in /proc/self/status) that can be reset to the current size through
/proc/self/clear_refs. It counts everything: tensors, tables, memory of compiled loops and of kernels. Memory that an
allocator retains from earlier work would hide growth, so a process measures only once, with `PLAIN_ALLOCATOR` in its
environment: large blocks then go back to the system immediately.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# For glibc: one heap, and blocks of 256 KiB or more mapped individually, so that freed memory is no longer resident.
PLAIN_ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 18),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 18),
}

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def run_with_plain_allocator(module: str, arguments: dict[str, Any]) -> Any:
    """The output of `python -m module ARGUMENTS`, both as JSON, in a process with `PLAIN_ALLOCATOR`."""
    command = [sys.executable, "-m", module, json.dumps(arguments)]
    given = environment(PLAIN_ALLOCATOR)
    return json.loads(subprocess.run(command, env=given, stdout=subprocess.PIPE, check=True, text=True).stdout)


def environment(variables: dict[str, str]) -> dict[str, str]:
    """This process's environment with other variables, in which a module of the benchmarks is found from any folder."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | variables | {"PYTHONPATH": os.pathsep.join(paths)}


def resident_peak(call: Callable[[], object]) -> int | None:
    """Bytes by which a call raises the peak resident size; None if the system does not report it."""
    gc.collect()
    try:
        _CLEAR.write_text("5")
    except OSError:
        return None
    before = _status("VmRSS")
    result = call()  # the result is part of the cost
    peak = _status("VmHWM")
    del result
    return max(0, peak - before)


def peak_so_far() -> int | None:
    """The peak resident size of this process since it was started; None if the system does not report it."""
    return _status("VmHWM") if _STATUS.exists() else None


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])
