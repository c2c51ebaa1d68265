"""Interface of snapshots of state arrays and further arrays, and of restores (COARSE IV-A)."""

import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coarse.client.states import StateArray, label
from coarse.errors import CheckpointError
from coarse.protocol.dtypes import dtype_of
from coarse.session import current
from coarse.snapshots.client import ClientSnapshots, SnapshotHandle
from coarse.snapshots.files.pieces import StoredTensor
from coarse.snapshots.files.restore import Checkpoint, read_checkpoint


def snapshot(
    path: str | os.PathLike[str],
    *,
    step: int,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | StoredTensor] | None = None,
    unlike: Collection[str] = (),
) -> SnapshotHandle:
    """Hold all state arrays as they are now and write them to the folder `path`; return at once.

    All workers call it at the same iteration boundary, with equal values: each one's device
    writes a share. A snapshot that is still being written is waited for first. The checkpoint that
    `path` held before is replaced when the new one is whole on the disk.

    Args:
        path: a folder on a file system that all memory devices see.
        step: the iteration, for `restore`.
        metadata: values that JSON can hold, for `restore`; rank 0's are kept.
        tensors: further arrays by name, which are copied before this returns.
        unlike: names among them whose values may differ from worker to worker; rank 0's are kept.

    Raises:
        SnapshotError: here, where this rank's arguments are wrong; any other failure, on any
            rank, is raised by the handle's `wait` on all of them.
    """
    given = {name: _stored(name, tensor) for name, tensor in (tensors or {}).items()}
    folder = Path(os.path.abspath(path))
    return current().require_client().part(ClientSnapshots).begin(folder, step, metadata or {}, given, unlike)


def restore(path: str | os.PathLike[str]) -> Checkpoint:
    """Return a snapshot's content, and copy values of state arrays that exist into them.

    Any number of workers may read a checkpoint, written by any number; each reads all of it.

    Raises:
        CheckpointError: no whole checkpoint is there, or a state array differs in shape or type.
    """
    checkpoint = read_checkpoint(Path(path))
    states = current().require_client().states
    arrays = states.arrays
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
    states.before_overwrite(found)
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


def _stored(name: str, tensor: np.ndarray | StoredTensor) -> StoredTensor:
    if isinstance(tensor, StoredTensor):
        return tensor
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"{name!r}: a numpy array was wanted, {type(tensor).__name__} came")
    return StoredTensor(dtype=dtype_of(tensor), array=tensor)
