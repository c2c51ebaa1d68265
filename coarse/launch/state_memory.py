"""Memory that outlives a job's processes: the launcher holds its descriptors, until it ends."""

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from coarse.errors import ConfigError, StorageError
from coarse.protocol.commits import NUM_SLOTS, slot_of
from coarse.protocol.place import Folder, MemoryPlace, NumaNode
from coarse.storage.numa import bind, require_node
from coarse.storage.region import create_memory_file
from coarse.storage.state_file import StateFile
from coarse.transport.commit_note import NAME as NOTE

_CHUNK_BYTES: Final = 1 << 24


def _file_in(place: MemoryPlace) -> int:
    """Return a file without a name, of the kind of memory that a device has.

    It is of a NUMA node, or on a folder's file system; if the device has a device file, an existing file or a GPU for
    itself, the machine's.
    """
    if isinstance(place, Folder):
        try:
            return os.open(place.path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"the states of a worker are to be kept where its device is, in {place}: {error.strerror}; name another"
            ) from None
    descriptor = create_memory_file("coarse-state", 0)
    if isinstance(place, NumaNode):
        try:
            nbytes = require_node(place.number).total_bytes
            os.ftruncate(descriptor, nbytes)
            bind(descriptor, nbytes, place.number)
            os.ftruncate(descriptor, 0)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


class HeldFiles:
    """Files in memory by names of ranks' own, which begin with their host's."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def find(self, name: str) -> list[int]:
        """Return the descriptor of a file; [] if there is none."""
        return [self._descriptors[name]] if name in self._descriptors else []

    def make(self, name: str) -> int:
        """Return the descriptor of a file, which is made if there is none."""
        if name not in self._descriptors:
            self._descriptors[name] = create_memory_file("coarse-held", 0)
        return self._descriptors[name]

    def move(self, name: str, other: str) -> None:
        """Give a file another name; a file that has it goes."""
        moved = self._descriptors.pop(name)
        self.lose(other)
        self._descriptors[other] = moved

    def lose(self, beginning: str) -> None:
        """Close and forget all files whose name begins so."""
        for name in [each for each in self._descriptors if each.startswith(beginning)]:
            os.close(self._descriptors.pop(name))


class HeldMemory:
    """Slots for the states of each worker, without names; workers open them as files of this process."""

    def __init__(self, places: Sequence[MemoryPlace]) -> None:
        """Make empty slots.

        `places` are, by worker, the places of the memory devices that are local to it, whose kind of memory is taken.

        Raises:
            ConfigError: this machine has no such NUMA node or folder, or this user may not use it.
        """
        self._places = places
        self.files = HeldFiles()
        self._descriptors: list[int] = []
        self.lock = threading.RLock()
        """Lock held while slots are copied, or lost."""
        try:
            for place in places:
                self._descriptors += [_file_in(place) for _ in range(NUM_SLOTS)]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self.files.lose("")

    @property
    def told(self) -> str:
        """Text of COARSE_STATE_MEMORY, which workers read."""
        return f"/proc/{os.getpid()}/fd/{','.join(map(str, self._descriptors))}"

    def slots_of_worker(self, worker: int) -> list[int]:
        """Return the descriptors of a worker's slots; IndexError if there is no such worker."""
        if not 0 <= worker < len(self._places):
            raise IndexError(worker)
        return self._descriptors[worker * NUM_SLOTS : (worker + 1) * NUM_SLOTS]

    def lose(self, workers: Iterable[int]) -> None:
        """Replace the slots of these workers by empty files; while no rank runs."""
        with self.lock:
            for worker in workers:
                for number in range(worker * NUM_SLOTS, (worker + 1) * NUM_SLOTS):
                    os.close(self._descriptors[number])
                    self._descriptors[number] = _file_in(self._places[worker])

    def slots_of(self, version: int) -> list[int]:
        """Return the descriptors of each worker's slot where a version goes."""
        return self._descriptors[slot_of(version) :: NUM_SLOTS]

    def number_in(self, descriptor: int) -> int:
        """Return the number of the version that a slot has, 0 for none."""
        slot = StateFile(os.dup(descriptor), "the state memory")
        try:
            return slot.number()
        finally:
            slot.close()

    def fill(self, worker: int, version: int, path: Path) -> None:
        """Put a file's bytes into a worker's slot of a version; while no rank runs."""
        descriptor = self.slots_of(version)[worker]
        with path.open("rb") as file:
            os.ftruncate(descriptor, os.fstat(file.fileno()).st_size)
            at = 0
            while chunk := file.read(_CHUNK_BYTES):
                os.pwrite(descriptor, chunk, at)
                at += len(chunk)

    def layout_of_worker_0(self) -> bytes | None:
        """Return the layout of a version of worker 0's, or of its note; None if none is whole now."""
        for descriptor in (*self._descriptors[:NUM_SLOTS], *self.files.find(NOTE)):
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

    def progress(self) -> tuple[int, ...]:
        """Return the newest version that each worker has recorded, or that is committed elsewhere; 0 for none."""
        elsewhere = max((self.number_in(descriptor) for descriptor in self.files.find(NOTE)), default=0)
        return tuple(max(version, elsewhere) for version in self.versions())

    def versions(self) -> tuple[int, ...]:
        """Return the newest version that each worker has recorded, 0 for none."""
        slots = [self.number_in(descriptor) for descriptor in self._descriptors]
        return tuple(max(slots[i : i + NUM_SLOTS]) for i in range(0, len(slots), NUM_SLOTS))
