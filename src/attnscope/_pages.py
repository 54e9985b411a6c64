"""Fresh memory: having its pages mapped can take longer than computing what comes into them.

Large tensors are put on large pages, and what is freed between two layers is kept for the next.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

_LARGE_PAGE = 1 << 21
_LARGE = 1 << 22  # smaller ones are mostly found in memory that has been used before
_LARGEST_KEPT = (1 << 25) - (1 << 16)  # glibc keeps no larger blocks
_KEPT = 1 << 28


def empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialized contiguous tensor of the type and on the device of another, on large pages if it is large."""
    result = torch.empty(shape, dtype=like.dtype, device=like.device)
    size = result.numel() * result.element_size()
    advise = _madvise()
    if size >= _LARGE and advise is not None and result.device.type == "cpu":
        first = -(-result.data_ptr() // _LARGE_PAGE) * _LARGE_PAGE
        last = (result.data_ptr() + size) // _LARGE_PAGE * _LARGE_PAGE
        advise(first, last - first)
    return result


def keep_freed() -> None:
    """Have the C library keep freed memory for the next layer, for as long as the process lives.

    glibc gives the end of its heap back to the system when that is twice as large as the largest block it has seen
    freed. A model alone may stay below this; with what we allocate between its layers it does not, and every layer then
    has its memory mapped anew. Blocks of up to 32 MB are to come from the heap, which a block that is freed unused
    brings about, and only much more than a layer needs is to be given back.
    """
    torch.empty(_LARGEST_KEPT, dtype=torch.uint8)
    _keep_at_the_end_of_the_heap()


@cache
def _keep_at_the_end_of_the_heap() -> None:
    set_option = of_the_c_library("mallopt")
    if set_option is not None:
        set_option(-1, _KEPT)  # M_TRIM_THRESHOLD


@cache
def _madvise() -> Callable[[int, int], int] | None:
    """The system's advice that a range of memory deserves large pages, where there is such a call."""
    call = of_the_c_library("madvise")
    if call is None:
        return None
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    huge_page = 14  # MADV_HUGEPAGE; a kernel without it refuses, and nothing changes
    return lambda first, size: int(call(first, size, huge_page))


def of_the_c_library(name: str) -> Any:
    """A function of the C library, where it has it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None
