# Pure: no MPI, threads, clock or environment.
"""What the profiler measures, in which order, and the table that follows (COARSE III-E, dynamic partitioning).

Live profiling, the simulator and emulated runs carry out the same probes: each its own way of moving bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from coarse.client.routing import ProxyProfile, derive_table
from coarse.protocol.config import MeasuredRouting
from coarse.protocol.plan import RoutingTable
from coarse.protocol.units import KIB

SMALLEST_BYTES = 4 * KIB
"""From here on is measured: where proxies cross may lie far below the size of a shard."""


class ProbeCopy(NamedTuple):
    """One measurement on a client's way to a device."""

    device: int
    nbytes: int
    """0: the start-up latency alone."""


@dataclass(frozen=True, kw_only=True)
class Probing:
    """All that one client measures: of each of its devices the latency, then transfers of rising sizes."""

    devices: tuple[int, ...]
    local: int
    routing: MeasuredRouting

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes, doubling from 4 KiB to the largest partition."""
        sizes = [min(SMALLEST_BYTES, self.routing.min_partition_bytes)]
        while sizes[-1] * 2 <= self.routing.max_partition_bytes:
            sizes.append(sizes[-1] * 2)
        return tuple(sizes)

    def probes_of(self, device: int) -> Iterator[ProbeCopy]:
        """What is measured on the way to one device, in order."""
        yield ProbeCopy(device, 0)
        for nbytes in self.sizes:
            yield ProbeCopy(device, nbytes)

    def probes(self) -> Iterator[ProbeCopy]:
        """What is measured, in order."""
        for device in self.devices:
            yield from self.probes_of(device)

    def profile(self, device: int, seconds: Mapping[ProbeCopy, float]) -> ProxyProfile:
        """One device's part of what was measured."""
        return ProxyProfile(
            device=device,
            is_local=device == self.local,
            latency_s=seconds[ProbeCopy(device, 0)],
            seconds_by_nbytes=tuple((nbytes, seconds[ProbeCopy(device, nbytes)]) for nbytes in self.sizes),
        )

    def table(self, seconds: Mapping[ProbeCopy, float]) -> RoutingTable:
        """What follows from the seconds of all probes."""
        return derive_table(
            [self.profile(device, seconds) for device in self.devices],
            tie_tolerance=self.routing.tie_tolerance,
            min_partition_bytes=self.routing.min_partition_bytes,
            max_partition_bytes=self.routing.max_partition_bytes,
        )
