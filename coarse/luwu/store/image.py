# Pure: no MPI, threads, clock or environment.
"""Image of a chunk in memory: its arrays, and a header with its identity and its checksums."""

import struct
import zlib
from typing import Final, NamedTuple

import numpy as np

from coarse.errors import StorageError
from coarse.luwu.store.layout import ChunkImage
from coarse.protocol.dtypes import narrowed
from coarse.storage.checksums import Checksum

_HEADER = struct.Struct("<8sIIQIIII")
_MAGIC: Final = b"coarsepg"
_CRC = struct.Struct("<I")


class Stamp(NamedTuple):
    """Identity of a chunk in its header."""

    unit: int
    chunk: int
    version: int
    """Training step that made it."""


class Image:
    """Views of one chunk's bytes in a buffer; see [Note: a chunk's image] in layout.py."""

    def __init__(self, layout: ChunkImage, buffer: np.ndarray) -> None:
        """View `buffer`, (n,) uint8 that begins at a block: the whole image, or the part that a pull reads."""
        self.layout = layout
        self.bytes = buffer[: layout.nbytes]

    @property
    def pulled(self) -> np.ndarray:
        """Parameters that workers pull, (n,) of their storage type."""
        return self.bytes[: self.layout.pulled_bytes].view(self.layout.pulled.storage)

    @property
    def master(self) -> np.ndarray:
        """Parameters, (n,) float32."""
        if not self.layout.has_master:
            return self.pulled
        return self._behind_header(0)

    @property
    def states(self) -> list[np.ndarray]:
        """Optimizer states, (n,) float32 each."""
        return [self._behind_header(self.layout.has_master + place) for place in range(self.layout.num_states)]

    def refresh_pulled(self) -> None:
        """Make the pulled parameters those of the master copy, rounded to nearest."""
        if self.layout.has_master:
            self.pulled[:] = narrowed(self.master, self.layout.pulled)

    def seal(self, stamp: Stamp, checksum: Checksum) -> None:
        """Write the header."""
        head = _HEADER.pack(
            _MAGIC, stamp.unit, stamp.chunk, stamp.version, self.layout.num_elements,
            checksum(self._pull_part()), checksum(self._state_part()), 0,
        )  # fmt: skip
        self._header()[: len(head)] = np.frombuffer(head, np.uint8)
        self._header()[len(head) : len(head) + _CRC.size] = np.frombuffer(_CRC.pack(zlib.crc32(head)), np.uint8)

    def check(self, stamp: Stamp, checksum: Checksum, where: str, *, pulled: bool, states: bool) -> None:
        """Raise StorageError unless these parts and the header are those of a chunk sealed with the stamp.

        `where` is the place for people: the folder and the offset.
        """
        raw = self._header()[: _HEADER.size + _CRC.size].tobytes()
        magic, unit, chunk, version, num_elements, pull_sum, state_sum, _ = _HEADER.unpack_from(raw)
        is_header = magic == _MAGIC and _CRC.unpack_from(raw, _HEADER.size)[0] == zlib.crc32(raw[: _HEADER.size])
        if not is_header:
            raise _torn(stamp, where, "it has no header")
        if (unit, chunk, num_elements) != (stamp.unit, stamp.chunk, self.layout.num_elements):
            raise _torn(stamp, where, f"it is chunk {chunk} of unit {unit}, of {num_elements} elements")
        if version != stamp.version:
            raise _torn(stamp, where, f"it is of step {version}")
        if pulled and checksum(self._pull_part()) != pull_sum:
            raise _torn(stamp, where, "its parameters have another checksum")
        if states and checksum(self._state_part()) != state_sum:
            raise _torn(stamp, where, "its states have another checksum")

    def _behind_header(self, place: int) -> np.ndarray:
        nbytes = 4 * self.layout.num_elements
        begin = self.layout.pull_nbytes + place * nbytes
        return self.bytes[begin : begin + nbytes].view(np.float32)

    def _pull_part(self) -> np.ndarray:
        return self.bytes[: self.layout.pulled_bytes]

    def _state_part(self) -> np.ndarray:
        begin = self.layout.pull_nbytes
        return self.bytes[begin : begin + self.layout.state_bytes]

    def _header(self) -> np.ndarray:
        return self.bytes[self.layout.header : self.layout.pull_nbytes]


def _torn(stamp: Stamp, where: str, what: str) -> StorageError:
    return StorageError(
        f"{where}: wanted chunk {stamp.chunk} of unit {stamp.unit} as step {stamp.version} left it, but {what}: the "
        "file was written to by something else, or the disk has lost it; go on from a saved model"
    )
