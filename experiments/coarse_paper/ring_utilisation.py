"""How much of the NVLinks among some GPUs a ring uses: its slowest hop sets the rate of all (COARSE II-B).

    python -m experiments.coarse_paper.ring_utilisation

The paper's 34 % is Blink's, which says neither how it counts nor for which GPUs: nothing to hold a row against.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

from coarse.hardware.machine import Machine
from coarse.hardware.presets import load_preset
from experiments.coarse_paper.inputs import Platform

_SIZES = range(3, 9)
"""Members of a ring; two always use all that joins them."""


@dataclass(frozen=True, kw_only=True)
class Ring:
    """The best ring of NVLinks among some GPUs."""

    members: tuple[str, ...]
    used: float
    """Of the bandwidth of all NVLinks among them; rings in both directions use both directions of a link."""


def rings(machine: Machine) -> Iterator[Ring]:
    """Of every set of 3 to 8 GPUs of a node that a ring of NVLinks can join."""
    rate = {frozenset(cable.between): cable.wire.bytes_per_s for cable in machine.nvlinks}
    for size in _SIZES:
        for members in combinations(machine.tree.gpus, size):
            slowest = max(_slowest(rate, (members[0], *rest)) for rest in permutations(members[1:]))
            if slowest:
                yield Ring(members=members, used=size * slowest / _total(rate, members))


def num_sets(machine: Machine) -> int:
    """Sets of 3 to 8 GPUs, whether a ring joins them or not."""
    return sum(1 for size in _SIZES for _ in combinations(machine.tree.gpus, size))


def main() -> None:
    """The least of all sets of a DGX-1's GPUs."""
    machine = load_preset(Platform.V100.value)
    found = list(rings(machine))
    least = min(found, key=lambda ring: ring.used)
    print(
        f"least: {least.used:.1%}, of {len(least.members)} GPUs; of {num_sets(machine)} sets {len(found)} have a ring "
        "of NVLinks (simulated)"
    )


def _slowest(rate: dict[frozenset[str], float], order: Sequence[str]) -> float:
    """Bytes per second of a ring's slowest hop; 0 where a hop has no NVLink."""
    return min(rate.get(frozenset(hop), 0.0) for hop in (*pairwise(order), (order[-1], order[0])))


def _total(rate: dict[frozenset[str], float], members: Collection[str]) -> float:
    return sum(bytes_per_s for ends, bytes_per_s in rate.items() if ends <= set(members))


if __name__ == "__main__":
    main()
