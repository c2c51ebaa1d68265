# Pure: no MPI, threads, clock or environment.
"""What a folder's disk does next: three queues with strict priorities (LuWu 3.3)."""

import enum
from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Priority(enum.IntEnum):
    """What workers wait for goes first. Writes cannot starve: reads of states need buffers, which writes give back."""

    READ_PARAMETERS = 0
    READ_STATES = 1
    WRITE_STATES = 2


class FolderQueues(Generic[Job]):
    """The queues of one folder, of which so many jobs run at once."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._queues: tuple[deque[Job], ...] = tuple(deque() for _ in Priority)
        self.num_running = 0

    def put(self, priority: Priority, job: Job) -> None:
        """A job that is to be done."""
        self._queues[priority].append(job)

    def start(self) -> list[Job]:
        """The jobs that begin now."""
        started: list[Job] = []
        if self.num_running < self._depth:
            for queue in self._queues:
                while queue and self.num_running < self._depth:
                    started.append(queue.popleft())
                    self.num_running += 1
        return started

    def end(self) -> None:
        """One of those has ended."""
        self.num_running -= 1

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self.num_running and not any(self._queues)
