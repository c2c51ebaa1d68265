"""Torch interface of coarse: two or three lines turn a training script data-parallel.

import coarse.torch as ct
ct.init()
ct.broadcast_parameters(model.named_parameters(), root_rank=0)
optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters())

The sharding of models, and features, are imported when they are first asked for: torch's FSDP takes as long to import
as half of torch.
"""

from typing import TYPE_CHECKING

from coarse import (
    Average,
    Max,
    Min,
    Sum,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    statistics,
)
from coarse.errors import CoarseError as HorovodInternalError
from coarse.parallel.sharded.unit_cache import AcceleratorCache
from coarse.protocol.features import later
from coarse.torch.compression import Compression
from coarse.torch.ddp.cross_barrier import CrossBarrier
from coarse.torch.ddp.optimizer import DistributedOptimizer
from coarse.torch.ddp.optimizer_state import broadcast_optimizer_state
from coarse.torch.ddp.updates import UpdateOptimizer as _UpdateOptimizer  # noqa: F401 (DistributedOptimizer makes them)
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.activations import saved_tensors_counted
from coarse.torch.fsdp.cuda_account import account_on
from coarse.torch.fsdp.groups import bytes_between_nodes
from coarse.torch.groups.objects import allgather_object, broadcast_object
from coarse.torch.groups.parameters import broadcast_parameters
from coarse.torch.groups.process_sets import (
    ProcessSet,
    add_process_set,
    barrier,
    global_process_set,
    init,
    remove_process_set,
)
from coarse.torch.process_group import register as _register_backend
from coarse.torch.push_pull import (
    Handle,
    declare,
    device_array,
    join,
    poll,
    pull,
    push,
    push_pull,
    push_pull_,
    push_pull_async,
    push_pull_async_,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)

if TYPE_CHECKING:
    from coarse.faults.torch.resumable import Resumable
    from coarse.horovod.allreduce import (
        Adasum,
        Product,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        sparse_allreduce_async,
    )
    from coarse.horovod.builds import (
        ccl_built,
        cross_rank,
        cross_size,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        is_homogeneous,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rocm_built,
    )
    from coarse.horovod.rows import (
        allgather,
        allgather_async,
        alltoall,
        alltoall_async,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        grouped_allgather,
        grouped_allgather_async,
        grouped_reducescatter,
        grouped_reducescatter_async,
        reducescatter,
        reducescatter_async,
    )
    from coarse.horovod.sync_batch_norm import SyncBatchNorm
    from coarse.luwu.switch import Switch
    from coarse.luwu.torch.model_in_network import model_in_network
    from coarse.luwu.torch.offloaded import OffloadedOptimizer
    from coarse.odc.torch.minibatch import end_minibatch, minibatch_scale, publish
    from coarse.snapshots.training import restore, snapshot
    from coarse.torch.fsdp.fully_shard import fully_shard, release_caches
    from coarse.torch.fsdp.recording import TransferRecorder

__all__ = [
    "AcceleratorCache",
    "Adasum",
    "Average",
    "Compression",
    "CrossBarrier",
    "DeviceAccount",
    "DistributedOptimizer",
    "Handle",
    "HorovodInternalError",
    "Max",
    "Min",
    "OffloadedOptimizer",
    "ProcessSet",
    "Product",
    "Resumable",
    "Sum",
    "Switch",
    "SyncBatchNorm",
    "TransferRecorder",
    "account_on",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "bytes_between_nodes",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "declare",
    "device_array",
    "end_minibatch",
    "fully_shard",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "minibatch_scale",
    "model_in_network",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "publish",
    "pull",
    "push",
    "push_pull",
    "push_pull_",
    "push_pull_async",
    "push_pull_async_",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "release_caches",
    "remove_process_set",
    "restore",
    "rocm_built",
    "saved_tensors_counted",
    "shutdown",
    "size",
    "snapshot",
    "sparse_allreduce_async",
    "statistics",
    "synchronize",
]

_LATER = {
    name: module
    for module, names in {
        "coarse.faults.torch.resumable": "Resumable",
        "coarse.horovod.allreduce": (
            "Adasum Product allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce "
            "grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ sparse_allreduce_async"
        ),
        "coarse.horovod.builds": (
            "ccl_built cross_rank cross_size cuda_built ddl_built gloo_built gloo_enabled is_homogeneous "
            "mpi_built mpi_enabled mpi_threads_supported nccl_built rocm_built"
        ),
        "coarse.horovod.rows": (
            "allgather allgather_async alltoall alltoall_async broadcast broadcast_ broadcast_async "
            "broadcast_async_ grouped_allgather grouped_allgather_async grouped_reducescatter "
            "grouped_reducescatter_async reducescatter reducescatter_async"
        ),
        "coarse.horovod.sync_batch_norm": "SyncBatchNorm",
        "coarse.luwu.switch": "Switch",
        "coarse.luwu.torch.model_in_network": "model_in_network",
        "coarse.luwu.torch.offloaded": "OffloadedOptimizer",
        "coarse.odc.torch.minibatch": "end_minibatch minibatch_scale publish",
        "coarse.snapshots.training": "restore snapshot",
        "coarse.torch.fsdp.fully_shard": "fully_shard release_caches",
        "coarse.torch.fsdp.recording": "TransferRecorder",
    }.items()
    for name in names.split()
}
"""Module that has each name."""
__getattr__, __dir__ = later(__name__, globals(), _LATER)


_register_backend()
