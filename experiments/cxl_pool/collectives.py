# Pure: no MPI, threads, clock or environment.
"""Collectives of nodes with one GPU each, over a pool and over a network, on a machine's links.

Over the pool (CCCL, arXiv 2602.22457): whoever has bytes stores them, chunk by chunk, and rings a doorbell behind each;
whoever needs a chunk loads it from then on. Over the network as NCCL does: all-gather and broadcast in a ring, pieces
one behind the other; gather and scatter as sends to and from the root.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace

from coarse.hardware.machine import Machine
from coarse.simulation.engine import Engine

CHUNK_BYTES = 4 << 20
"""What is stored before a doorbell, and what a ring hands on at once."""


class Primitive(enum.StrEnum):
    """N is what each node brings, or what the root brings for each."""

    ALL_GATHER = "AllGather"
    BROADCAST = "Broadcast"
    GATHER = "Gather"
    SCATTER = "Scatter"
    ALL_TO_ALL = "AllToAll"
    ALL_REDUCE = "AllReduce"


@dataclass(frozen=True)
class Stored:
    """Bytes that one node stores and others load."""

    writer: int
    readers: tuple[int, ...]
    nbytes: int


def stored_by(primitive: Primitive, num_nodes: int, nbytes: int) -> list[Stored]:
    """What is stored, in the order of each writer; an all-reduce stores all and loads all others' (the plain way)."""
    nodes = tuple(range(num_nodes))
    others = {node: tuple(other for other in nodes if other != node) for node in nodes}
    match primitive:
        case Primitive.ALL_GATHER | Primitive.ALL_REDUCE:
            return [Stored(node, others[node], nbytes) for node in nodes]
        case Primitive.BROADCAST:
            return [Stored(0, others[0], nbytes)]
        case Primitive.GATHER:
            return [Stored(node, (0,), nbytes) for node in others[0]]
        case Primitive.SCATTER:
            return [Stored(0, (node,), nbytes) for node in others[0]]
        case Primitive.ALL_TO_ALL:
            return [Stored(node, (other,), nbytes) for node in nodes for other in others[node]]


def pool_s(
    machine: Machine, primitive: Primitive, num_nodes: int, nbytes: int, chunk_bytes: int = CHUNK_BYTES
) -> float:
    """Seconds over the pool, from the first store to the last load."""
    machine = replace(machine, num_nodes=num_nodes, pool_on=True)
    engine = Engine(machine.links)
    last_s = [0.0]

    def loaded() -> None:
        last_s[0] = max(last_s[0], engine.now_s)

    def load(part: Stored, chunk: int) -> None:
        for reader in part.readers:
            engine.move(("load", reader), machine.pool_path(f"gpu{reader}", stores=False), chunk, loaded)

    def store(part: Stored, chunk: int) -> None:
        path = machine.pool_path(f"gpu{part.writer}", stores=True)
        engine.move(("store", part.writer), path, chunk, lambda: load(part, chunk))

    for part, chunk in _in_turns(stored_by(primitive, num_nodes, nbytes), chunk_bytes):
        store(part, chunk)
    engine.run()
    return last_s[0]


def _in_turns(parts: list[Stored], chunk_bytes: int) -> Iterator[tuple[Stored, int]]:
    """Chunks, a first one of each part, then a second one: no reader waits until others have all of theirs."""
    left = [(part, part.nbytes) for part in parts]
    while left:
        for part, nbytes in left:
            yield part, min(chunk_bytes, nbytes)
        left = [(part, nbytes - chunk_bytes) for part, nbytes in left if nbytes > chunk_bytes]


def network_s(
    machine: Machine, primitive: Primitive, num_nodes: int, nbytes: int, chunk_bytes: int = CHUNK_BYTES
) -> float:
    """Seconds over the network, as NCCL does it."""
    machine = replace(machine, num_nodes=num_nodes, pool_on=False)
    engine = Engine(machine.links)
    last_s = [0.0]

    def arrived() -> None:
        last_s[0] = max(last_s[0], engine.now_s)

    def hand_on(node: int, hops: int, chunk: int) -> None:
        arrived()
        if hops:
            onward = (node + 1) % num_nodes
            path = machine.path(f"gpu{node}", f"gpu{onward}")
            engine.move(("send", node), path, chunk, lambda: hand_on(onward, hops - 1, chunk))

    ring = {Primitive.ALL_GATHER: (range(num_nodes), 1), Primitive.BROADCAST: ((0,), 1),
            Primitive.ALL_REDUCE: (range(num_nodes), 2)}  # fmt: skip
    if primitive in ring:
        starts, rounds = ring[primitive]
        share = -(-nbytes // num_nodes) if primitive is Primitive.ALL_REDUCE else nbytes
        for part, chunk in _in_turns([Stored(node, (), share) for node in starts], chunk_bytes):
            hand_on(part.writer, rounds * (num_nodes - 1), chunk)
    else:
        for part, chunk in _in_turns(stored_by(primitive, num_nodes, nbytes), chunk_bytes):
            (reader,) = part.readers
            path = machine.path(f"gpu{part.writer}", f"gpu{reader}")
            engine.move(("send", part.writer, reader), path, chunk, arrived)
    engine.run()
    return last_s[0]


def ratio(
    machine: Machine, primitive: Primitive, num_nodes: int, nbytes: int, chunk_bytes: int = CHUNK_BYTES
) -> float:
    """How many times as long the network takes as the pool."""
    network, pool = (
        way(machine, primitive, num_nodes, nbytes, chunk_bytes) for way in (network_s, pool_s)
    )
    return network / pool
