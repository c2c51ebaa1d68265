# Pure: no MPI, threads, clock or environment.
"""Compute of one worker, which takes longer while a ring of the workers shares its processor."""

from collections import deque
from collections.abc import Iterable
from functools import partial

from coarse.simulation.engine import Action, Engine


class Compute:
    """Moments of a worker's forward and backward, delayed by the rings beside them.

    A ring among GPUs runs on their multiprocessors (as NCCL's kernels do), and one among CPUs on their cores. While one
    is under way, compute takes `ring_slow_down` times as long.
    """

    def __init__(self, engine: Engine, ring_slow_down: float) -> None:
        self._engine = engine
        self._ring_slow_down = ring_slow_down
        self._due: deque[tuple[float, Action]] = deque()
        self._num_rings = 0
        self._undisturbed_s = 0.0
        """Time that it would be if no ring had been beside."""
        self._since_s = 0.0
        self._turn = 0
        self.lost_s = 0.0
        """Seconds by which rings have made compute longer."""

    def begin(self, moments: Iterable[tuple[float, Action]]) -> None:
        """Compute from now on: (seconds of virtual time if no ring is beside, what to do then), in order."""
        if self._ring_slow_down == 1.0:
            for at_s, action in moments:
                self._engine.at(at_s, action)
            return
        self._due = deque(moments)
        self._undisturbed_s = self._since_s = self._engine.now_s
        self._await_next()

    def on_ring_begun(self) -> None:
        """Note that a collective of the workers has begun on this processor."""
        self._set_rings(self._num_rings + 1)

    def on_ring_ended(self) -> None:
        """Note that a collective of the workers has ended on this processor."""
        self._set_rings(self._num_rings - 1)

    def _set_rings(self, num_rings: int) -> None:
        if bool(num_rings) != bool(self._num_rings) and self._due:
            self._pass_time()
            self._num_rings = num_rings
            self._await_next()
        self._num_rings = num_rings

    @property
    def _slow_down(self) -> float:
        return self._ring_slow_down if self._num_rings else 1.0

    def _pass_time(self) -> None:
        passed_s = self._engine.now_s - self._since_s
        self._undisturbed_s += passed_s / self._slow_down
        self.lost_s += passed_s - passed_s / self._slow_down
        self._since_s = self._engine.now_s

    def _await_next(self) -> None:
        """Come back at the next moment, if no ring begins or ends before it."""
        self._turn += 1
        if self._due:
            left_s = max(0.0, self._due[0][0] - self._undisturbed_s) * self._slow_down
            self._engine.at(self._engine.now_s + left_s, partial(self._on_moment, self._turn))

    def _on_moment(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._pass_time()
        self._undisturbed_s, action = self._due.popleft()  # exactly: rounding must not add up
        action()
        if turn == self._turn:
            self._await_next()
