"""The ranks of a distributed training run: each measures its own rows, all get the sums over all ranks.

Sums travel in one packed all-reduce, maxima in a second one. A first, small one says whether every rank has the same
heads to add up: if one of them failed, all skip the step together. They run in a process group of their own, with a
timeout: they can neither mix with the collectives of the training nor stop it for long.
"""

from __future__ import annotations

import zlib
from datetime import timedelta

import numpy as np
import torch
from torch import distributed

from attnscope.errors import ModelError
from attnscope.monitor.measuring import StepMeasurement

_TIMEOUT = timedelta(seconds=60)


class Ranks:
    """This process among those that train together; of one alone, nothing is ever sent."""

    def __init__(self) -> None:
        """Every rank must make one; ModelError if the others do not."""
        together = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        self.size = distributed.get_world_size() if together else 1
        self.rank = distributed.get_rank() if together else 0
        self._broken = False
        if not together:
            return
        try:
            self._group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"the monitor must be made on every rank of a distributed run ({reason})") from error

    def add_up(self, measured: StepMeasurement | None) -> bool:
        """Replace the sums of this rank by those over all ranks; False if some rank has nothing to add.

        Every rank must call this for every measured step, with None if it has no measurement.
        """
        if self.size == 1:
            return measured is not None and bool(measured.layers)
        if self._broken:
            return False
        try:
            return self._add_up(measured)
        except RuntimeError as error:
            self._broken = True  # the others do not wait for this rank any more
            reason = str(error).splitlines()[0]
            raise ModelError(f"the ranks lost each other, nothing more is measured ({reason})") from error

    def _add_up(self, measured: StepMeasurement | None) -> bool:
        layers = [] if measured is None else [measured.layers[layer] for layer in sorted(measured.layers)]
        heads = [(layer.entry["layer"], layer.entry["heads"]) for layer in layers]
        digest = zlib.crc32(repr(heads).encode()) if heads else -1
        agreed = torch.tensor([digest, -digest, -1 if heads else 0])
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX, group=self._group)
        if agreed[0] != -agreed[1] or agreed[2] == 0:
            return False
        fields = (("sums", "counts", "rows"), ("max_logit", "unsound", "minus_limit"))
        for names, operation in zip(fields, (distributed.ReduceOp.SUM, distributed.ReduceOp.MAX), strict=True):
            packed = np.concatenate([getattr(layer, name).ravel() for layer in layers for name in names])
            distributed.all_reduce(torch.from_numpy(packed), operation, group=self._group)
            begin = 0
            for layer in layers:
                for name in names:
                    array = getattr(layer, name)
                    array[...] = packed[begin : begin + array.size].reshape(array.shape)
                    begin += array.size
        return True
