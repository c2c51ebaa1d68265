# Pure: no MPI, threads, clock or environment.
"""All-reduce by the workers themselves, on simulated links."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from coarse.collectives.ring_stream import RingStream
from coarse.proxy.instructions import Instruction, RingId, RingSend
from coarse.simulation.engine import Action, Engine
from coarse.simulation.job import Job
from coarse.simulation.proxied import OnSynced
from coarse.simulation.sites import Path


class AllReduces:
    """Streams of all-reduces, one per worker: one after the other, as a worker begins them."""

    def __init__(
        self,
        engine: Engine,
        paths: Mapping[tuple[int, int], Path],
        members: Sequence[int],
        num_elements: Sequence[int],
        itemsizes: Sequence[int],
        on_ended: Callable[[int, int], None],
    ) -> None:
        """Build the stream of each of `members`.

        `num_elements` and `itemsizes` are, by place, the elements of each all-reduce, and the bytes of an element as
        `members` sum it. `paths` are as Site.between_workers. `on_ended` is called with a worker that has the sum, and
        its place.
        """
        self.engine = engine
        self.paths = paths
        ring = tuple(members)
        self._itemsizes = itemsizes
        self._on_ended = on_ended
        self._streams = {worker: RingStream(worker, ring, num_elements) for worker in ring}

    def begin(self, worker: int, place: int) -> None:
        """Begin the all-reduce of a place on a worker's stream."""
        self._carry_out(worker, self._streams[worker].push(place))

    def send(self, worker: int, send: RingSend) -> None:
        """Send a worker's chunk to the next member."""
        nbytes = (send.end - send.begin) * self._itemsizes[send.ring.key]
        arrived = self.at_arrival(send.device, send)
        self.engine.move(("workers", worker), self.paths[worker, send.device], nbytes, arrived)

    def at_arrival(self, worker: int, send: RingSend) -> Action:
        """Return the action for a chunk that has come to a worker."""
        return partial(self._on_chunk, worker, send.ring, send.header.step)

    def _carry_out(self, worker: int, instructions: list[Instruction]) -> None:
        for step in instructions:
            if isinstance(step, RingSend):
                self.send(worker, step)
        for place in self._streams[worker].take_finished():
            self._on_ended(worker, place)

    def _on_chunk(self, worker: int, ring: RingId, step: int) -> None:
        self._carry_out(worker, self._streams[worker].on_chunk(ring, step))


class WorkerRing(AllReduces):
    """All-reduces of a job's gradients."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        positions: Sequence[int],
        on_synced: OnSynced,
        num_members: int | None = None,
    ) -> None:
        """Build the streams of the gradients that workers sum.

        `positions` are their places among the job's descriptors. `num_members` is the number of workers whose streams
        are simulated, if not all.
        """
        self._on_synced = on_synced
        self._positions = tuple(positions)
        self._places = {position: place for place, position in enumerate(positions)}
        gradients = [job.gradients[position % len(job.gradients)] for position in positions]
        num_elements = [gradient.num_elements for gradient in gradients]
        itemsizes = [gradient.dtype.accumulator.itemsize for gradient in gradients]
        members = range(num_members or job.num_workers)
        super().__init__(engine, job.site.between_workers, members, num_elements, itemsizes, self._hand_on)

    def push(self, worker: int, position: int) -> None:
        """Begin the all-reduce of a gradient on a worker's stream."""
        self.begin(worker, self._places[position])

    def _hand_on(self, worker: int, place: int) -> None:
        self._on_synced(worker, self._positions[place])
