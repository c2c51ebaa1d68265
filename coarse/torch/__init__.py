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
from coarse.parallel.sharded.unit_cache import AcceleratorCache
from coarse.torch.broadcasting import allgather, broadcast, broadcast_, broadcast_parameters
from coarse.torch.ddp.optimizer import DistributedOptimizer
from coarse.torch.ddp.optimizer_state import broadcast_optimizer_state
from coarse.torch.ddp.snapshot import restore, snapshot
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.activations import saved_tensors_counted
from coarse.torch.fsdp.cuda_account import account_on
from coarse.torch.fsdp.fully_shard import fully_shard, release_caches
from coarse.torch.fsdp.groups import bytes_between_nodes
from coarse.torch.fsdp.recording import TransferRecorder
from coarse.torch.process_group import register as _register_backend
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

__all__ = [
    "AcceleratorCache",
    "Average",
    "DeviceAccount",
    "DistributedOptimizer",
    "Handle",
    "Max",
    "Min",
    "Sum",
    "TransferRecorder",
    "account_on",
    "allgather",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "bytes_between_nodes",
    "device_array",
    "fully_shard",
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
    "release_caches",
    "restore",
    "saved_tensors_counted",
    "shutdown",
    "size",
    "snapshot",
    "statistics",
    "synchronize",
]

_register_backend()
