"""Parameters and optimizer state in device memory, held at iteration boundaries (COARSE IV-A).

weights = coarse.state_array("weights", (4096, 4096), np.float32)
for step in range(num_steps):
    gradient = coarse.push_pull(gradient_of(weights), "gradient")
    coarse.before_overwrite()                  # at once, unless a snapshot is being copied
    weights -= rate * gradient
    if step % 1000 == 0:                       # or at each epoch's end
        coarse.snapshot("checkpoints/last", step=step)
"""

import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from coarse.arrays import checked_shape
from coarse.client.snapshots import ClientSnapshots, SnapshotHandle
from coarse.client.states import StateArray, label
from coarse.errors import CheckpointError
from coarse.protocol.dtypes import DType, dtype_of
from coarse.session import current
from coarse.storage.snapshots.pieces import StoredTensor
from coarse.storage.snapshots.restore import Checkpoint, read_checkpoint

__all__ = ["Checkpoint", "SnapshotHandle", "before_overwrite", "restore", "snapshot", "state_array"]


def state_array(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array in device memory that is not synchronised, zeros at first; snapshots hold it.

    Call `before_overwrite` before each change of its values. The same name gives the same array.

    Raises:
        MismatchError: the name has another shape or type.
        CapacityError: the device is full.
    """
    return state_array_of(name, shape, dtype_of(np.empty(0, dtype)))


def state_array_of(name: str, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """As `state_array`, for types that numpy does not know: bfloat16 comes as uint16."""
    return _snapshots().states.array(name, checked_shape(name, shape), dtype)


def before_overwrite(names: Collection[str] | None = None) -> None:
    """Return once these state arrays (default: all) may be overwritten.

    That is at once where no snapshot is being taken; else those that are not copied yet are copied
    first. Call it after `snapshot` and before the first change, each time.
    """
    _snapshots().before_overwrite(names)


def snapshot(
    path: str | os.PathLike[str],
    *,
    step: int,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | StoredTensor] | None = None,
) -> SnapshotHandle:
    """Hold all state arrays as they are now and write them to the folder `path`; returns at once.

    All workers call it at the same iteration boundary, with equal values: each one's device
    writes a share. A snapshot that is still being written is waited for first. The checkpoint that
    `path` held before is replaced when the new one is whole on the disk.

    Args:
        path: a folder on a file system that all memory devices see.
        step: the iteration, for `restore`.
        metadata: whatever JSON can hold, for `restore`; rank 0's is kept.
        tensors: further arrays by name, which are copied before this returns.

    Raises:
        SnapshotError: here, where this rank's arguments are wrong; whatever else fails, on any
            rank, is raised by the handle's `wait` on all of them.
    """
    given = {name: _stored(name, tensor) for name, tensor in (tensors or {}).items()}
    folder = Path(os.path.abspath(path))
    return _snapshots().begin(folder, step, metadata or {}, given)


def restore(path: str | os.PathLike[str]) -> Checkpoint:
    """What a snapshot held; values of state arrays that exist are copied into them.

    Any number of workers may read a checkpoint, whatever number wrote it; each reads all of it.

    Raises:
        CheckpointError: no whole checkpoint is there, or a state array differs in shape or type.
    """
    checkpoint = read_checkpoint(Path(path))
    arrays = _snapshots().states.arrays
    found = {name: state for name, state in arrays.items() if name in checkpoint.tensors}
    for name, state in found.items():
        require_like(state, checkpoint.tensors[name], path)
    if len(found) < len(arrays):
        missing = next(name for name in arrays if name not in found)
        warnings.warn(
            f"{os.fspath(path)}: {len(arrays) - len(found)} state arrays are not in this "
            f"checkpoint and keep their values, such as {missing!r}",
            RuntimeWarning,
            stacklevel=2,
        )
    before_overwrite(found)
    for name, state in found.items():
        state.array[...] = checkpoint.tensors[name].array
    return checkpoint


def require_like(state: StateArray, stored: StoredTensor, path: str | os.PathLike[str]) -> None:
    """Raise CheckpointError unless a stored tensor fits a state array."""
    wanted = label(state.dtype, state.array.shape)
    came = label(stored.dtype, stored.array.shape)
    if wanted != came:
        raise CheckpointError(
            f"{os.fspath(path)}: {state.name!r} was wanted as {wanted}, but came as {came}; "
            "restore into the model that the snapshot was taken of"
        )


def _snapshots() -> ClientSnapshots:
    return current().require_snapshots()


def _stored(name: str, tensor: np.ndarray | StoredTensor) -> StoredTensor:
    if isinstance(tensor, StoredTensor):
        return tensor
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"{name!r}: a numpy array was wanted, {type(tensor).__name__} came")
    return StoredTensor(dtype=dtype_of(tensor), array=tensor)
