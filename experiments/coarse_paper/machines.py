"""Presets changed in one respect: what an input of the evaluation, or a variation of it, makes of a machine."""

from collections.abc import Collection
from dataclasses import replace

from coarse.hardware.machine import Machine
from coarse.hardware.presets import load_preset
from coarse.hardware.wire import Wire

WIDE_T4_BYTES_PER_S = 9.93e9
"""Titan RTX under one switch, without peer-to-peer (README of a public repository)."""
_MIN_RING = 3
"""Two members use both directions of their cable in any case: each sends to the other."""


def with_rings_both_ways(machine: Machine, members: Collection[str]) -> Machine:
    """NVLinks among the members of a ring at twice their rate, which is one ring in each direction.

    NCCL builds several rings at once, as many as cables allow, in both directions (NVIDIA/nccl issue 713: six among
    four V100 with six NVLinks each). Our workers' ring goes one way; half of the bytes each way take as long.
    """
    if len(members) < _MIN_RING or machine.num_nodes > 1:
        return machine
    cables = tuple(
        replace(cable, wire=replace(cable.wire, bytes_per_s=2 * cable.wire.bytes_per_s))
        if set(cable.between) <= set(members)
        else cable
        for cable in machine.nvlinks
    )
    return replace(machine, nvlinks=cables)


def with_direct_copies(machine: Machine) -> Machine:
    """Copies between GPUs that are not staged, at what COARSE III-E states of SDSC's local pair: 13 and 25 GB/s."""
    port = load_preset("sdsc-p100").tree.by_name["gpu0"].wire
    places = tuple(
        replace(place, wire=replace(port, name=place.wire.name)) if place.wire.name in ("gpu-port", "uplink") else place
        for place in machine.tree.places
    )
    return replace(machine, peer_to_peer=True, tree=replace(machine.tree, places=places))


def with_ports(machine: Machine, bytes_per_s: float) -> Machine:
    """The T4 machine with ports of this rate one way, and uplinks of twice it."""
    factor = bytes_per_s / machine.tree.by_name["gpu0"].wire.bytes_per_s
    if factor == 1.0:
        return machine
    places = tuple(
        replace(place, wire=_faster(place.wire, factor)) if place.wire.name in ("gpu-port", "uplink") else place
        for place in machine.tree.places
    )
    return replace(machine, tree=replace(machine.tree, places=places))


def _faster(wire: Wire, factor: float) -> Wire:
    """One direction faster; what limits both together stays."""
    up, down = (tuple((nbytes, seconds / factor) for nbytes, seconds in table) for table in (wire.up_table,
                wire.down_table))  # fmt: skip
    return replace(wire, bytes_per_s=wire.bytes_per_s * factor, up_table=up, down_table=down)


def with_neighbours_first(machine: Machine) -> Machine:
    """GPUs renamed so that every other one, where lone workers stand, share a switch."""
    places = {place.name: place for place in machine.tree.places}
    swapped = dict(places)
    for first in range(0, len(machine.tree.gpus), 4):
        one, other = f"gpu{first + 1}", f"gpu{first + 2}"
        swapped[one] = replace(places[one], parent=places[other].parent)
        swapped[other] = replace(places[other], parent=places[one].parent)
    return replace(machine, tree=replace(machine.tree, places=tuple(swapped.values())))
