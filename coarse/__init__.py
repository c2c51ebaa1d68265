"""coarse: distributed training over emulated and real CXL memory devices (COARSE, HPCA 2022).

    import coarse
    coarse.init()                                  # under mpirun; memory devices never return
    total = coarse.push_pull(array, "gradient")    # the average over all workers

Snapshots are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from coarse.arrays import (
    barrier,
    before_overwrite,
    device_array,
    forget,
    grouped_push_pull,
    grouped_push_pull_async,
    local_rank,
    local_size,
    profile,
    pull,
    push,
    push_pull,
    push_pull_async,
    rank,
    size,
    state_array,
    statistics,
    workers_comm,
)
from coarse.client.handle import Handle
from coarse.errors import (
    CapacityError,
    CheckpointError,
    CoarseError,
    CoherenceError,
    ConfigError,
    DeadRankError,
    GpuError,
    InFlightError,
    JoinedError,
    LentMemoryError,
    MismatchError,
    NotInitializedError,
    NotKeptError,
    OutOfDeviceMemoryError,
    SnapshotError,
    StallError,
    StorageError,
)
from coarse.protocol.config import Config, FixedRouting, Launch, MeasuredRouting, PoolSettings
from coarse.protocol.distribution import VERSION as __version__
from coarse.protocol.dtypes import Op
from coarse.protocol.features import later
from coarse.session import init, is_initialized, shutdown

if TYPE_CHECKING:
    from coarse.snapshots.client import SnapshotHandle
    from coarse.snapshots.face import restore, snapshot
    from coarse.snapshots.files.restore import Checkpoint

Average = Op.AVERAGE
"""The mean over all workers, of floating-point arrays alone: a mean of integers would be rounded."""
Sum = Op.SUM
"""The sum over all workers."""
Min = Op.MIN
"""The least of all workers' values, element by element."""
Max = Op.MAX
"""The greatest of all workers' values, element by element."""

__all__ = [
    "Average",
    "CapacityError",
    "Checkpoint",
    "CheckpointError",
    "CoarseError",
    "CoherenceError",
    "Config",
    "ConfigError",
    "DeadRankError",
    "FixedRouting",
    "GpuError",
    "Handle",
    "InFlightError",
    "JoinedError",
    "Launch",
    "LentMemoryError",
    "Max",
    "MeasuredRouting",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "NotKeptError",
    "Op",
    "OutOfDeviceMemoryError",
    "PoolSettings",
    "SnapshotError",
    "SnapshotHandle",
    "StallError",
    "StorageError",
    "Sum",
    "__version__",
    "barrier",
    "before_overwrite",
    "device_array",
    "forget",
    "grouped_push_pull",
    "grouped_push_pull_async",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "profile",
    "pull",
    "push",
    "push_pull",
    "push_pull_async",
    "rank",
    "restore",
    "shutdown",
    "size",
    "snapshot",
    "state_array",
    "statistics",
    "workers_comm",
]

_LATER = {
    "Checkpoint": "coarse.snapshots.files.restore",
    "SnapshotHandle": "coarse.snapshots.client",
    "restore": "coarse.snapshots.face",
    "snapshot": "coarse.snapshots.face",
}
"""Module of each name that is imported on its first use."""
__getattr__, __dir__ = later(__name__, globals(), _LATER)
