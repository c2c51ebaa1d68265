# Pure: no MPI, threads, clock or environment.
"""Steps of on-demand communication for a device's driver, beside records, and a worker's copies.

A device's steps are carried out in order. The values found by OdcAdd go to `DeviceOdc.on_found`, and OdcDone to
`DeviceOdc.on_done`.
"""

from typing import NamedTuple

from coarse.odc.layout import Spot
from coarse.odc.records import OdcRows, OdcShards, OdcSums
from coarse.odc.wide_sum import SkippedValue


class Sent(NamedTuple):
    """Origin of a piece that is added: its worker, and its place."""

    client: int
    minibatch: int
    slot: int
    teller: int
    """Device that tells the worker."""


class OdcAdd(NamedTuple):
    """Step that adds a piece's row to an owner's sums."""

    model: int
    unit: int
    owner: int
    sent: Sent
    mask: int
    started: int
    """Parameters of which something was added before in this minibatch; others begin anew."""
    source: Spot | None
    """Place of the row; None: the message that is being processed."""
    at: int
    """Offset of the row in the message."""
    target: Spot


class OdcAddInOrder(NamedTuple):
    """Step that adds the n-th pieces of all workers, in their order, to an owner's sums."""

    model: int
    unit: int
    owner: int
    mask: int
    is_first: bool
    sources: tuple[Spot | int, ...]
    """Place of each worker's row, or the number of a row that was set aside."""
    target: Spot


class OdcDone(NamedTuple):
    """Step that tells that all rows of a unit's pieces were added which this device adds."""

    model: int
    unit: int
    sent: tuple[Sent, ...]


class OdcSetAside(NamedTuple):
    """Step that keeps rows of the message that is being processed until their turn."""

    number: int
    at: int
    nbytes: int


class OdcSend(NamedTuple):
    """Step that sends a record to a device of another node, and bytes of this node's memory behind it."""

    device: int
    record: OdcShards | OdcRows | OdcSums
    payload: tuple[tuple[Spot, int], ...]
    """(Place, bytes)."""
    found: tuple[SkippedValue, ...] = ()
    """Values that did not fit, for OdcSums."""


class OdcStore(NamedTuple):
    """Step that copies bytes of the message that is being processed."""

    at: int
    nbytes: int
    target: Spot


class OdcMerge(NamedTuple):
    """Step that adds sums of the message that is being processed to an owner's."""

    model: int
    unit: int
    mask: int
    started: int
    target: Spot


class OdcMark(NamedTuple):
    """Step that marks values that did not fit in complete sums."""

    model: int
    unit: int
    target: Spot
    found: tuple[SkippedValue, ...]


class OdcRead(NamedTuple):
    """Copy of shards of a unit out of one device's memory by a worker."""

    unit: int
    device: int
    num_shards: int


class OdcTake(NamedTuple):
    """Read of a worker's own sums of a unit."""

    unit: int
    device: int


OdcStep = OdcAdd | OdcAddInOrder | OdcDone | OdcSetAside | OdcSend | OdcStore | OdcMerge | OdcMark
