"""The same scripts of events, the same outcomes, on every driver that needs one process.

tests/mpi/drivers holds the drivers with real ranks against the same scripts.
"""

from pathlib import Path

import numpy as np
import pytest

from coarse.client.protocol import ToDevice
from coarse.hardware.links import Link
from coarse.protocol.plan import Placement
from coarse.simulation.devices import SimulatedDevices
from coarse.simulation.engine import Engine
from coarse.simulation.sites import Site
from tests.support.loopback import Loopback
from tests.support.scripts import CAPACITY_BYTES, SCRIPTS, begin, outcomes, placement, table
from tests.unit.drivers.minimal import MinimalDriver


def site_of(place: Placement) -> Site:
    """Every way has a link of its own, each a little slower than the one before, so that no two end alike."""
    clients, devices = range(place.num_clients), range(place.num_devices)
    ways = [("push", c, d) for c in clients for d in devices] + [("pull", c, d) for c in clients for d in devices]
    ways += [("ring", a, b) for a in devices for b in devices if a != b]
    number = {way: at for at, way in enumerate(ways)}
    links = tuple(
        Link(name=" ".join(map(str, way)), latency_s=1e-6 * (1 + at), bytes_per_s=1e9 / (1 + at))
        for at, way in enumerate(ways)
    )
    return Site(
        links=links,
        push={(c, d): (number["push", c, d],) for c in clients for d in devices},
        pull={(c, d): (number["pull", c, d],) for c in clients for d in devices},
        between_devices={(a, b): (number["ring", a, b],) for a in devices for b in devices if a != b},
        between_workers={},
        adder_bytes_per_s=1e9,
    )


class Simulated(SimulatedDevices):
    """The simulation, with real bytes."""

    def __init__(self, place: Placement) -> None:
        memories = [np.zeros(CAPACITY_BYTES, np.uint8) for _ in place.device_nodes]
        engine, site = Engine(site_of(place).links), site_of(place)
        super().__init__(engine, site, place, self._pulled, capacity_bytes=CAPACITY_BYTES, memories=memories)
        self.num_pulled = 0

    def run(self) -> None:
        self.engine.run()

    def _pulled(self, client: int, key: int) -> None:
        self.num_pulled += 1


class OfClient:
    """A driver whose `deliver` needs no client."""

    def __init__(self, job: SimulatedDevices) -> None:
        self.clients, self.announce, self.array, self.run = job.clients, job.push, job.array, job.run
        self._job = job

    def deliver(self, client: int, records: list[ToDevice]) -> None:
        self._job.deliver(records)


def minimal(place):
    job = MinimalDriver(place, CAPACITY_BYTES)
    begin(job)
    return job


def simulated(place):
    job = OfClient(Simulated(place))
    begin(job)
    return job


def in_loopback(place):
    return Loopback(place, [table(place, client) for client in range(place.num_clients)], capacity_bytes=CAPACITY_BYTES)


def in_slow_loopback(place):
    tables = [table(place, client) for client in range(place.num_clients)]
    delay = lambda source, destination, nbytes: 1e-6 * ((7 * source + 3 * destination) % 5) + nbytes * 1e-9  # noqa: E731
    return Loopback(place, tables, delay_s=delay, capacity_bytes=CAPACITY_BYTES)


@pytest.mark.parametrize("driver", [minimal, simulated, in_loopback, in_slow_loopback])
@pytest.mark.parametrize("collective", ["in_place", "ring"])
def test_every_script_comes_to_what_it_must(driver, collective):
    """Each on a job of its own, and all one after the other on one job."""
    for script in SCRIPTS:
        assert outcomes(driver(placement(collective)), script) == script.wanted, script.name
    job = driver(placement(collective))
    for script in SCRIPTS:
        assert outcomes(job, script) == script.wanted, f"{script.name}, after the others"


def test_a_driver_takes_a_hundred_lines():
    """docs/design.md (A driver) promises so."""
    source = Path(__file__).with_name("minimal.py").read_text()
    assert len(source.splitlines()) <= 100
