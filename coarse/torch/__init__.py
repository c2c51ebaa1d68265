"""coarse on torch tensors: two or three lines turn a training script data-parallel.

import coarse.torch as ct
ct.init()
ct.broadcast_parameters(model.named_parameters(), root_rank=0)
optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters())

What shards a model is imported when it is first asked for: torch's FSDP takes as long to import as half of torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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
from coarse.torch.fsdp.groups import bytes_between_nodes
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

if TYPE_CHECKING:
    from coarse.torch.fsdp.fully_shard import fully_shard, release_caches
    from coarse.torch.fsdp.recording import TransferRecorder

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

_LATER = {
    "fully_shard": "coarse.torch.fsdp.fully_shard",
    "release_caches": "coarse.torch.fsdp.fully_shard",
    "TransferRecorder": "coarse.torch.fsdp.recording",
}
"""By name, the module that has it."""


def __getattr__(name: str) -> object:
    """What is imported when it is first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


_register_backend()
