"""The same scripts of events, the same outcomes, on every driver that needs one process.

tests/mpi/drivers holds the drivers with real ranks against the same scripts.
"""

from pathlib import Path

import numpy as np
import pytest

from coarse.client.protocol import ToDevice
from coarse.protocol.plan import Placement
from coarse.simulation.checks.loopback import Loopback
from coarse.simulation.devices import SimulatedDevices
from coarse.simulation.engine import Engine
from tests.support.scripts import CAPACITY_BYTES, SCRIPTS, begin, outcomes, placement, site_of, table
from tests.unit.drivers.minimal import MinimalDriver


class Simulated:
    """The simulation, with real bytes."""

    def __init__(self, place: Placement) -> None:
        memories = [np.zeros(CAPACITY_BYTES, np.uint8) for _ in place.device_nodes]
        site = site_of(place)
        engine = Engine(site.links)
        self._job = job = SimulatedDevices(
            engine, site, place, lambda client, key: None, capacity_bytes=CAPACITY_BYTES, memories=memories
        )
        self.clients, self.announce, self.array, self.run = job.clients, job.push, job.array, engine.run

    def deliver(self, client: int, records: list[ToDevice]) -> None:
        self._job.deliver(records)


def minimal(place):
    job = MinimalDriver(place, CAPACITY_BYTES)
    begin(job)
    return job


def simulated(place):
    job = Simulated(place)
    begin(job)
    return job


def in_loopback(place):
    return Loopback(place, [table(place, client) for client in range(place.num_clients)], capacity_bytes=CAPACITY_BYTES)


def in_slow_loopback(place):
    tables = [table(place, client) for client in range(place.num_clients)]
    delay = lambda source, destination, nbytes: 1e-6 * ((7 * source + 3 * destination) % 5) + nbytes * 1e-9  # noqa: E731
    return Loopback(place, tables, delay_s=delay, capacity_bytes=CAPACITY_BYTES)


@pytest.mark.parametrize("driver", [minimal, simulated, in_loopback, in_slow_loopback])
@pytest.mark.parametrize("collective", ["in_place", "ring", "star"])
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
