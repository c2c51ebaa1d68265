"""Measures this client's way to each proxy of its node (COARSE III-E, offline profiling)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np

from coarse.client.client import Client
from coarse.client.probing import ProbeCopy, Probing
from coarse.client.protocol import ToDevice
from coarse.errors import CapacityError
from coarse.gpu.available import gpus
from coarse.gpu.interface import is_on_gpu
from coarse.gpu.staging import host_staging
from coarse.protocol.clock import Clock
from coarse.protocol.plan import Cluster, Facts
from coarse.protocol.records import Probe
from coarse.protocol.units import MIB
from coarse.strategy.strategy import Strategy

_PINGS = 10
_COPIES, _SMALL_COPIES = 3, 10
"""The best of so many counts; what takes microseconds is disturbed more, and costs nothing to repeat."""
_SMALL_BYTES = MIB
_ROUNDS = 4
"""The best of so many rounds counts, where `Strategy.is_settled` wants more than one: a device that was only disturbed
less loses its lead."""


def measured_facts(client: Client, strategy: Strategy, cluster: Cluster, clock: Clock) -> Facts:
    """Return this worker's facts, from its measurements over the devices of its node."""
    worker = client.protocol.client
    local = cluster.local_devices[worker]
    devices = cluster.devices_on(cluster.worker_nodes[worker])
    probing = Probing(devices=devices, local=local, sizes=strategy.probes)
    best_s: dict[ProbeCopy, float] = {}
    if not probing.sizes:
        return probing.facts(best_s, strategy, worker, cluster)
    for _ in range(_ROUNDS):
        for device in devices:
            for probe, seconds in _measured(client, probing, device, clock).items():
                best_s[probe] = min(seconds, best_s.get(probe, seconds))
        facts = probing.facts(best_s, strategy, worker, cluster)
        if strategy.is_settled(facts, worker, cluster):
            break
    return facts


def _measured(client: Client, probing: Probing, device: int, clock: Clock) -> dict[ProbeCopy, float]:
    """Return the seconds of all probes of one device: a record's way, and copies into its memory."""
    offset, region = client.allocate(device, probing.sizes[-1], is_of_key=True)
    with _payload(client, region) as payload:
        copy = client.copies.now if is_on_gpu(region) or is_on_gpu(payload) else np.copyto
        copy(region, payload)
        seconds = {
            probe: _copy_s(copy, region[: probe.nbytes], payload[: probe.nbytes], clock)
            if probe.nbytes
            else _latency_s(client, device, clock)
            for probe in probing.probes_of(device)
        }
    client.free(device, offset)
    return seconds


@contextmanager
def _payload(client: Client, region: np.ndarray) -> Iterator[np.ndarray]:
    """Give an array to be copied to a region, (n,) uint8 of equally many.

    It is on the GPU from which this worker pushes; if it pushes from none, in host memory, which is pinned if the
    region is on a GPU.
    """
    on_gpu = None if client.copies.gpu is None else _on_gpu(client.copies.gpu, region.nbytes)
    if on_gpu is not None:
        if not is_on_gpu(region):
            client.copies.pin(region)
        yield on_gpu
    elif is_on_gpu(region):
        stage = host_staging().stage(gpus().gpu_of(region), region.nbytes)
        try:
            yield stage.bytes
        finally:
            stage.give_back()  # copies of it have ended
    else:
        yield np.ones(region.nbytes, np.uint8)


def _on_gpu(gpu: int, nbytes: int) -> np.ndarray | None:
    """Return (nbytes,) uint8 on a GPU; None where it has no room."""
    try:
        return cast(np.ndarray, gpus().empty(gpu, (nbytes,), np.dtype(np.uint8)))
    except CapacityError:
        return None


def _latency_s(client: Client, device: int, clock: Clock) -> float:
    """Return half of the shortest round trip of a record."""
    trips = []
    for _ in range(_PINGS):
        token = client.protocol.next_token()
        began_s = clock.now_s()
        ping = Probe(client.protocol.client, token)
        client.link.ask([ToDevice(device, ping)], [token], "its latency")
        trips.append(clock.now_s() - began_s)
    return min(trips) / 2


def _copy_s(
    copy: Callable[[np.ndarray, np.ndarray], None],
    region: np.ndarray,  # (n,) uint8 of the device's memory
    payload: np.ndarray,  # (n,) uint8
    clock: Clock,
) -> float:
    """Return the seconds of a copy into the region, the shortest of a few."""
    seconds = []
    for _ in range(_SMALL_COPIES if len(payload) < _SMALL_BYTES else _COPIES):
        began_s = clock.now_s()
        copy(region, payload)
        seconds.append(clock.now_s() - began_s)
    return min(seconds)
