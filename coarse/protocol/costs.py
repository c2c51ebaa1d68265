"""Costs of a feature's instructions to its device, in bytes over a way or elements at a processor.

A feature's table stands where its spec says (`FeatureSpec.costs`), and drivers that keep modelled time read it: each
turns amounts into seconds by the rates of its machine. Records themselves cost what the kernel's do.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from coarse.errors import CoarseError


class Way(enum.StrEnum):
    """Resource that is kept busy."""

    NOTHING = "nothing"
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


FREE = Cost(Way.NOTHING, 0)
Costs = Mapping[type, Callable[[Any, Any], Cost]]
"""Function that returns a cost, by class of an instruction: of one, with its feature's sizes (declaration, model)."""


def free(_: object, __: object) -> Cost:
    """Cost of an instruction that moves and computes nothing worth counting."""
    return FREE


def cost_of(costs: Costs, instruction: object, sizes: object) -> Cost:
    """Return an instruction's cost.

    Raises:
        CoarseError: the table has none of its class, so that no modelled time can be told.
    """
    found = costs.get(type(instruction))
    if found is None:
        raise CoarseError(f"no cost is stated of {type(instruction).__name__}; state it in the table of its feature")
    return found(instruction, sizes)
