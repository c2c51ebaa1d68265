# Pure: no MPI, threads, clock or environment.
"""Gradients of a simulated job that memory devices synchronise.

Registration happens before time begins, as in live training it happens before the first iteration.
"""

from collections.abc import Callable, Sequence

from coarse.protocol.records import key_of
from coarse.simulation.devices import SimulatedDevices, SimulatedDriver
from coarse.simulation.engine import Engine
from coarse.simulation.job import Job

OnSynced = Callable[[int, int], None]
"""Function of (worker, the gradient's place among the descriptors), called when the worker has the sum."""


class Proxied(SimulatedDevices):
    """Memory devices of a job and the clients that push to them; `register` comes before the first push."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        positions: Sequence[int],
        on_synced: OnSynced,
        driver: Callable[[SimulatedDevices, int], SimulatedDriver] = SimulatedDriver,
    ) -> None:
        """Build the devices and clients; `positions` are the places of the gradients that devices sum.

        They count among the job's descriptors.
        """
        super().__init__(engine, job.site, job.placement, self._on_gradient, driver=driver)
        self.job = job
        self._on_synced = on_synced
        every = job.descriptors()
        self.descriptors = {position: every[position] for position in positions}
        self.keys = {position: key_of(one.name) for position, one in self.descriptors.items()}
        self._positions = {key: position for position, key in self.keys.items()}

    def register(self) -> None:
        """Register all clients' facts, and then all names."""
        for client, protocol in enumerate(self.clients):
            self.deliver(protocol.on_profiled(self.job.facts[client]))
        for protocol in self.clients:
            for descriptor in self.descriptors.values():
                self.deliver(protocol.register(descriptor))

    def push_gradient(self, worker: int, position: int) -> None:
        """Push a gradient that a worker has, by its place among the job's descriptors."""
        self.push(worker, self.keys[position])

    def _on_gradient(self, client: int, key: int) -> None:
        self._on_synced(client, self._positions[key])
