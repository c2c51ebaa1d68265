# Pure: no MPI, threads, clock or environment.
"""Room for small regions that a client has before it needs it, so that a small name's first use waits for no answer.

A region is otherwise asked for, and the name's first push waits for the answer: two sleeps and two wake-ups for each
name.
"""

from dataclasses import dataclass

from coarse.client.protocol import ClientProtocol, ToDevice
from coarse.protocol.records import Allocate, Allocated, Free
from coarse.protocol.units import KIB
from coarse.storage.allocator import lines_of

ARENA_BYTES = 256 * KIB
MOST_BYTES = 16 * KIB
"""Most bytes of a region in an arena: several of these fit one."""
_LOW_BYTES = ARENA_BYTES // 2


@dataclass
class _Arena:
    """Room of a client at one device; offsets, of which `begin` is the next region's."""

    begin: int = 0
    end: int = 0
    spare: int = -1
    """Offset of the next arena; -1: there is none."""
    token: int = 0
    """Token of the request for it; 0: none is under way."""
    is_refused: bool = False


class Arenas:
    """Gives small regions their places, and asks for more room in time."""

    def __init__(self, protocol: ClientProtocol) -> None:
        self._protocol = protocol
        self._by_device: dict[int, _Arena] = {}
        self._is_open = False

    def open(self) -> None:
        """Ask for room from now on."""
        self._is_open = True

    def take(self, device: int, nbytes: int) -> tuple[int, list[ToDevice]]:
        """Return the offset of a region at a device, or -1 if there is no room yet; and records to send it first."""
        if not self._is_open or nbytes > MOST_BYTES:
            return -1, []
        arena = self._by_device.setdefault(device, _Arena())
        self._note_answer(arena)
        wanted_bytes, records = lines_of(nbytes), []
        if arena.begin + wanted_bytes > arena.end and arena.spare >= 0:
            if arena.begin < arena.end:
                records.append(ToDevice(device, Free(arena.begin)))
            arena.begin, arena.end, arena.spare = arena.spare, arena.spare + ARENA_BYTES, -1
        if arena.end - arena.begin < _LOW_BYTES and arena.spare < 0 and not arena.token and not arena.is_refused:
            arena.token = self._protocol.next_token()
            request = Allocate(self._protocol.client, arena.token, ARENA_BYTES, is_arena=True)
            records.append(ToDevice(device, request))
        if arena.begin + wanted_bytes > arena.end:
            return -1, records
        offset = arena.begin
        arena.begin += wanted_bytes
        return offset, records

    def give_back(self, device: int, nbytes: int) -> None:
        """Take back the region that `take` gave last, which was not used."""
        self._by_device[device].begin -= lines_of(nbytes)

    def _note_answer(self, arena: _Arena) -> None:
        answer = self._protocol.answers.pop(arena.token, None) if arena.token else None
        if isinstance(answer, Allocated):
            arena.token = 0
            arena.spare = answer.offset
            arena.is_refused = answer.offset < 0
