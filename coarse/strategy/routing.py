# Pure: no MPI, threads, clock or environment.
"""One client's routing table, derived from what the profiler measured (COARSE III-E)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

NEVER_BYTES = 2**63 - 1
"""A threshold above every tensor: the bandwidth proxy never pays off."""
FULL_BANDWIDTH_SHARE = 0.95
"""Share of the best measured bandwidth that counts as all of it."""


class RoutingTable(NamedTuple):
    """One client's table (COARSE III-E): a size threshold, two proxies, a partition size. The facts of `Coarse`."""

    threshold_bytes: int
    latency_proxy: int
    bandwidth_proxy: int
    partition_bytes: int


def proxy_for(nbytes: int, table: RoutingTable) -> int:
    """Return the device index of the proxy that takes a tensor of `nbytes` (COARSE III-E)."""
    return table.bandwidth_proxy if nbytes > table.threshold_bytes else table.latency_proxy


def local_tables(tables: Sequence[RoutingTable], local_devices: Sequence[int]) -> tuple[RoutingTable, ...]:
    """Return the tables with every tensor on its client's local proxy and the partition sizes unchanged."""
    return tuple(
        table._replace(threshold_bytes=0, latency_proxy=local, bandwidth_proxy=local)
        for table, local in zip(tables, local_devices, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class ProxyProfile:
    """Measurements of one client's way to one proxy."""

    device: int
    is_local: bool
    latency_s: float
    seconds_by_nbytes: tuple[tuple[int, float], ...]
    """(nbytes, seconds of a transfer) by rising nbytes; the same sizes for every proxy."""

    def __post_init__(self) -> None:
        sizes = self.sizes
        if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"device {self.device}: sizes must rise from 1 byte, got {sizes}")
        if self.latency_s < 0 or min(seconds for _, seconds in self.seconds_by_nbytes) <= 0:
            raise ValueError(
                f"device {self.device}: times must be above 0, got latency {self.latency_s} s "
                f"and {self.seconds_by_nbytes}"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The measured sizes in bytes."""
        return tuple(nbytes for nbytes, _ in self.seconds_by_nbytes)

    @property
    def longest_s(self) -> float:
        """Seconds of the largest measured transfer."""
        return self.seconds_by_nbytes[-1][1]

    def copy_s(self, nbytes: int) -> float:
        """Return the seconds of a copy of `nbytes`: a push with a pull in parallel.

        They are linear between measured sizes, follow the largest size's rate beyond it, and are the latency alone for
        0 bytes.
        """
        rows = ((0, self.latency_s), *self.seconds_by_nbytes)
        for (small, small_s), (large, large_s) in pairwise(rows):
            if nbytes <= large:
                return small_s + (large_s - small_s) * (nbytes - small) / (large - small)
        largest, longest_s = rows[-1]
        return longest_s * nbytes / largest


def derive_table(
    profiles: Sequence[ProxyProfile],
    *,
    tie_tolerance: float,
    min_partition_bytes: int,
    max_partition_bytes: int,
) -> RoutingTable:
    """Return the routing table of COARSE III-E.

    The proxy of lowest latency takes tensors up to a threshold. Above it the proxy of highest bandwidth at the largest
    measured size takes them.

    Proxies within `tie_tolerance` (relative) of the best count as equal; the local one is taken.
    """
    if not profiles or len({profile.sizes for profile in profiles}) != 1:
        raise ValueError(
            "every proxy must be measured at the same sizes, "
            f"got {[(profile.device, profile.sizes) for profile in profiles]}"
        )
    latency = _best([(profile.latency_s, profile) for profile in profiles], tie_tolerance)
    bandwidth = _best([(profile.longest_s, profile) for profile in profiles], tie_tolerance)
    return RoutingTable(
        threshold_bytes=0 if latency is bandwidth else crossing_bytes(latency, bandwidth),
        latency_proxy=latency.device,
        bandwidth_proxy=bandwidth.device,
        partition_bytes=min(
            max(full_bandwidth_bytes(bandwidth, min_partition_bytes), min_partition_bytes), max_partition_bytes
        ),
    )


def crossing_bytes(latency: ProxyProfile, bandwidth: ProxyProfile) -> int:
    """Return the size S where T_latency(S) = T_bandwidth(S), linear between measured sizes (COARSE III-E).

    It is the last such size: no larger measured one is faster by the latency proxy. 0 where the
    bandwidth proxy is never the slower one, NEVER_BYTES where it still is at the largest size.
    """
    gains_s = [
        (nbytes, bandwidth_s - latency_s)
        for (nbytes, latency_s), (_, bandwidth_s) in zip(
            latency.seconds_by_nbytes, bandwidth.seconds_by_nbytes, strict=True
        )
    ]
    below = [index for index, (_, gain_s) in enumerate(gains_s) if gain_s > 0]
    if not below:
        return 0
    if below[-1] == len(gains_s) - 1:
        return NEVER_BYTES
    (small_bytes, gain_s), (large_bytes, loss_s) = gains_s[below[-1] : below[-1] + 2]
    return small_bytes + int((large_bytes - small_bytes) * (gain_s / (gain_s - loss_s)))


def full_bandwidth_bytes(profile: ProxyProfile, least_bytes: int = 0) -> int:
    """Return the smallest measured size that reaches full bandwidth (COARSE III-E's partition size).

    Only sizes from `least_bytes` on count, or the largest alone where there are none: a copy that fits into a cache
    does not measure memory.
    """
    measured = [pair for pair in profile.seconds_by_nbytes if pair[0] >= least_bytes]
    rates = {nbytes: nbytes / seconds for nbytes, seconds in measured or profile.seconds_by_nbytes[-1:]}
    wanted_bytes_per_s = FULL_BANDWIDTH_SHARE * max(rates.values())
    return next(nbytes for nbytes, reached in rates.items() if reached >= wanted_bytes_per_s)


def _best(costs_s: Sequence[tuple[float, ProxyProfile]], tie_tolerance: float) -> ProxyProfile:
    """Return the local proxy if it is within the tolerance of the cheapest one, else the cheapest.

    Among proxies of exactly equal cost it is the next one after the local: otherwise clients of equal machines would
    all choose the first.
    """
    lowest_s = min(cost_s for cost_s, _ in costs_s)
    tied = [item for item in costs_s if item[0] <= lowest_s * (1 + tie_tolerance)]
    local = next((profile.device for _, profile in costs_s if profile.is_local), -1)
    return min(tied, key=lambda item: (not item[1].is_local, item[0], item[1].device <= local, item[1].device))[1]
