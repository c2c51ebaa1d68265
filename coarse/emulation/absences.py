"""Workers that emulated time waits for, and that wait themselves where emulation cannot see it: noticed, and named.

[Note: absences] A worker that computes uses CPU time, and will say something at its next call. One that is blocked by
other means (a group of another library, a queue, a slow file) may wait for somebody who waits for emulated time. Once
time has stood still for two seconds, with something due, for a worker that has used no CPU time meanwhile, time goes on
without it.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from coarse.emulation.fabric import Absence
from coarse.emulation.horizon import Horizon
from coarse.protocol.clock import WallClock

_STILL_S, _GLANCE_S = 2.0, 0.1
_BUSY_SHARE = 0.05
"""CPU seconds for each that passes, below which a process does nothing but wait."""
_SIGNAL = signal.SIGRTMIN + 7
"""By which a worker writes its threads' stacks."""
_STACKS = "coarse-stacks"
_WRITING_S, _LOOK_S = 0.5, 0.02
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of Linux: see clock_getcpuclockid(3)."""
_LIBRARIES = (
    str(Path(__file__).parents[1]), "/site-packages/", sysconfig.get_paths()["stdlib"], "<frozen", "<string>",
)  # fmt: skip


def answer_with_stacks() -> None:
    """Have this process write its threads' stacks to memory of its own when it is asked."""
    descriptor = os.memfd_create(_STACKS)
    faulthandler.register(_SIGNAL, descriptor, all_threads=True)


class Absences:
    """See [Note: absences]."""

    def __init__(self, process_ids: Sequence[int], num_workers: int, horizon: Horizon) -> None:
        """`process_ids` are of all endpoints, of which workers come first."""
        self._process_ids = process_ids
        self._num_workers = num_workers
        self._horizon = horizon
        self._clock = WallClock()
        self._still_since_s = self._clock.now_s()
        self._used_s: dict[int, float] = {}
        """CPU seconds that workers had used when time began to stand still."""
        self.found: dict[int, Absence] = {}

    def on_progress(self) -> None:
        """Something has happened."""
        self._still_since_s = self._clock.now_s()
        self._used_s = {}

    def look(self) -> bool:
        """Nothing has happened since the last look, though something is due; return whether time may go on now."""
        if self._clock.now_s() - self._still_since_s < _GLANCE_S:
            return False
        holders = [each for each in self._horizon.holders() if each < self._num_workers]
        used_s = {worker: self._cpu_s(worker) for worker in holders}
        if not holders or used_s.keys() - self._used_s.keys():
            self.on_progress()
            self._still_since_s -= _GLANCE_S
            self._used_s = used_s
            return False
        still_s = self._clock.now_s() - self._still_since_s
        if still_s < _STILL_S:
            return False
        idle = [each for each in holders if used_s[each] - self._used_s[each] < _BUSY_SHARE * still_s]
        for worker in idle:
            self._go_on_without(worker)
        self.on_progress()
        return bool(idle)

    def _go_on_without(self, worker: int) -> None:
        self._horizon.go_on_without(worker)
        known = self.found.get(worker)
        if known is not None:
            self.found[worker] = known._replace(times=known.times + 1)
            return
        place = self._place(self._process_ids[worker])
        self.found[worker] = Absence(worker, 1, place)
        where = f" ({place})" if place else ""
        print(
            f"coarse: worker {worker} has waited for {_STILL_S:g} s where emulation cannot see it{where}; emulated "
            "time goes on without it. Have it wait by coarse's means: --replaces gloo, coarse.barrier()",
            file=sys.stderr,  # standard output is worker 0's
            flush=True,
        )

    def _cpu_s(self, worker: int) -> float:
        with contextlib.suppress(OSError):
            return time.clock_gettime((~self._process_ids[worker] << 3) | _PROCESS_CLOCK)
        return 0.0

    def _place(self, process_id: int) -> str:
        """Return the line of the script at which a process is; "" where it doesn't say."""
        with contextlib.suppress(OSError):
            stacks = next(
                each for each in Path(f"/proc/{process_id}/fd").iterdir() if _STACKS in str(each.readlink())
            )
            begin = len(stacks.read_bytes())
            os.kill(process_id, _SIGNAL)
            deadline_s = self._clock.now_s() + _WRITING_S
            while self._clock.now_s() < deadline_s:
                self._clock.sleep_s(_LOOK_S)
                if len(found := stacks.read_bytes()) > begin:
                    return line_of(found[begin:].decode(errors="replace"))
        return ""


def line_of(stacks: str) -> str:
    """Return FILE:LINE of the innermost frame that is no library's, of stacks as faulthandler writes them."""
    for line in stacks.splitlines():
        _, found, rest = line.partition('File "')
        path, _, place = rest.partition('", line ')
        if found and not any(each in path for each in _LIBRARIES):
            return f"{Path(path).name}:{place.split(' ')[0]}"
    return ""
