"""Pair of processes that share mapped memory and exchange records, like a worker and its device."""

import os
import struct
import subprocess
import sys
import uuid
from collections.abc import Collection
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from coarse.errors import CapacityError, CoarseError
from coarse.protocol.clock import Clock, WallClock
from coarse.protocol.units import MIB
from coarse.storage.region import DeviceMemory, MemoryFile, create_memory_file
from coarse.storage.room import available_bytes
from coarse.transport.mailbox import Mailbox, control_bytes

PEER_MODULE = "coarse.hardware.measure.peer"
REQUEST = struct.Struct("<BQQ")
"""Layout of a request: its kind, and two numbers."""
ANSWER = struct.Struct("<d")
PING, READ, READ_OFTEN, ADD, STEP, MULTIPLY, QUIT = range(7)
ENTER, LAY, CHASE, STREAM, FLUSH, ADD_THERE, STEP_THERE = range(7, 14)
"""Kinds of requests about a memory device, see memory_probe.py."""
NS_PER_S = 1_000_000_000
"""Nanoseconds of a second: times travel as whole nanoseconds."""
PARENT, PEER = 0, 1
MAX_REGION_BYTES = 128 * MIB
"""Size of the region that copies go through from end to end, as gradients do; no small cache holds it."""
_TIMEOUT_S = 60.0
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Endpoint:
    """Endpoint of one process: the region, the mailbox, and private bytes to copy from and to."""

    def __init__(self, number: int, control_fd: int, data_fd: int, nbytes: int, run: str) -> None:
        control = DeviceMemory(control_fd, control_bytes(2))
        self._memories = (control, DeviceMemory(data_fd, nbytes))
        self.clock: Clock = WallClock()
        self.region = self._memories[1].view(0, nbytes)  # (nbytes,) uint8, shared
        self.mailbox = Mailbox(number, 2, (1 - number,), control.view(0, control_bytes(2)).data, run)
        self._at = 0

    @cached_property
    def own(self) -> np.ndarray:  # (nbytes,) uint8
        """Memory of this process alone, as much as is shared."""
        return np.ones(len(self.region), np.uint8)

    def next_range(self, nbytes: int) -> slice:
        """Return the next part of the region; at its end, the part at its begin."""
        if self._at + nbytes > len(self.region):
            self._at = 0
        self._at += nbytes
        return slice(self._at - nbytes, self._at)

    def tell(self, frame: bytes) -> None:
        """Send a record to the other process."""
        self.mailbox.post(1 - self.mailbox.endpoint, frame)
        self.mailbox.ring_bells()

    def close(self) -> None:
        """Give up the mailbox; the memory goes with the process."""
        self.mailbox.close()


class Pair:
    """Pair from the measuring process's side; `with` starts and ends the other."""

    def __init__(self, file: MemoryFile | None = None) -> None:
        """Measure in a memory device's file, which stays its owner's, or in the machine's memory."""
        self._file = file
        self._is_greeted = False
        self.nbytes = file.capacity_bytes if file else min(MAX_REGION_BYTES, available_bytes() // 8 // MIB * MIB)
        if self.nbytes < MIB and file is None:
            raise CapacityError(
                f"measuring wants at least {8 * MIB} bytes of memory, and this machine has {available_bytes()} left; "
                "end other programs"
            )

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            run = uuid.uuid4().hex
            control, data = create_memory_file("coarse-profile", control_bytes(2)), self._data()
            opened.callback(os.close, control)
            if self._file is None:
                opened.callback(os.close, data)
            self.here = Endpoint(PARENT, control, data, self.nbytes, run)
            opened.callback(self.here.close)
            numbers = map(str, (control, data, self.nbytes, os.getpid()))
            command = [sys.executable, "-m", PEER_MODULE, *numbers, run]
            environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1")}
            self._process = subprocess.Popen(
                command, pass_fds=(control, data), env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            opened.callback(self._end)
            self._tell(PING)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    @property
    def process_ids(self) -> tuple[int, int]:
        """Ids of the measuring process and the other."""
        return os.getpid(), self._process.pid

    def start(self, what: int, first: int = 0, second: int = 0) -> None:
        """Have the other process do something, once it is there."""
        if not self._is_greeted:
            self.answer()  # to the ping
            self._is_greeted = True
        self._tell(what, first, second)

    def _data(self) -> int:
        return create_memory_file("coarse-profile", self.nbytes) if self._file is None else self._file.descriptor

    def _tell(self, what: int, first: int = 0, second: int = 0) -> None:
        self.here.tell(REQUEST.pack(what, first, second))

    def answer(self) -> float:
        """Return the number that the other process found."""
        deadline_s = self.here.clock.now_s() + _TIMEOUT_S
        while True:
            for _, frame in self.here.mailbox.frames():
                return float(ANSWER.unpack(frame)[0])
            if self._process.poll() is not None or self.here.clock.now_s() > deadline_s:
                raise CoarseError(f"the second process did not answer: {self._last_words()}")
            self.here.mailbox.sleep(0.2)

    def ask(self, what: int, first: int = 0, second: int = 0) -> float:
        """Have the other process do something, and return the number that it found."""
        self.start(what, first, second)
        return self.answer()

    def core_times(self) -> tuple[float, float]:
        """Return the seconds that the two processes have run and have waited for a core; zeros if not counted."""
        return core_times(self.process_ids)

    def _last_words(self) -> str:
        self._process.kill()
        _, errors = self._process.communicate()
        return errors.decode(errors="replace").strip().rpartition("\n")[2] or f"no word in {_TIMEOUT_S:.0f} s"

    def _end(self) -> None:
        if self._process.poll() is None:
            self._tell(QUIT)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def core_times(process_ids: Collection[int]) -> tuple[float, float]:
    """Return the seconds that processes have run and have waited for a core; zeros if not counted."""
    ran_ns = waited_ns = 0
    for pid in process_ids:
        with suppress(OSError, ValueError):
            ran, waited, _ = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
            ran_ns, waited_ns = ran_ns + ran, waited_ns + waited
    return ran_ns / 1e9, waited_ns / 1e9
