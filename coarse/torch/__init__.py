"""coarse on torch tensors: two or three lines turn a training script data-parallel.

import coarse.torch as ct
ct.init()
ct.broadcast_parameters(model.named_parameters(), root_rank=0)
optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters())
"""

from coarse import (
    Average,
    Max,
    Min,
    Sum,
    barrier,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    statistics,
)
from coarse.torch.broadcasting import allgather, broadcast, broadcast_, broadcast_parameters
from coarse.torch.optimizer import DistributedOptimizer
from coarse.torch.optimizer_state import broadcast_optimizer_state
from coarse.torch.push_pull import (
    Handle,
    device_array,
    join,
    poll,
    pull,
    push,
    push_pull,
    push_pull_,
    push_pull_async,
    push_pull_async_,
    synchronize,
)
from coarse.torch.snapshot import restore, snapshot

__all__ = [
    "Average",
    "DistributedOptimizer",
    "Handle",
    "Max",
    "Min",
    "Sum",
    "allgather",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "device_array",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "pull",
    "push",
    "push_pull",
    "push_pull_",
    "push_pull_async",
    "push_pull_async_",
    "rank",
    "restore",
    "shutdown",
    "size",
    "snapshot",
    "statistics",
    "synchronize",
]
