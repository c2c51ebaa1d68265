# Pure: no MPI, threads, clock or environment.
"""What a device's models ask of its driver, beside records to be sent. Each is answered by `DeviceModels.on_result`."""

from typing import Any, NamedTuple

from coarse.luwu.many_to_one.frames import Frame
from coarse.luwu.records import PagedLooked
from coarse.luwu.store.commit import Commit
from coarse.luwu.store.declaration import Declaration, MemoryPlan
from coarse.luwu.store.instructions import Instruction as StoreInstruction
from coarse.luwu.store.stream import Ring


class OpenStore(NamedTuple):
    """Open the folders of a model; answered with a StoreOpened."""

    model: int
    declaration: Declaration
    num_clients: int
    """Workers of this host."""
    num_below: int
    """Other devices that push to this one."""
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
    """Where values that were pushed lie in device memory."""

    offset: int
    dtype: int
    is_zeroed: bool
    """Whether to leave zeros behind, for the next gradients to be added to."""
    ring: Ring | None = None
    """Past the end of which they go on at its beginning."""


class OpenLinks(NamedTuple):
    """Make ready for the links of a tree; answered with what the peers have to know."""

    model: int
    root: int
    peers: tuple[int, ...]
    """Devices."""
    network: str
    loss: float


class ConnectLinks(NamedTuple):
    """Have links lead to their peers."""

    model: int
    root: int
    peers: dict[int, dict[str, Any]]
    """By device, what `OpenLinks` has said there of this one."""


class CloseLinks(NamedTuple):
    """Give links up."""

    model: int
    root: int


class SendFrame(NamedTuple):
    """Send a message to a device of a tree, with packets' payloads."""

    device: int
    frame: Frame
    payloads: tuple[tuple[int, int], ...] = ()
    """(Offset, bytes) in device memory, packets behind one another; only a payload's last may be smaller."""
    packet_bytes: int = 0


class StorePackets(NamedTuple):
    """Keep packets of the frame that is being handed over."""

    ring: Ring
    begin: int
    end: int
    row: int
    """Which of the frame's packets the first is."""


class AddPackets(NamedTuple):
    """Combine values in order; those of half types are widened first."""

    sources: tuple[PlaceOfValues, ...]
    target: int
    num_elements: int
    combine: str
    """A key of COMBINE."""
    wire: int
    """The type of the target, a DType."""


class ZeroValues(NamedTuple):
    """Leave zeros behind, for the next gradients to be added to."""

    offset: int
    nbytes: int


class SendLooked(NamedTuple):
    """Bring what was looked at to a worker of another host, by its device."""

    model: int
    token: int
    """Of the look."""
    device: int
    record: PagedLooked


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


LinkStep = OpenLinks | ConnectLinks | CloseLinks | SendFrame | StorePackets | AddPackets | ZeroValues | SendLooked
PagedStep = OpenStore | UseMemory | StoreWork | WriteRecord | CloseStore | LinkStep
