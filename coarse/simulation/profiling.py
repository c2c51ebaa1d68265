# Pure: no MPI, threads, clock or environment.
"""What COARSE's profiler finds on a site, and the routing tables that follow (COARSE III-E).

The probes are those of live profiling, made on the model of the links: copies of rising sizes to
each proxy, with as much coming back at the same time, since push and pull run together in training.
"""

from collections.abc import Sequence
from dataclasses import replace

from coarse.client.probing import ProbeCopy, Probing
from coarse.client.routing import ProxyProfile
from coarse.hardware.links import Link
from coarse.protocol.config import MeasuredRouting
from coarse.protocol.plan import RoutingTable
from coarse.simulation.site import Path, Site
from coarse.simulation.volleys import ends_s, probe_volley, volley_s


def probe_s(site: Site, client: int, probe: ProbeCopy) -> float:
    """What a client measures: the latency, or seconds until push and pull have both ended."""
    return max(volley_s(site, probe_volley(client, probe)))


def profile_proxy(site: Site, client: int, device: int, *, is_local: bool, sizes: Sequence[int]) -> ProxyProfile:
    """One client's way to one proxy: latency, and seconds of push and pull together by size."""
    return ProxyProfile(
        device=device,
        is_local=is_local,
        latency_s=probe_s(site, client, ProbeCopy(device, 0)),
        seconds_by_nbytes=tuple((nbytes, probe_s(site, client, ProbeCopy(device, nbytes))) for nbytes in sizes),
    )


def probings(
    local_proxies: Sequence[int], reachable: Sequence[Sequence[int]], routing: MeasuredRouting
) -> tuple[Probing, ...]:
    """What each client measures; `reachable` names its proxies: those of its node."""
    return tuple(
        Probing(devices=tuple(devices), local=local, routing=routing)
        for local, devices in zip(local_proxies, reachable, strict=True)
    )


def measured_tables(
    site: Site, local_proxies: Sequence[int], reachable: Sequence[Sequence[int]], routing: MeasuredRouting
) -> tuple[RoutingTable, ...]:
    """Every client's table, all measured on the model of the links."""
    return tuple(
        probing.table({probe: probe_s(site, client, probe) for probe in probing.probes()})
        for client, probing in enumerate(probings(local_proxies, reachable, routing))
    )


def local_tables(tables: tuple[RoutingTable, ...], local_proxies: tuple[int, ...]) -> tuple[RoutingTable, ...]:
    """The same tables with every tensor on its client's local proxy."""
    return tuple(
        replace(table, threshold_bytes=0, latency_proxy=local, bandwidth_proxy=local)
        for table, local in zip(tables, local_proxies, strict=True)
    )


def ring_bytes_per_s(links: Sequence[Link], paths: Sequence[Path], nbytes: int) -> float:
    """Bytes per second of each of several sends at once, until the last has ended: BW of COARSE III-F."""
    return nbytes / together_s(links, paths, nbytes)


def together_s(links: Sequence[Link], paths: Sequence[Path], nbytes: int) -> float:
    """Seconds until transfers of `nbytes` each, begun together, have all ended."""
    return max(ends_s(links, paths, nbytes), default=0.0)
