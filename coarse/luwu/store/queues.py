# Pure: no MPI, threads, clock or environment.
"""Queues of a folder's disk: three with strict priorities (LuWu 3.3)."""

import enum
from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Priority(enum.IntEnum):
    """Priorities: reads that workers wait for go first.

    Writes cannot starve: reads of states need buffers, which writes give back.
    """

    READ_PARAMETERS = 0
    READ_STATES = 1
    WRITE_STATES = 2


class FolderQueues(Generic[Job]):
    """Queues of one folder, of which `depth` jobs run at once."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._queues: tuple[deque[Job], ...] = tuple(deque() for _ in Priority)
        self.num_running = 0

    def put(self, priority: Priority, job: Job) -> None:
        """Queue a job."""
        self._queues[priority].append(job)

    def start(self) -> list[Job]:
        """Return the jobs that begin now."""
        started: list[Job] = []
        if self.num_running < self._depth:
            for queue in self._queues:
                while queue and self.num_running < self._depth:
                    started.append(queue.popleft())
                    self.num_running += 1
        return started

    def end(self) -> None:
        """Note that a running job has ended."""
        self.num_running -= 1

    @property
    def is_idle(self) -> bool:
        """True if nothing runs or waits."""
        return not self.num_running and not any(self._queues)
