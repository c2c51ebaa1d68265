# Pure: no MPI, threads, clock or environment.
"""All-reduce by the workers themselves, on simulated links."""

from collections.abc import Sequence
from functools import partial

from coarse.collectives.ring_stream import RingStream
from coarse.proxy.instructions import Instruction, RingId, RingSend
from coarse.simulation.engine import Engine
from coarse.simulation.job import DTYPE, Gradient, Job
from coarse.simulation.proxied import OnSynced


class WorkerRing:
    """A communication stream per worker."""

    def __init__(self, engine: Engine, job: Job, gradients: Sequence[Gradient], on_synced: OnSynced) -> None:
        self._engine = engine
        self._paths = job.site.between_workers
        self._on_synced = on_synced
        members = self._members_of(job)
        num_elements = [gradient.num_elements for gradient in gradients]
        self._streams = [RingStream(worker, members, num_elements) for worker in members]

    def push(self, worker: int, position: int) -> None:
        """A worker gives a gradient to its stream."""
        self._carry_out(worker, self._streams[worker].push(position))

    def _members_of(self, job: Job) -> tuple[int, ...]:
        """The workers whose streams are simulated, as members of the ring."""
        return tuple(range(job.num_workers))

    def _carry_out(self, worker: int, instructions: list[Instruction]) -> None:
        for step in instructions:
            if isinstance(step, RingSend):
                self._send(worker, step)
        for position in self._streams[worker].take_finished():
            self._on_synced(worker, position)

    def _send(self, worker: int, send: RingSend) -> None:
        nbytes = (send.end - send.begin) * DTYPE.itemsize
        arrived = partial(self._on_chunk, send.device, send.ring, send.header.step)
        self._engine.move(("workers", worker), self._paths[worker, send.device], nbytes, arrived)

    def _on_chunk(self, worker: int, ring: RingId, step: int) -> None:
        self._carry_out(worker, self._streams[worker].on_chunk(ring, step))
