"""Costs of records, of a device's instructions and of a worker's steps: bytes over a way, elements at a processor.

The kernel's table is coarse.proxy.costs, and a feature's stands where its spec says (`FeatureSpec.costs`). Drivers that
keep modelled time, simulated and emulated ones, read them: each turns amounts into seconds by the rates of its machine.
A record costs its sender what the bytes take that it announces, and is there once they are.
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
    """Bytes to them."""
    STEPS = "steps"
    """Elements that an optimizer steps, at the device's processor."""


class Cost(NamedTuple):
    """Amount over one way."""

    way: Way
    amount: int
    device: int = -1
    """Memory device that is pushed to or pulled from."""
    fetched: tuple[tuple[int, int], ...] = ()
    """(device, bytes) that a device reads from others' memory before."""


FREE = Cost(Way.NOTHING, 0)
Costs = Mapping[type, Callable[[Any, Any], Cost]]
"""Function that returns a cost, by class of a record, instruction or step: of one, with the sizes that its table
wants."""


def free(_: object, __: object) -> Cost:
    """Return the cost of what moves and computes nothing worth counting."""
    return FREE


def cost_of(costs: Costs, one: object, sizes: object) -> Cost:
    """Return the cost of a record, an instruction or a step.

    Raises:
        UnsupportedError: the table has none of its class, so that no modelled time can be told.
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
