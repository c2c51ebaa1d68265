"""Sums of a device in emulated time: each has its turn once links and adder have taken their time."""

from collections import deque
from functools import partial

from coarse.emulation.envelope import FabricPort
from coarse.emulation.mailbox import EmulatedMailbox, Then
from coarse.protocol.costs import cost_of
from coarse.proxy.costs import INSTRUCTION_COSTS
from coarse.proxy.device import ReduceWork
from coarse.proxy.instructions import Reduce
from coarse.proxy.reduce_run import Add, ReduceRun, Transfer


class EmulatedWork:
    """Queue of sums (a Work of coarse.proxy.work): each waits for its bytes' ways and for the adder."""

    def __init__(self, device: int, box: EmulatedMailbox) -> None:
        self._device = device
        self._box = box
        self._ready: deque[tuple[float, ReduceWork]] = deque()
        """Sums whose turn has come, and when; those times are held."""

    def give(self, work: ReduceWork) -> None:
        """Take a sum, which begins at the time of the present action."""
        if isinstance(work, Reduce):
            run = ReduceRun(self._device, work)
            self._follow(work, run, run.begin(), self._box.at_s())
        else:
            self._add(cost_of(INSTRUCTION_COSTS, work, 0).amount, partial(self._end, work), self._box.at_s())

    def take(self) -> ReduceWork | None:
        """Return the sum whose turn it is; None if none has come."""
        if not self._ready:
            return None
        due_s, work = self._ready.popleft()
        self._box.go_back_to(due_s)
        return work

    def wall_s_until_next(self) -> float | None:
        """Return None: sums come by the mailbox."""
        return None

    def _follow(self, work: Reduce, run: ReduceRun, steps: list[Transfer] | list[Add], at_s: float) -> None:
        for step in steps:
            if isinstance(step, Add):
                self._add(step.nbytes, lambda due_s: self._follow(work, run, run.on_added(), due_s), at_s)
                continue
            way = FabricPort.FETCH if step.is_fetch else FabricPort.WRITE
            self._box.spend(
                way, step.nbytes, step.source, step.target,
                lambda due_s: self._follow(work, run, run.on_moved(), due_s), at_s=at_s, priority=work.priority,
            )  # fmt: skip
        if run.is_done:
            self._end(work, at_s)

    def _add(self, nbytes: int, then: Then, at_s: float) -> None:
        self._box.spend(FabricPort.ADDER, nbytes, self._device, self._device, then, at_s=at_s)

    def _end(self, work: ReduceWork, at_s: float) -> None:
        self._ready.append((at_s, work))
        self._box.hold(at_s)
