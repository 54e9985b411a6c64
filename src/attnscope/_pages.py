"""Fresh memory: having its pages mapped can take longer than computing what comes into them.

Large tensors are put on large pages, and what is freed between two layers is kept for the next.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

_LARGE_PAGE = 1 << 21
_LARGE = 1 << 22  # smaller ones are mostly found in memory that has been used before
_LARGEST_KEPT = (1 << 25) - (1 << 16)  # glibc keeps no larger blocks
_KEPT = 1 << 28


def empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialized contiguous tensor of the type and on the device of another, on large pages if it is large."""
    result = torch.empty(shape, dtype=like.dtype, device=like.device)
    if result.device.type == "cpu":
        _advise(result.data_ptr(), result.nbytes)
    return result


def empty_array(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """The same as an array of numpy."""
    result = np.empty(size, dtype)
    _advise(result.ctypes.data, result.nbytes)
    return result


def _advise(address: int, size: int) -> None:
    """Ask for large pages, if it is worth it."""
    advise = _madvise()
    if size >= _LARGE and advise is not None:
        first = -(-address // _LARGE_PAGE) * _LARGE_PAGE
        last = (address + size) // _LARGE_PAGE * _LARGE_PAGE
        advise(first, last - first)


@cache
def keep_freed() -> None:
    """Have the C library keep freed memory for the next layer, for as long as the process lives.

    glibc gives the end of its heap back to the system when that is twice as large as the largest block it has seen
    freed. A model alone may stay below this; with what we allocate between its layers it does not, and every layer then
    has its memory mapped anew. Blocks of up to 32 MB are to come from the heap, which a block that is freed unused
    brings about, and only much more than a layer needs is to be given back.
    """
    allocate, free, set_option = (of_the_c_library(name) for name in ("malloc", "free", "mallopt"))
    if set_option is None:
        return
    allocate.restype = ctypes.c_void_p
    free(ctypes.c_void_p(allocate(ctypes.c_size_t(_LARGEST_KEPT))))
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
