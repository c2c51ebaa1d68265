"""File behind a memory device, opened where the partition table puts it."""

from collections.abc import Sequence

from coarse.errors import CapacityError, ConfigError, GpuError
from coarse.protocol.partition import RankPlace, Role
from coarse.protocol.place import Anywhere, DaxDevice, ExistingFile, GpuMemory, MemoryPlace, NumaNode
from coarse.storage.dax import open_dax
from coarse.storage.existing_file import open_existing, refuse_overlap_elsewhere
from coarse.storage.folder import create_in_folder
from coarse.storage.gpu_memory import create_on_gpu
from coarse.storage.numa import create_on_node
from coarse.storage.region import MemoryFile, PageSource, check_capacity, create_memory_file
from coarse.storage.room import total_bytes


def open_device_file(
    rank: int,
    places: Sequence[RankPlace],
    name: str,
    wanted_bytes: int | None,
    elsewhere: Sequence[RankPlace] = (),
) -> MemoryFile:
    """Open the file of the memory device `rank`, for `wanted_bytes` or all that there are.

    The rank is one of the `places` of a node. The bytes of devices `elsewhere` matter where hosts share a file system.

    Raises:
        ConfigError: this machine has no such place, or this job may not use it.
        CapacityError: the place has not that much.
        GpuError: CUDA refuses a call on a GPU.
    """
    (own,) = (place for place in places if place.rank == rank)
    memories = [place.memory for place in places if Role.MEMORY_DEVICE in place.roles]
    if wanted_bytes is not None and isinstance(own.memory, Anywhere | NumaNode):
        check_capacity(wanted_bytes, sum(isinstance(memory, Anywhere | NumaNode) for memory in memories))
    if isinstance(own.memory, Anywhere):
        nbytes = wanted_bytes or total_bytes()
        return MemoryFile(descriptor=create_memory_file(name, nbytes), capacity_bytes=nbytes, source=PageSource())
    try:
        if isinstance(own.memory, ExistingFile):
            refuse_overlap_elsewhere(own.memory, elsewhere)
        return _open_in(own.memory, name, wanted_bytes, memories.count(own.memory))
    except (CapacityError, ConfigError, GpuError) as error:
        raise type(error)(f"{own.memory_said_at}: memory of rank {rank} is '{own.memory}': {error}") from None


def _open_in(place: MemoryPlace, name: str, wanted_bytes: int | None, num_sharers: int) -> MemoryFile:
    if isinstance(place, NumaNode):
        return create_on_node(place.number, name, wanted_bytes, num_sharers)
    if isinstance(place, DaxDevice):
        return open_dax(place.path, wanted_bytes, place.offset_bytes, place.nbytes)
    if isinstance(place, ExistingFile):
        return open_existing(place.path, wanted_bytes, place.offset_bytes, place.nbytes)
    if isinstance(place, GpuMemory):
        return create_on_gpu(place.number, name, wanted_bytes, num_sharers)
    assert not isinstance(place, Anywhere)
    return create_in_folder(place.path, wanted_bytes, num_sharers)
