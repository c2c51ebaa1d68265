"""Byte and rate constants; the only place where bits become bytes."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
LINE_BYTES = 64
"""Bytes of a processor's cache line."""

_BYTES_PER_GBIT = 1e9 / 8


def bytes_per_s_from_bit_per_s(bit_per_s: float) -> float:
    """Convert a rate in bits per second into bytes per second."""
    return bit_per_s / 8


def bytes_per_s_from_gbit_per_s(gbit_per_s: float) -> float:
    """Convert the decimal gigabits per second by which vendors name a link into bytes per second."""
    return gbit_per_s * _BYTES_PER_GBIT


def gbit_per_s_from_bytes_per_s(bytes_per_s: float) -> float:
    """Convert a rate in bytes per second into decimal gigabits per second, for reports."""
    return bytes_per_s / _BYTES_PER_GBIT
