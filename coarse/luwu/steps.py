# Pure: no MPI, threads, clock or environment.
"""Steps that a device's models ask of its driver; `DeviceModels.on_result` takes the answers."""

from typing import Any, NamedTuple

from coarse.luwu.many_to_one.frames import Frame
from coarse.luwu.records import PagedLooked
from coarse.luwu.store.commit import Commit
from coarse.luwu.store.declaration import Declaration, MemoryPlan
from coarse.luwu.store.instructions import Instruction as StoreInstruction
from coarse.luwu.store.stream import Ring


class OpenStore(NamedTuple):
    """Step that opens the folders of a model; answered with a StoreOpened."""

    model: int
    declaration: Declaration
    num_clients: int
    """Number of workers of this host."""
    num_below: int
    """Number of other devices that push to this one."""
    resumed: Commit | None
    """Record that the first optimizer node found, for the others."""


class StoreOpened(NamedTuple):
    """Answer that folders are open."""

    resumed: Commit | None
    plan: MemoryPlan
    told: str
    """Place and kind of the states, for people."""


class UseMemory(NamedTuple):
    """Step that makes buffers, and the window at an offset of device memory; it needs no answer."""

    model: int
    plan: MemoryPlan
    window: int
    gradients: tuple[int, ...]
    """Offset of each worker's room for gradients, which has to be zeros: it may have been used before."""


class PlaceOfValues(NamedTuple):
    """Place in device memory of values that were pushed."""

    offset: int
    dtype: int
    is_zeroed: bool
    """True if zeros are to be left behind, for the next gradients to be added to."""
    ring: Ring | None = None
    """Ring past whose end the values go on at its beginning; None if they lie in no ring."""


class OpenLinks(NamedTuple):
    """Step that makes the ends of a tree's links; answered with the facts that the peers have to know."""

    model: int
    root: int
    peers: tuple[int, ...]
    """Devices at the other ends."""
    network: str
    loss: float


class ConnectLinks(NamedTuple):
    """Step that connects links to their peers."""

    model: int
    root: int
    peers: dict[int, dict[str, Any]]
    """Description that each device has given of its end towards this device, after `OpenLinks`."""


class CloseLinks(NamedTuple):
    """Step that closes links."""

    model: int
    root: int


class SendFrame(NamedTuple):
    """Step that sends a message to a device of a tree, with packets' payloads."""

    device: int
    frame: Frame
    payloads: tuple[tuple[int, int], ...] = ()
    """(Offset, bytes) in device memory, packets behind one another; only a payload's last may be smaller."""
    packet_bytes: int = 0


class StorePackets(NamedTuple):
    """Step that keeps packets of the frame that is being processed."""

    ring: Ring
    begin: int
    end: int
    row: int
    """Index of the first of these among the frame's packets."""


class AddPackets(NamedTuple):
    """Step that combines values in order; those of half types are widened first."""

    sources: tuple[PlaceOfValues, ...]
    target: int
    num_elements: int
    combine: str
    """Key of COMBINE."""
    wire: int
    """Type of the target, a DType."""


class ZeroValues(NamedTuple):
    """Step that leaves zeros behind, for the next gradients to be added to."""

    offset: int
    nbytes: int


class SendLooked(NamedTuple):
    """Step that brings values to a worker of another host that looks at them, by its device."""

    model: int
    token: int
    """Token of the look."""
    device: int
    record: PagedLooked


class StoreWork(NamedTuple):
    """Step that carries out an instruction of a PagedOptimizer."""

    model: int
    instruction: StoreInstruction
    values: tuple[PlaceOfValues, ...] = ()
    """Places of the values to be added, in order, for AddSum; place of the result, for Look."""


class WriteRecord(NamedTuple):
    """Step that writes a commit's record."""

    model: int
    commit: Commit


class CloseStore(NamedTuple):
    """Step that closes the folders of a model; it needs no answer."""

    model: int


LinkStep = OpenLinks | ConnectLinks | CloseLinks | SendFrame | StorePackets | AddPackets | ZeroValues | SendLooked
PagedStep = OpenStore | UseMemory | StoreWork | WriteRecord | CloseStore | LinkStep
