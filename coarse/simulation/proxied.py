# Pure: no MPI, threads, clock or environment.
"""Gradients of a simulated job that memory devices synchronise.

Registration happens before time begins, as in live training it happens before the first iteration.
"""

from collections.abc import Callable, Sequence

from coarse.protocol.records import key_of
from coarse.simulation.devices import SimulatedDevices, SimulatedDriver
from coarse.simulation.engine import Engine
from coarse.simulation.job import Gradient, Job

OnSynced = Callable[[int, int], None]
"""(worker, position of the gradient): it holds the combined values."""


class Proxied(SimulatedDevices):
    """The memory devices of a job and the clients that push to them; `register` comes before the first push."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        gradients: Sequence[Gradient],
        on_synced: OnSynced,
        driver: Callable[[SimulatedDevices, int], SimulatedDriver] = SimulatedDriver,
    ) -> None:
        super().__init__(engine, job.site, job.placement, self._on_gradient, driver=driver)
        self.job = job
        self._on_synced = on_synced
        self.descriptors = [gradient.descriptor(position) for position, gradient in enumerate(gradients)]
        self.keys = [key_of(one.name) for one in self.descriptors]
        self._positions = {key: position for position, key in enumerate(self.keys)}

    def register(self) -> None:
        """All clients' tables, and then all names."""
        for client, protocol in enumerate(self.clients):
            self.deliver(protocol.on_profiled(self.job.tables[client]))
        for protocol in self.clients:
            for descriptor in self.descriptors:
                self.deliver(protocol.register(descriptor))

    def push_gradient(self, worker: int, position: int) -> None:
        """A worker has a gradient."""
        self.push(worker, self.keys[position])

    def _on_gradient(self, client: int, key: int) -> None:
        self._on_synced(client, self._positions[key])
