# Pure: no MPI, threads, clock or environment.
"""Routing by measured load: buckets go to the devices that would be done first, the longest bucket first."""

from collections.abc import Sequence
from dataclasses import dataclass

from coarse.strategy import Cluster, Coarse, Facts, Plan, ProxyProfile, Tensor, ring_of_all

ATTOSECONDS = 1e18
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LoadAware(Coarse):
    """Gives each bucket to one place among a node's devices; a ring of all devices sums it."""

    def facts(self, worker: int, ways: Sequence[ProxyProfile], cluster: Cluster) -> Facts:
        """Return attoseconds a byte to each device of the worker's node, by 1 MiB."""
        return tuple(round(way.copy_s(MIB) / MIB * ATTOSECONDS) for way in ways)

    def hints(self, nbytes: Sequence[int], cluster: Cluster, facts: tuple[Facts, ...]) -> list[int]:
        """Return by bucket the place of its device among those of a node: 0 is the first."""
        places = range(min(len(row) for row in facts))
        per_byte = [max(row[place] for row in facts) for place in places]  # of the slowest worker
        done, hints = [0] * len(places), [0] * len(nbytes)
        for bucket in sorted(range(len(nbytes)), key=lambda number: -nbytes[number]):
            place = min(places, key=lambda each: done[each] + per_byte[each] * nbytes[bucket])
            done[place] += per_byte[place] * nbytes[bucket]
            hints[bucket] = place
        return hints

    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        """Return a ring of all devices, each worker's region on the hinted device of its node."""
        homes = [cluster.devices_on(node)[tensor.hint] for node in cluster.worker_nodes]
        return ring_of_all(tensor, cluster, homes, self.routing.max_partition_bytes)
