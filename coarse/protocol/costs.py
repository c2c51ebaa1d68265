"""Costs of records, of a device's instructions and of a worker's steps, in bytes or elements.

A cost is an amount over one way: bytes over a link, or elements at a processor. The kernel's table is
coarse.proxy.costs, and a feature's stands where its spec says (`FeatureSpec.costs`). Drivers that keep modelled time,
simulated and emulated ones, read the tables: each turns amounts into seconds by the rates of its machine. A record
costs its sender the time of the bytes that it announces, and it arrives once they have arrived.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from coarse.errors import UnsupportedError


class Way(enum.StrEnum):
    """Resource that is kept busy."""

    NOTHING = "nothing"
    PUSHES = "pushes"
    """Bytes from a worker to a device of its node."""
    PULLS = "pulls"
    """Bytes from a device to a worker of its node."""
    ADDS = "adds"
    """Bytes that the device adds, or copies within its memory: its adder's rate."""
    COPIES = "copies"
    """Bytes copied out of device memory into the host's."""
    SENDS = "sends"
    """Bytes to another device, over the links between them."""
    READS = "reads"
    """Bytes from the feature's disks."""
    WRITES = "writes"
    """Bytes to the feature's disks."""
    STEPS = "steps"
    """Elements that an optimizer steps, at the device's processor."""


class Cost(NamedTuple):
    """Amount over one way."""

    way: Way
    amount: int
    device: int = -1
    """Memory device of a push or a pull."""
    fetched: tuple[tuple[int, int], ...] = ()
    """(device, bytes) that a device first reads from others' memory."""


FREE = Cost(Way.NOTHING, 0)
Costs = Mapping[type, Callable[[Any, Any], Cost]]
"""Functions that return a cost, by class of a record, instruction or step: each takes one of these, and the sizes that
its table needs."""


def free(_: object, __: object) -> Cost:
    """Return the cost of a record or instruction that moves and computes nothing worth counting."""
    return FREE


def cost_of(costs: Costs, one: object, sizes: object) -> Cost:
    """Return the cost of a record, an instruction or a step.

    Raises:
        UnsupportedError: The table has no cost for its class, so that its modelled time is not known.
    """
    found = costs.get(type(one))
    if found is None:
        raise no_cost(type(one))
    return found(one, sizes)


def no_cost(kind: type) -> UnsupportedError:
    """Return the error that says that a class has no cost."""
    return UnsupportedError(
        f"no cost is stated of {kind.__name__}, so its time would be missing from the result; leave out --machine, "
        "predict the mode (coarse predict --modes), or state the cost in the table of its feature (FeatureSpec.costs)"
    )
