# Pure: no MPI, threads, clock or environment.
"""What a device's models ask of its driver, beside records to be sent. Each is answered by `DeviceModels.on_result`."""

from typing import NamedTuple

from coarse.storage.paged.commit import Commit
from coarse.storage.paged.declaration import Declaration, MemoryPlan
from coarse.storage.paged.instructions import Instruction as StoreInstruction


class OpenStore(NamedTuple):
    """Open the folders of a model; answered with a StoreOpened."""

    model: int
    declaration: Declaration
    num_clients: int
    """Workers of this host."""
    resumed: Commit | None
    """The record that the first optimizer node found, for the others."""


class StoreOpened(NamedTuple):
    """Folders are open."""

    resumed: Commit | None
    plan: MemoryPlan
    told: str
    """Where states are and how, for people."""


class UseMemory(NamedTuple):
    """Make buffers, the window at an offset of device memory. Needs no answer."""

    model: int
    plan: MemoryPlan
    window: int
    gradients: tuple[int, ...]
    """Where each worker's room for gradients begins, which has to be zeros: it may have been used before."""


class PlaceOfValues(NamedTuple):
    """Where values of a chunk, that a worker has pushed, lie in device memory."""

    offset: int
    dtype: int
    is_zeroed: bool
    """Whether to leave zeros behind, for the next gradients to be added to."""


class StoreWork(NamedTuple):
    """Carry out an instruction of a PagedOptimizer."""

    model: int
    instruction: StoreInstruction
    values: tuple[PlaceOfValues, ...] = ()
    """Of AddSum: what to add, in order. Of Look: where to put it."""


class WriteRecord(NamedTuple):
    """Write a commit's record."""

    model: int
    commit: Commit


class CloseStore(NamedTuple):
    """Close the folders of a model. Needs no answer."""

    model: int


PagedStep = OpenStore | UseMemory | StoreWork | WriteRecord | CloseStore
