"""Measures this client's way to each proxy of its node (COARSE III-E, offline profiling)."""

import numpy as np

from coarse.client.client import Client
from coarse.client.machine import ToDevice
from coarse.client.routing import ProxyProfile, derive_table
from coarse.clock import Clock
from coarse.config import FixedRouting, MeasuredRouting
from coarse.messages import Probe
from coarse.plan import RoutingTable

_PINGS = 5
_COPIES = 3


def choose_table(
    client: Client,
    routing: MeasuredRouting | FixedRouting,
    devices: tuple[int, ...],
    local: int,
    clock: Clock,
) -> RoutingTable:
    """The routing table: as configured, or as measured over the given devices."""
    if isinstance(routing, FixedRouting):
        latency, bandwidth = routing.latency_proxy, routing.bandwidth_proxy
        return RoutingTable(
            threshold_bytes=routing.threshold_bytes,
            latency_proxy=local if latency is None else latency,
            bandwidth_proxy=local if bandwidth is None else bandwidth,
            partition_bytes=routing.partition_bytes,
        )
    sizes = _doubling(routing.min_partition_bytes, routing.max_partition_bytes)
    profiles = [
        ProxyProfile(
            device=device,
            is_local=device == local,
            latency_s=_latency_s(client, device, clock),
            seconds_by_nbytes=_copy_times(client, device, sizes, clock),
        )
        for device in devices
    ]
    return derive_table(
        profiles,
        tie_tolerance=routing.tie_tolerance,
        min_partition_bytes=routing.min_partition_bytes,
        max_partition_bytes=routing.max_partition_bytes,
    )


def _doubling(smallest: int, largest: int) -> list[int]:
    sizes = [smallest]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return sizes


def _latency_s(client: Client, device: int, clock: Clock) -> float:
    """Half of the shortest round trip of a record."""
    trips = []
    for _ in range(_PINGS):
        token = client.machine.next_token()
        began_s = clock.now_s()
        probe = Probe(client.machine.client, token)
        client.link.ask([ToDevice(device, probe)], [token], "its latency")
        trips.append(clock.now_s() - began_s)
    return min(trips) / 2


def _copy_times(
    client: Client, device: int, sizes: list[int], clock: Clock
) -> tuple[tuple[int, float], ...]:
    """(nbytes, seconds) of copies into the device's memory, the best of a few."""
    offset, region = client.allocate(device, sizes[-1])
    payload = np.ones(sizes[-1], np.uint8)
    region[:] = payload
    times = []
    for nbytes in sizes:
        seconds = []
        for _ in range(_COPIES):
            began_s = clock.now_s()
            region[:nbytes] = payload[:nbytes]
            seconds.append(clock.now_s() - began_s)
        times.append((nbytes, min(seconds)))
    client.free(device, offset)
    return tuple(times)
