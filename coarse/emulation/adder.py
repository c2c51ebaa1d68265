"""When a device's sums have their turn in emulated time: once links and adder have taken as long as they would."""

import heapq
from collections import deque
from collections.abc import Callable

from coarse.emulation.envelope import FabricPort, Submission
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.pace import Pace
from coarse.proxy.device import ReduceWork
from coarse.proxy.instructions import Reduce, added_bytes
from coarse.proxy.reduce_run import Add, Move, ReduceRun

_NUMBER_BYTES = 8
Action = Callable[[float], None]
"""(the emulated time at which it is due)"""


class Adder:
    """A near-memory adder: it adds one thing after the other at a stated rate, and what it has added is due then."""

    def __init__(self, pace: Pace, bytes_per_s: float) -> None:
        self._pace = pace
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._num_given = 0

    def add(self, nbytes: int, begin_s: float, action: Action) -> None:
        """Adding `nbytes` may begin at an emulated time; then do something."""
        self._free_s = max(self._free_s, begin_s) + nbytes / self._bytes_per_s
        self.at(self._free_s, action)

    def at(self, due_s: float, action: Action) -> None:
        """Do something that takes no adding at an emulated time."""
        self._num_given += 1
        heapq.heappush(self._due, (due_s, self._num_given, action))

    def run_due(self) -> None:
        """Do what the wall clock has come to."""
        while self._due and self._due[0][0] <= self._pace.now_s():
            due_s, _, action = heapq.heappop(self._due)
            action(due_s)

    def wall_s_until_next(self) -> float | None:
        """Wall seconds until something is due; None where nothing was given."""
        return max(0.0, self._pace.wall_s_until(self._due[0][0])) if self._due else None


class EmulatedWork:
    """A device's sums (see coarse.proxy.work.Work): each waits for its bytes' ways and for the adder."""

    def __init__(self, device: int, box: EmulatedMailbox, adder: Adder) -> None:
        self._device = device
        self._box = box
        self._adder = adder
        self._ready: deque[tuple[float, ReduceWork]] = deque()
        self._runs: dict[int, tuple[Reduce, ReduceRun]] = {}
        """Number of a sum over several devices -> its steps."""
        self._num_runs = 0
        box.on_token[FabricPort.FETCH] = box.on_token[FabricPort.WRITE] = self._on_moved

    def give(self, work: ReduceWork) -> None:
        """See Work: it begins at the time of what is being done."""
        if isinstance(work, Reduce):
            self._num_runs += 1
            run = ReduceRun(self._device, work)
            self._runs[self._num_runs] = work, run
            self._follow(self._num_runs, run.begin(), self._box.moment_s())
            return
        self._adder.add(added_bytes(work), self._box.moment_s(), lambda due_s: self._ready.append((due_s, work)))

    def take(self) -> ReduceWork | None:
        """See Work."""
        self._adder.run_due()
        if not self._ready:
            return None
        self._box.now_s, work = self._ready.popleft()
        return work

    def wall_s_until_next(self) -> float | None:
        """See Work."""
        return self._adder.wall_s_until_next()

    def _on_moved(self, _: FabricPort, frame: bytes, due_s: float) -> None:
        number = int.from_bytes(frame, "little")
        self._follow(number, self._runs[number][1].on_moved(), due_s)

    def _on_added(self, number: int, due_s: float) -> None:
        self._follow(number, self._runs[number][1].on_added(), due_s)

    def _follow(self, number: int, steps: list[Move] | list[Add], at_s: float) -> None:
        work, run = self._runs[number]
        for step in steps:
            if isinstance(step, Add):
                self._adder.add(step.nbytes, at_s, lambda due_s: self._on_added(number, due_s))
                continue
            way = FabricPort.FETCH if step.is_fetch else FabricPort.WRITE
            frame = number.to_bytes(_NUMBER_BYTES, "little")
            self._box.submit(
                Submission(at_s, step.nbytes, step.source, step.target, self._box.endpoint, way, work.priority, frame)
            )
        if run.is_done:
            del self._runs[number]
            self._ready.append((at_s, work))
