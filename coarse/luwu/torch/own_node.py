"""Optimizer node in the worker's own process: the machines and disks of a memory device, without it."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from coarse.errors import CoarseError
from coarse.luwu.device.folder_work import FolderWork
from coarse.luwu.device.models import DeviceModels
from coarse.protocol.clock import Clock
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction, Send
from coarse.storage.allocator import RegionAllocator
from coarse.storage.region import DeviceMemory, create_memory_file
from coarse.strategy.builtin import Dense

CLIENT, DEVICE = 0, 0
_ALONE = Placement(
    client_nodes=(0,), device_nodes=(0,), local_proxies=(DEVICE,), ranks=(0, 1), planner=Dense(),
    num_sync_groups=1,
)  # fmt: skip
_PAGE_BYTES = 4096


class OwnNode:
    """Link to an optimizer node for a RemoteModel; the thread at its other end serves one worker."""

    client = CLIENT
    local_proxy = DEVICE

    def __init__(self, capacity_bytes: int, clock: Clock, stall_timeout_s: float, num_processes_here: int) -> None:
        """Start the thread.

        `capacity_bytes` is the size of memory, which is taken as it is needed. `num_processes_here` processes share the
        cores.
        """
        self.lock = threading.RLock()
        self.stall_timeout_s = stall_timeout_s
        self.models: dict[int, Callable[[Any], None]] = {}
        """Function that takes the records of each model, by the model's number."""
        self._clock = clock
        self._arrived = threading.Condition(self.lock)
        self._inbox: deque[Any] = deque()
        self._woken = threading.Event()
        self._is_ending = False
        self._failed: CoarseError | None = None
        self.memory = DeviceMemory(create_memory_file("optimizer", capacity_bytes), capacity_bytes)
        allocator = RegionAllocator(capacity_bytes)

        def allocate(nbytes: int, placed: Callable[[int, str], list[Instruction]]) -> list[Instruction]:
            offset = allocator.allocate(nbytes, _PAGE_BYTES)
            return placed(0, f"{nbytes} bytes do not fit") if offset is None else placed(offset, "")

        self._models = DeviceModels(DEVICE, _ALONE, allocate, allocator.free)
        self.hands = FolderWork(self._models, self.memory, self._woken.set, clock, num_processes_here)
        self._thread = threading.Thread(target=self._serve, name="coarse-own-node", daemon=True)
        self._thread.start()

    @property
    def protocol(self) -> OwnNode:
        """Part of a client's protocol that a model asks for."""
        return self

    # --- the worker's end

    def send(self, records: list[Any]) -> None:
        """Queue records, which are read after the next `ring_bells`."""
        self._inbox.extend(one.record for one in records)

    def ring_bells(self) -> None:
        """Have the queued records read."""
        self._woken.set()

    def tell(self, records: list[Any]) -> None:
        """Send records, and have them read."""
        with self.lock:
            self.send(records)
            self.ring_bells()

    def tell_waiting(self) -> None:
        """Have all threads that wait look again; the lock is held."""
        self._arrived.notify_all()

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `is_done()`; return False after the time."""
        limit_s = self.stall_timeout_s if timeout_s is None else timeout_s
        with self.lock:
            self.ring_bells()
            self._arrived.wait_for(lambda: is_done() or self._failed is not None, min(limit_s, threading.TIMEOUT_MAX))
            if self._failed is not None:
                raise self._failed
            return is_done()

    def close(self) -> None:
        """End the thread, once all models are closed."""
        self._is_ending = True
        self._woken.set()
        self._thread.join()
        self.memory.close()

    # --- the node's end

    def _serve(self) -> None:
        try:
            while not self._is_ending:
                self._woken.wait()
                self._woken.clear()
                while self._inbox:
                    record = self._inbox.popleft()
                    self._carry_out(self._models.handlers[type(record)](record))
                self._carry_out(self.hands.take_results())
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            with self.lock:
                self._failed = CoarseError(f"the worker's own optimizer node ended with {error!r}")
                self.tell_waiting()

    def _carry_out(self, steps: list[Instruction]) -> None:
        for step in steps:
            if isinstance(step, Send):
                record: Any = step.record
                with self.lock:
                    self.models[record.model](record)
                    self.tell_waiting()
            else:
                self.hands.carriers[type(step)](step)
