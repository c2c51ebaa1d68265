"""Has groups of workers do things, and writes what each worker got and how long it took: together.py FOLDER KIND

Times are those of the job's clock: of an emulated job emulated.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import coarse
import coarse.torch as ct
from coarse.session import current

NUMEL = 1 << 18
"""Elements of float32."""


def whole(factor: float = 1.0) -> torch.Tensor:
    """A tensor of this worker's."""
    return torch.arange(NUMEL, dtype=torch.float32) * factor + coarse.rank()


def parts() -> list[torch.Tensor]:
    """One for each worker."""
    return [whole(member + 1.0) for member in range(coarse.size())]


def calls() -> dict[str, Callable[[], object]]:
    """Of c10d: what each gives is what this worker has afterwards."""
    size, rank, out = coarse.size(), coarse.rank(), torch.zeros(coarse.size() * NUMEL)
    gathered = [torch.zeros(NUMEL) for _ in range(size)]
    last, following = (rank - 1) % size, (rank + 1) % size

    def messages() -> torch.Tensor:
        sent, received = dist.isend(whole(), following, tag=3), torch.zeros(NUMEL)
        dist.recv(received, last, tag=3)
        sent.wait()
        return received

    def in_place(call: Callable[..., object], *arguments: object) -> torch.Tensor:
        value = whole()
        call(value, *arguments)
        return value

    def into(value: object, call: Callable[..., object], *arguments: object) -> object:
        call(value, *arguments)
        return value

    def by_future() -> object:
        future = dist.all_reduce(value := whole(), async_op=True).get_future()
        return future.wait() and value

    return {
        "all_reduce": lambda: in_place(dist.all_reduce),
        "future": by_future,
        "broadcast": lambda: in_place(dist.broadcast, 1),
        "reduce": lambda: in_place(dist.reduce, 0) if rank == 0 else in_place(dist.reduce, 0) * 0,
        "all_gather": lambda: into(out, dist.all_gather_into_tensor, whole()),
        "reduce_scatter": lambda: into(torch.zeros(NUMEL), dist.reduce_scatter_tensor, torch.cat(parts())),
        "gather": lambda: (dist.gather(whole(), gathered if rank == 0 else None, 0), gathered)[1],
        "scatter": lambda: into(torch.zeros(NUMEL), dist.scatter, parts() if rank == 1 else None, 1),
        "all_to_all": lambda: into(out, dist.all_to_all_single, torch.cat(parts())),
        "messages": messages,
        "objects": lambda: into([None] * size, dist.all_gather_object, {"rank": rank}),
        "barrier": dist.barrier,
        "set": lambda: ct.allreduce(whole(), process_set=pairs[rank // 2]),
        "rows": lambda: ct.allgather(whole()[: NUMEL - rank], process_set=pairs[rank // 2]),
        "sparse": lambda: into(torch.eye(8).to_sparse() * (1 + rank), dist.all_reduce),
    }


pairs: dict[int, ct.ProcessSet] = {}


def collectives() -> dict[str, object]:
    """All calls, one after the other: digests, and seconds."""
    pairs.update({first // 2: ct.add_process_set([first, first + 1]) for first in range(0, coarse.size(), 2)})
    found, clock = {}, current().require_client().link.job_clock
    for name, call in calls().items():
        dist.barrier()
        began_s = clock.now_s()
        value = call()
        found[name] = [digest(value), clock.now_s() - began_s]
    return found


class Block(nn.Module):
    """A part that repeats."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, width)"""
        return x + self.down(torch.relu(self.up(x)))


def trained(mode: str) -> dict[str, object]:
    """Ten steps of a model, under DDP, by torch's own FSDP2, or in a sharded mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), *(Block(64) for _ in range(3)), nn.Linear(64, 4))
    used = model
    if mode == "ddp":
        used = DistributedDataParallel(model, bucket_cap_mb=0.05)
    elif mode == "fsdp2":
        for part in (*(block for block in model if isinstance(block, Block)), model):
            fully_shard(part)
    else:
        ct.fully_shard(model, mode=mode, units=[Block])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(10):
        torch.manual_seed(10 * step + coarse.rank())
        optimizer.zero_grad()
        loss = used(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    own = [getattr(value, "to_local", lambda value=value: value)() for value in model.parameters()]
    return {"weights": digest(own), "losses": losses}


def digest(value: object) -> str:
    """A value's."""
    if isinstance(value, (list, tuple)):
        return hashlib.sha256("".join(map(digest, value)).encode()).hexdigest()
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        return hashlib.sha256(dense.contiguous().numpy().tobytes()).hexdigest()
    return str(value)


def main() -> None:
    """Do it, and write it."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    coarse.init()
    dist.init_process_group("coarse", timeout=timedelta(seconds=60))
    found = collectives() if kind == "collectives" else trained(kind)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{coarse.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
