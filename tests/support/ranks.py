"""One process of a distributed run, started by tests/monitor/test_ranks.py."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import batches, gpt2, loss_of

import attnscope

ALL = 10**6


def main() -> None:
    """Run all functions of this file as one of some ranks: RANK SIZE FOLDER."""
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    for run in (data_parallel, one_rank_fails, fully_sharded):
        run(rank, size, folder)
    distributed.destroy_process_group()


def train(model: nn.Module, monitor: attnscope.Monitor | None, rank: int, size: int) -> list[float]:
    """Two steps, each rank on its part of the batches; losses of this rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for ids in batches(2, items=2 * size):
        optimizer.zero_grad()
        loss = loss_of(model, ids.chunk(size)[rank])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if monitor is not None:
            monitor.step(loss=loss)
    return losses


def data_parallel(rank: int, size: int, folder: Path) -> None:
    """With and without a monitor, and with an evaluation of the inner module before; the first rank writes."""
    plain = DistributedDataParallel(gpt2(dropout=0.0))
    without = train(plain, None, rank, size)
    model = DistributedDataParallel(gpt2(dropout=0.0))
    monitor = attnscope.Monitor(model, every=1, rows=ALL, sequences=ALL, out=folder / "data-parallel")
    model.module.eval()
    loss_of(model.module, torch.zeros(2, 7, dtype=torch.long))
    model.module.train()
    losses = train(model, monitor, rank, size)
    monitor.close()
    assert losses == without
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert (monitor.errors, monitor.last_error) == (0, None)
    assert monitor.heads.height == (12 if rank == 0 else 0)


def one_rank_fails(rank: int, size: int, folder: Path) -> None:
    """The second rank measures nothing in its first step: all of them skip it."""
    model = DistributedDataParallel(gpt2(dropout=0.0))
    monitor = attnscope.Monitor(model, every=1)
    if rank == 1:
        model.module.lm_head.register_forward_pre_hook(lambda *_: monitor._restart() if monitor._step == 0 else None)
    train(model, monitor, rank, size)
    assert monitor.heads["step"].unique().to_list() == [2], monitor.heads
    assert monitor.errors == 1
    print(monitor.last_error)


def fully_sharded(rank: int, size: int, folder: Path) -> None:
    """FSDP2: the heads are those of the same run without it."""
    from torch.distributed.fsdp import fully_shard

    model = gpt2(dropout=0.0)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    monitor = attnscope.Monitor(model, every=1, rows=ALL, sequences=ALL, out=folder / "fully-sharded")
    train(model, monitor, rank, size)
    assert (monitor.errors, monitor.last_error) == (0, None)
    monitor.close()


if __name__ == "__main__":
    main()
