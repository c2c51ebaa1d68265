# Pure: no MPI, threads, clock or environment.
"""COARSE's profiler on a modelled site, and the facts that follow (COARSE III-E).

The probes are those of live profiling, made on the model of the links: copies of rising sizes to each proxy, with as
much coming back at the same time, since push and pull run together in training.
"""

from collections.abc import Sequence

from coarse.client.probing import ProbeCopy, Probing
from coarse.hardware.links import Link
from coarse.protocol.plan import Cluster, Facts
from coarse.simulation.probe_batches import batch_of_probe, ends_s, probe_batch_s
from coarse.simulation.sites import Path, Site
from coarse.strategy.routing import ProxyProfile
from coarse.strategy.strategy import Strategy


def probe_s(site: Site, client: int, probe: ProbeCopy) -> float:
    """Return the time that a client measures: the latency, or seconds until push and pull have both ended."""
    return max(probe_batch_s(site, batch_of_probe(client, probe)))


def profile_proxy(site: Site, client: int, device: int, *, is_local: bool, sizes: Sequence[int]) -> ProxyProfile:
    """Return one client's way to one proxy: latency, and seconds of push and pull together by size."""
    return ProxyProfile(
        device=device,
        is_local=is_local,
        latency_s=probe_s(site, client, ProbeCopy(device, 0)),
        seconds_by_nbytes=tuple((nbytes, probe_s(site, client, ProbeCopy(device, nbytes))) for nbytes in sizes),
    )


def probings(cluster: Cluster, sizes: Sequence[int]) -> tuple[Probing, ...]:
    """Return the probing of each client: its ways to the devices of its node."""
    return tuple(
        Probing(devices=cluster.devices_on(node), local=local, sizes=tuple(sizes))
        for node, local in zip(cluster.worker_nodes, cluster.local_devices, strict=True)
    )


def measured_facts(site: Site, cluster: Cluster, strategy: Strategy) -> tuple[Facts, ...]:
    """Return every client's facts, all measured on the model of the links."""
    found = []
    for client, probing in enumerate(probings(cluster, strategy.probes)):
        seconds = {probe: probe_s(site, client, probe) for probe in probing.probes()}
        found.append(probing.facts(seconds, strategy, client, cluster))
    return tuple(found)


def ring_bytes_per_s(links: Sequence[Link], paths: Sequence[Path], nbytes: int) -> float:
    """Return the bytes per second of each of several sends at once until the last ends: BW of COARSE III-F."""
    return nbytes / together_s(links, paths, nbytes)


def together_s(links: Sequence[Link], paths: Sequence[Path], nbytes: int) -> float:
    """Return the seconds until transfers of `nbytes` each, begun together, have all ended."""
    return max(ends_s(links, paths, nbytes), default=0.0)
