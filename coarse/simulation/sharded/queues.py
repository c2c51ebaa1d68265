# Pure: no MPI, threads, clock or environment.
"""Queue of a stream's phases, one after the other."""

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

from coarse.simulation.engine import Action, Engine
from coarse.simulation.sharded.chains import Chain, Stream
from coarse.simulation.sharded.routes import Phase


class Submitted(NamedTuple):
    """Phase that waits for its turn."""

    phase: Phase
    what: str
    unit: str
    action: Action


class PhaseQueue:
    """Stream of a group: a phase's flows begin together, and the next phase when the last of them ends."""

    def __init__(self, engine: Engine, name: Hashable) -> None:
        """Start idle; `name` tells its ports from those of others."""
        self._engine = engine
        self._name = name
        self._waiting: deque[Submitted] = deque()
        self._is_busy = False

    def submit(self, phase: Phase, what: str, unit: str, action: Action) -> None:
        """Run a phase after those before it, then do something."""
        self._waiting.append(Submitted(phase, what, unit, action))
        if not self._is_busy:
            self._begin()

    def on_begun(self) -> None:
        """Act on the begin of a phase; by default do nothing."""

    def on_ended(self, submitted: Submitted, begin_s: float) -> None:
        """Act on the end of a phase that began at `begin_s`; by default do nothing."""

    def _begin(self) -> None:
        self._is_busy = True
        submitted = self._waiting.popleft()
        self.on_begun()
        begin_s, left = self._engine.now_s, [len(submitted.phase)]

        def arrived() -> None:
            left[0] -= 1
            if left[0] == 0:
                self._end(submitted, begin_s)

        for number, flow in enumerate(submitted.phase):
            self._engine.move_in_turns((self._name, number), flow.path, flow.nbytes, flow.num_turns, arrived)

    def _end(self, submitted: Submitted, begin_s: float) -> None:
        self.on_ended(submitted, begin_s)
        submitted.action()
        self._is_busy = bool(self._waiting)
        if self._waiting:
            self._begin()


def run_chain(queues: dict[Stream, PhaseQueue], chain: Chain, what: str, unit: str, action: Action) -> None:
    """Run the moves of a chain one after the other, then do something; those without bytes are left out."""
    moves = [(stream, phase) for stream, phase in chain if phase]
    if not moves:
        action()
        return
    (stream, phase), *rest = moves
    queues[stream].submit(phase, what, unit, lambda: run_chain(queues, tuple(rest), what, unit, action))
