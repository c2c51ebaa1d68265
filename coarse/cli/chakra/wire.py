# Pure: no MPI, threads, clock or environment.
"""Bytes of protobuf messages: fields by their numbers, and messages that follow one another, each after its length.

[Note: no protobuf package] Chakra's files need five of protobuf's messages, without extensions, groups or maps. The
wire format of these is four rules, which stand below. The package would be a dependency of the command line alone, and
its generated code must fit its own version, which TensorFlow pins in the same environment. The tests hold this file
against the package.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum

MAX_VARINT_BYTES = 10
_BITS = 64


class Wire(IntEnum):
    """How a field's value is written."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


Field = tuple[int, Wire, int | bytes]
"""Number, how it was written, and a varint's number or the bytes."""


class WireError(ValueError):
    """Bytes that are no message."""


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as its 64-bit two's complement."""
    value &= (1 << _BITS) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_field(number: int, value: int) -> bytes:
    """A field that holds a whole number, a truth value or a member of an enumeration."""
    return varint(number << 3 | Wire.VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field that holds text, bytes, a message or packed numbers."""
    return varint(number << 3 | Wire.BYTES) + varint(len(value)) + value


def double_field(number: int, value: float) -> bytes:
    """A field that holds a double."""
    return varint(number << 3 | Wire.FIXED64) + struct.pack("<d", value)


def delimited(message: bytes) -> bytes:
    """A message after its length."""
    return varint(len(message)) + message


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends); WireError where the bytes end before it does, or it never ends."""
    value = 0
    for index in range(MAX_VARINT_BYTES):
        if at + index >= len(data):
            raise WireError("the bytes end within a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & (1 << _BITS) - 1, at + index + 1
    raise WireError(f"a number has more than {MAX_VARINT_BYTES} bytes")


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message in their order; WireError where it is none."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0 or kind not in list(Wire):
            raise WireError(f"no field has number {number} and wire type {kind}")
        wire = Wire(kind)
        if wire is Wire.VARINT:
            value, at = read_varint(message, at)
            yield number, wire, value
            continue
        length = {Wire.FIXED64: 8, Wire.FIXED32: 4}.get(wire, 0)
        if wire is Wire.BYTES:
            length, at = read_varint(message, at)
        if at + length > len(message):
            raise WireError(f"field {number} has {length} bytes, and {len(message) - at} are left")
        yield number, wire, message[at : at + length]
        at += length


def packed(values: Iterable[int]) -> bytes:
    """Numbers end to end, as a repeated field has them."""
    return b"".join(map(varint, values))


def unpacked(data: bytes) -> Iterator[int]:
    """The numbers of a repeated field."""
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        yield value


def signed(value: int) -> int:
    """A varint as the signed number that it stands for."""
    return value - (1 << _BITS) if value >> _BITS - 1 else value
