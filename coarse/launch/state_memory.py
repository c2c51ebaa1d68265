"""Memory that outlives a job's processes: the launcher holds its descriptors, and it ends with the launcher."""

import os
from pathlib import Path
from typing import Final, Self

from coarse.errors import StorageError
from coarse.protocol.commits import NUM_SLOTS, slot_of
from coarse.storage.region import create_memory_file
from coarse.storage.state_file import StateFile

_CHUNK_BYTES: Final = 1 << 24


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

    def slots_of(self, version: int) -> list[int]:
        """Return by worker the descriptor of the slot where a version goes."""
        return self._descriptors[slot_of(version) :: NUM_SLOTS]

    def number_in(self, descriptor: int) -> int:
        """Return the number of the version that a slot has, 0 for none."""
        slot = StateFile(os.dup(descriptor), "the state memory")
        try:
            return slot.number()
        finally:
            slot.close()

    def fill(self, worker: int, version: int, path: Path) -> None:
        """Have a worker's slot of a version hold a file's bytes; while no rank runs."""
        descriptor = self.slots_of(version)[worker]
        with path.open("rb") as file:
            os.ftruncate(descriptor, os.fstat(file.fileno()).st_size)
            at = 0
            while chunk := file.read(_CHUNK_BYTES):
                os.pwrite(descriptor, chunk, at)
                at += len(chunk)

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
        """Return by worker the newest version that it has recorded, 0 for none."""
        slots = [self.number_in(descriptor) for descriptor in self._descriptors]
        return tuple(max(slots[i : i + NUM_SLOTS]) for i in range(0, len(slots), NUM_SLOTS))
