"""Workers that emulated time waits for, while they wait themselves where emulation cannot see it.

[Note: absences] A worker that computes uses CPU time, and will say something at its next call. One that is blocked by
other means (a group of another library, a queue, a slow file) may wait for a process that waits for emulated time. Time
goes on without such a worker, and it is named, once time has stood still for two seconds, with something due, for a
worker that has used no CPU time in between and waits for no core.
"""

import contextlib
import os
import socket
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from coarse.emulation.fabric import Absence
from coarse.emulation.horizon import Horizon
from coarse.protocol.clock import WallClock

_STILL_S, _GLANCE_S = 2.0, 0.1
_BUSY_SHARE = 0.05
"""CPU seconds for each that passes, below which a process does nothing but wait."""
_OWN_THREAD = "coarse-own"
_STATE, _USER, _SYSTEM = 0, 11, 12
"""Places in /proc/PID/task/TID/stat, behind the name: the state, and ticks of CPU time."""
_ANSWER_S = 0.5
_LIBRARIES = (
    str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tf_strategy"), "/site-packages/",
    sysconfig.get_paths()["stdlib"], "<frozen", "<string>",
)  # fmt: skip


class LineTeller:
    """Thread of a worker's process that tells the fabric the main thread's line of the script.

    A signal would do without it, and end the script's waits: sleeps and polls of C libraries.
    """

    def __init__(self, run: str, worker: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._address = _address(run, worker)
        self._socket.bind(self._address)
        threading.Thread(target=self._answer, name="coarse-lines", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", self._address)

    def _answer(self) -> None:
        while True:
            question, whose = self._socket.recvfrom(16)
            if not question:
                self._socket.close()
                return
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            with contextlib.suppress(OSError):
                self._socket.sendto(_line_of(frame).encode(), whose)


def mark_own(thread: threading.Thread) -> None:
    """Mark a thread of this process as coarse's own, whose repeated looks are no compute."""
    with contextlib.suppress(OSError):  # it has ended
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(_OWN_THREAD)


def _address(run: str, worker: int) -> str:
    return f"\0coarse-{run}-line-{worker}"


def _line_of(frame: FrameType | None) -> str:
    """Return FILE:LINE of the innermost frame that is no library's; "" if there is none."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not any(each in path for each in _LIBRARIES):
            return f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class Absences:
    """Detector of absent workers; see [Note: absences]."""

    def __init__(self, run: str, process_ids: Sequence[int], num_workers: int, horizon: Horizon) -> None:
        """Watch workers; `process_ids` are of all endpoints, of which workers come first."""
        self._run = run
        self._process_ids = process_ids
        self._num_workers = num_workers
        self._horizon = horizon
        self._clock = WallClock()
        self._still_since_s = self._clock.now_s()
        self._used_s: dict[int, float] = {}
        """CPU seconds that workers had used when time began to stand still."""
        self.found: dict[int, Absence] = {}

    def on_progress(self) -> None:
        """Note that something has happened."""
        self._still_since_s = self._clock.now_s()
        self._used_s = {}

    def look(self) -> bool:
        """Return whether time may go on now, as nothing happens though something is due.

        It is called when nothing has happened since the last look.
        """
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
        idle = [each for each in idle if not self._wants_a_core(each)]
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
        place = self._place(worker)
        self.found[worker] = Absence(worker, 1, place)
        where = f" ({place})" if place else ""
        print(
            f"coarse: worker {worker} has waited for {_STILL_S:g} s where emulation cannot see it{where}; emulated "
            "time goes on without it. Have it wait by coarse's means: --replaces gloo, coarse.barrier()",
            file=sys.stderr,  # standard output is worker 0's
            flush=True,
        )

    def _cpu_s(self, worker: int) -> float:
        """Return the CPU seconds of a worker's threads, but for coarse's own."""
        ticks = (int(each[_USER]) + int(each[_SYSTEM]) for each in self._threads(worker))
        return sum(ticks) / os.sysconf("SC_CLK_TCK")

    def _wants_a_core(self, worker: int) -> bool:
        """Return whether a thread of a worker runs, or would if others did not: it computes, however slowly."""
        return any(each[_STATE] == "R" for each in self._threads(worker))

    def _threads(self, worker: int) -> Iterator[list[str]]:
        """Yield the fields that /proc has of a worker's threads behind their names, but for coarse's own."""
        for stat in Path(f"/proc/{self._process_ids[worker]}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # the thread has ended
                name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
                if name != _OWN_THREAD:
                    yield fields.split()

    def _place(self, worker: int) -> str:
        """Return the line of the script at which a worker is; "" if it doesn't say."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
            asking.bind(_address(self._run, -1))
            asking.settimeout(_ANSWER_S)
            asking.sendto(b"?", _address(self._run, worker))
            return asking.recv(4096).decode()
        return ""
