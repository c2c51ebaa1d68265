# Pure: no MPI, threads, clock or environment.
"""One worker's part in the workers' own all-reduce: gradients in, ring instructions out, in sequence.

The ring's steps are those of the proxies' sync cores (`RingRun`), with workers in the place of devices.
Live, emulated and simulated jobs carry out the same instructions.
"""

from collections import deque
from collections.abc import Sequence

from coarse.proxy.exchange_runs import RingRun
from coarse.proxy.instructions import Instruction, RingId


class RingStream:
    """Stream of gradients in the order in which they are given; the neighbour's chunks may come earlier."""

    def __init__(self, worker: int, members: tuple[int, ...], num_elements: Sequence[int]) -> None:
        """Start without gradients.

        `num_elements` has the elements of each gradient by its position; it may grow while the stream runs.
        """
        self.worker = worker
        self._members = members
        self._num_elements = num_elements
        self._waiting: deque[int] = deque()
        """Positions that were given and are not finished; the first is under way."""
        self._versions: dict[int, int] = {}
        self._runs: dict[RingId, RingRun] = {}
        self._finished: list[int] = []

    @property
    def is_idle(self) -> bool:
        """True if all gradients that were given are finished."""
        return not self._waiting

    def push(self, position: int) -> list[Instruction]:
        """Give a gradient to the stream."""
        self._waiting.append(position)
        return self._begin() if len(self._waiting) == 1 else []

    def on_chunk(self, ring: RingId, step: int) -> list[Instruction]:
        """Process the previous member's chunk for a step."""
        run = self._run(ring)
        return run.on_chunk(step, present=True) + self._finish_if_done(ring, run)

    def take_finished(self) -> list[int]:
        """Return the positions that were finished since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    def _begin(self) -> list[Instruction]:
        position = self._waiting[0]
        version = self._versions.get(position, 0)
        ring = RingId(position, 0, version, 0)
        self._versions[position] = version + 1
        run = self._run(ring)
        return run.on_reduced(0, present=True) + self._finish_if_done(ring, run)

    def _run(self, ring: RingId) -> RingRun:
        run = self._runs.get(ring)
        if run is None:
            run = RingRun(ring, self._num_elements[ring.key], self._members, self.worker, 1)
            self._runs[ring] = run
        return run

    def _finish_if_done(self, ring: RingId, run: RingRun) -> list[Instruction]:
        if not run.is_finished:
            return []
        del self._runs[ring]
        self._finished.append(self._waiting.popleft())
        return self._begin() if self._waiting else []
