# Pure: no MPI, threads, clock or environment.
"""All-reduce by the workers themselves, on simulated links."""

from collections.abc import Sequence
from functools import partial

from coarse.collectives.ring_stream import RingStream
from coarse.proxy.instructions import Instruction, RingId, RingSend
from coarse.simulation.engine import Action, Engine
from coarse.simulation.job import Job
from coarse.simulation.proxied import OnSynced


class WorkerRing:
    """A communication stream per worker."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        positions: Sequence[int],
        on_synced: OnSynced,
        num_members: int | None = None,
    ) -> None:
        """`positions`: places among the job's descriptors of those that workers sum. `num_members`: how many workers'
        streams are simulated, if not all."""
        self.engine = engine
        self.paths = job.site.between_workers
        self._on_synced = on_synced
        members = tuple(range(num_members or job.num_workers))
        self._positions = tuple(positions)
        self._places = {position: place for place, position in enumerate(positions)}
        gradients = [job.gradients[position % len(job.gradients)] for position in positions]
        num_elements = [gradient.num_elements for gradient in gradients]
        self._itemsizes = [gradient.dtype.accumulator.itemsize for gradient in gradients]
        """Workers widen half types before they sum them."""
        self._streams = [RingStream(worker, members, num_elements) for worker in members]

    def push(self, worker: int, position: int) -> None:
        """A worker gives a gradient to its stream."""
        self._carry_out(worker, self._streams[worker].push(self._places[position]))

    def send(self, worker: int, send: RingSend) -> None:
        """A worker's chunk goes to the next."""
        nbytes = (send.end - send.begin) * self._itemsizes[send.ring.key]
        arrived = self.at_arrival(send.device, send)
        self.engine.move(("workers", worker), self.paths[worker, send.device], nbytes, arrived)

    def at_arrival(self, worker: int, send: RingSend) -> Action:
        """What to do once a chunk has come to a worker."""
        return partial(self._on_chunk, worker, send.ring, send.header.step)

    def _carry_out(self, worker: int, instructions: list[Instruction]) -> None:
        for step in instructions:
            if isinstance(step, RingSend):
                self.send(worker, step)
        for place in self._streams[worker].take_finished():
            self._on_synced(worker, self._positions[place])

    def _on_chunk(self, worker: int, ring: RingId, step: int) -> None:
        self._carry_out(worker, self._streams[worker].on_chunk(ring, step))
