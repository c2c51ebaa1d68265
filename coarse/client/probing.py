# Pure: no MPI, threads, clock or environment.
"""Probes of the profiler, and their order (COARSE III-E, dynamic partitioning).

Live profiling, the simulator and emulated runs carry out the same probes: each its own way of moving bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from coarse.protocol.plan import Cluster, Facts
from coarse.strategy.routing import ProxyProfile
from coarse.strategy.strategy import Strategy, require_facts


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
    sizes: tuple[int, ...]
    """Bytes, rising: `Strategy.probes`."""

    def probes_of(self, device: int) -> Iterator[ProbeCopy]:
        """Yield the probes on the way to one device, in order."""
        yield ProbeCopy(device, 0)
        for nbytes in self.sizes:
            yield ProbeCopy(device, nbytes)

    def probes(self) -> Iterator[ProbeCopy]:
        """Yield all probes, in order."""
        for device in self.devices if self.sizes else ():
            yield from self.probes_of(device)

    def profile(self, device: int, seconds: Mapping[ProbeCopy, float]) -> ProxyProfile:
        """Return one device's part of what was measured."""
        return ProxyProfile(
            device=device,
            is_local=device == self.local,
            latency_s=seconds[ProbeCopy(device, 0)],
            seconds_by_nbytes=tuple((nbytes, seconds[ProbeCopy(device, nbytes)]) for nbytes in self.sizes),
        )

    def facts(
        self, seconds: Mapping[ProbeCopy, float], strategy: Strategy, worker: int, cluster: Cluster
    ) -> Facts:
        """Return the facts that a worker tells all others after it has measured; ConfigError if they are none."""
        ways = tuple(self.profile(device, seconds) for device in self.devices) if self.sizes else ()
        return require_facts(strategy, strategy.facts(worker, ways, cluster))
