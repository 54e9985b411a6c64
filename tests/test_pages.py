"""Memory that is mapped once: what a process that frees and allocates in turn pays for it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Rounds of twelve blocks of 10 MB, written and freed; the pages that were mapped in the last one.
ROUNDS = """
import ctypes, resource, sys
if sys.argv[1] == "kept":
    from attnscope._pages import keep_freed
    keep_freed()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [ctypes.c_void_p(c.malloc(10_000_000)) for _ in range(12)]
    for block in blocks:
        ctypes.memset(block, 1, 10_000_000)
    for block in blocks:
        c.free(block)
    mapped = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(mapped)
"""


def mapped(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", ROUNDS, how], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other limits")
def test_freed_memory_is_kept_for_the_next_layer() -> None:
    assert mapped("kept") < 100
    assert mapped("given back") > 20_000  # else there is nothing to keep
