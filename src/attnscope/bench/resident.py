"""The peak of a process's resident memory while something runs, above what it had before.

The system keeps a high-water mark (VmHWM in /proc/self/status) that can be put back to the present size through
/proc/self/clear_refs. It counts everything: tensors, tables, scratch of compiled loops and of kernels. What an
allocator has kept from earlier work would hide growth, so a process measures once, after it has given back what is
free, and all processes that are compared have the same allocator: large blocks go back to the system at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from attnscope._pages import of_the_c_library

# Of mallopt: one heap, and blocks from 256 KiB on mapped one by one. What is freed is then no longer resident.
_ALLOCATOR = {"arenas": (-8, 1), "mapped from": (-3, 1 << 18), "trimmed from": (-1, 1 << 18)}

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def plain_allocator() -> None:
    """Have large blocks mapped one by one from now on, where the C library can."""
    set_option = of_the_c_library("mallopt")
    for option, value in _ALLOCATOR.values() if set_option is not None else ():
        set_option(option, value)


def resident_peak(call: Callable[[], object]) -> int | None:
    """Bytes by which a call raises the resident size at its highest; None where the system cannot tell."""
    gc.collect()
    give_back = of_the_c_library("malloc_trim")
    if give_back is not None:
        give_back(0)
    try:
        _CLEAR.write_text("5")
    except OSError:
        return None
    before = _status("VmRSS")
    kept = call()  # the result is part of the price
    peak = _status("VmHWM")
    del kept
    return max(0, peak - before)


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])
