"""What COARSE's profiler finds on a site, and the routing tables that follow (COARSE III-E).

The measurements are those of live profiling, made on the model of the links: copies of rising sizes to
each proxy, with as much coming back at the same time, since push and pull run together in training.
"""

from collections.abc import Sequence

from coarse.client.routing import ProxyProfile, derive_table
from coarse.config import MeasuredRouting
from coarse.emulation.fabric import Fabric
from coarse.emulation.links import Link
from coarse.plan import RoutingTable
from coarse.simulation.site import Path, Site
from coarse.units import KIB

SMALLEST_BYTES = 4 * KIB
"""From here on is measured: proxies may take equally long at sizes far below that of a shard."""


def profile_proxy(site: Site, client: int, device: int, *, is_local: bool, sizes: Sequence[int]) -> ProxyProfile:
    """One client's way to one proxy: latency, and seconds of push and pull together by size."""
    push, pull = site.push[client, device], site.pull[client, device]
    latency_s = sum(site.links[link].latency_s for link in push)
    seconds = tuple((nbytes, together_s(site.links, [push, pull], nbytes)) for nbytes in sizes)
    return ProxyProfile(device=device, is_local=is_local, latency_s=latency_s, seconds_by_nbytes=seconds)


def measured_tables(
    site: Site, local_proxies: Sequence[int], reachable: Sequence[Sequence[int]], routing: MeasuredRouting
) -> tuple[RoutingTable, ...]:
    """Every client's table; `reachable` names each client's proxies: those of its node."""
    sizes = [min(SMALLEST_BYTES, routing.min_partition_bytes)]
    while sizes[-1] * 2 <= routing.max_partition_bytes:
        sizes.append(sizes[-1] * 2)
    return tuple(
        derive_table(
            [
                profile_proxy(site, client, device, is_local=device == local, sizes=sizes)
                for device in reachable[client]
            ],
            tie_tolerance=routing.tie_tolerance,
            min_partition_bytes=routing.min_partition_bytes,
            max_partition_bytes=routing.max_partition_bytes,
        )
        for client, local in enumerate(local_proxies)
    )


def ring_bytes_per_s(links: Sequence[Link], paths: Sequence[Path], nbytes: int) -> float:
    """Bytes per second of each of several sends at once, until the last has ended: BW of COARSE III-F."""
    return nbytes / together_s(links, paths, nbytes)


def together_s(links: Sequence[Link], paths: Sequence[Path], nbytes: int) -> float:
    """Seconds until transfers of `nbytes` each, begun together, have all ended."""
    fabric = Fabric(links)
    for number, path in enumerate(paths):
        fabric.start(number, path, nbytes, 0.0)
    last_s, next_s = 0.0, fabric.next_s()
    while next_s is not None:
        last_s = max([last_s, *(end_s for end_s, _ in fabric.advance(next_s))])
        next_s = fabric.next_s()
    return last_s
