# Pure: no MPI, threads, clock or environment.
"""What on-demand communication asks of a device's driver, beside records to be sent, and what a worker copies.

A device's steps are carried out in order. What OdcAdd found is handed to `DeviceOdc.on_found`, and OdcDone
to `DeviceOdc.on_done`.
"""

from typing import NamedTuple

from coarse.odc.layout import Spot
from coarse.odc.records import OdcRows, OdcShards, OdcSums
from coarse.odc.wide_sum import Found


class Sent(NamedTuple):
    """Whose piece is added, and where it lay."""

    client: int
    minibatch: int
    slot: int
    teller: int
    """The device that tells the worker."""


class OdcAdd(NamedTuple):
    """Add a piece's row to an owner's sums."""

    model: int
    unit: int
    owner: int
    sent: Sent
    mask: int
    started: int
    """Parameters of which something was added before in this minibatch; others begin anew."""
    source: Spot | None
    """None: in the message that is being handed over."""
    at: int
    """Of a message: where the row begins."""
    target: Spot


class OdcAddInOrder(NamedTuple):
    """Add the n-th pieces of all workers, in their order, to an owner's sums."""

    model: int
    unit: int
    owner: int
    mask: int
    is_first: bool
    sources: tuple[Spot | int, ...]
    """By worker where the row lies; a number: of a row that was set aside."""
    target: Spot


class OdcDone(NamedTuple):
    """All rows of pieces of a unit were added that this device adds."""

    model: int
    unit: int
    sent: tuple[Sent, ...]


class OdcSetAside(NamedTuple):
    """Keep rows of the message that is being handed over until their turn."""

    number: int
    at: int
    nbytes: int


class OdcSend(NamedTuple):
    """Send a record to a device of another node, and bytes of this node's memory behind it."""

    device: int
    record: OdcShards | OdcRows | OdcSums
    payload: tuple[tuple[Spot, int], ...]
    """(Where, bytes)."""
    found: tuple[Found, ...] = ()
    """Of OdcSums: what did not fit."""


class OdcStore(NamedTuple):
    """Copy bytes of the message that is being handed over."""

    at: int
    nbytes: int
    target: Spot


class OdcMerge(NamedTuple):
    """Add sums of the message that is being handed over to an owner's."""

    model: int
    unit: int
    mask: int
    started: int
    target: Spot


class OdcMark(NamedTuple):
    """Write into complete sums what did not fit."""

    model: int
    unit: int
    target: Spot
    found: tuple[Found, ...]


class OdcRead(NamedTuple):
    """A worker copies shards of a unit out of one device's memory."""

    unit: int
    device: int
    num_shards: int


class OdcTake(NamedTuple):
    """A worker reads its own sums of a unit."""

    unit: int
    device: int


OdcStep = OdcAdd | OdcAddInOrder | OdcDone | OdcSetAside | OdcSend | OdcStore | OdcMerge | OdcMark
