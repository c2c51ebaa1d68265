"""Memory that outlives a job's processes: the launcher holds its descriptors, and it ends with the launcher."""

import os
from typing import Self

from coarse.errors import StorageError
from coarse.protocol.commits import NUM_SLOTS
from coarse.storage.region import create_memory_file
from coarse.storage.state_file import StateFile


class HeldMemory:
    """Slots for the states of each worker, without names; workers open them as files of this process."""

    def __init__(self, num_workers: int) -> None:
        self._descriptors = [create_memory_file("coarse-state", 0) for _ in range(num_workers * NUM_SLOTS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    @property
    def told(self) -> str:
        """What COARSE_STATE_MEMORY tells workers."""
        return f"/proc/{os.getpid()}/fd/{','.join(map(str, self._descriptors))}"

    def layout_of_worker_0(self) -> bytes | None:
        """Return the layout of a version of worker 0's, None where it has none that is whole now."""
        for descriptor in self._descriptors[:NUM_SLOTS]:
            slot = StateFile(os.dup(descriptor), "the state memory")
            try:
                found = slot.read()
            except StorageError:  # it is being written
                found = None
            finally:
                slot.close()
            if found is not None:
                return found.layout
        return None

    def versions(self) -> tuple[int, ...]:
        """Return by worker the newest version that it has recorded, 0 for none; while no rank runs."""
        slots = []
        for descriptor in self._descriptors:
            slot = StateFile(os.dup(descriptor), "the state memory")
            try:
                slots.append(slot.number())
            except StorageError:
                slots.append(0)
            finally:
                slot.close()
        return tuple(max(slots[i : i + NUM_SLOTS]) for i in range(0, len(slots), NUM_SLOTS))
