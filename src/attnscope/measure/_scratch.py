"""Memory for temporaries that each thread uses again: pages that a process touches for the first time are slow."""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

_buffers: dict[tuple[int, str], NDArray[np.uint8]] = {}  # by thread and name


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """An uninitialized array in this thread's memory of that name: valid until the thread asks for the name again."""
    key, size = (threading.get_ident(), name), prod(shape) * np.dtype(dtype).itemsize
    buffer = _buffers.get(key)
    if buffer is None or buffer.size < size:
        aligned = torch.empty(-(-size // 8), dtype=torch.float64)  # for vector instructions, unlike numpy's memory
        buffer = _buffers[key] = aligned.numpy().view(np.uint8)
    array: NDArray[Any] = buffer[:size].view(dtype).reshape(shape)
    return array


def free_scratch() -> None:
    """Release the memory of all threads; one that is at work keeps its arrays until it is done."""
    _buffers.clear()
