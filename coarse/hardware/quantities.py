# Pure: no MPI, threads, clock or environment.
"""Numbers with a unit as machine files state them: `latency_us = 5`, `bandwidth_gbit_per_s = 100`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coarse.errors import ConfigError
from coarse.protocol.toml import KeyPath, Where, refuse_unknown_keys
from coarse.protocol.units import GIB, KIB, MIB, bytes_per_s_from_gbit_per_s

SizeTable = tuple[tuple[int, float], ...]
"""Times of one transfer alone, as (bytes, seconds beyond the start-up); both grow strictly."""

LARGEST = 1e24
"""Largest number of a machine; so sums and products of them stay finite."""
SMALLEST = 1e-24

RATES = {
    "gb_per_s": 1e9,
    "mb_per_s": 1e6,
    "gbit_per_s": bytes_per_s_from_gbit_per_s(1),
    "gib_per_s": float(GIB),
    "bytes_per_s": 1.0,
}
TIMES = {"us": 1e-6, "ns": 1e-9, "ms": 1e-3, "s": 1.0}
SIZES = {"gib": float(GIB), "mib": float(MIB), "kib": float(KIB), "gb": 1e9, "bytes": 1.0}
FLOPS = {"tflop_per_s": 1e12, "gflop_per_s": 1e9, "flop_per_s": 1.0}
TABLES = {"bytes_us": 1e-6, "bytes_ns": 1e-9, "bytes_s": 1.0}


@dataclass(frozen=True)
class Quantity:
    """Setting that a file states as one of `{name}_{unit}`."""

    name: str
    units: Mapping[str, float]
    """Factor of each unit that makes it bytes, seconds, bytes per second or FLOP per second."""
    field: str
    """Field that takes the converted value."""
    is_needed: bool = True
    or_zero: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that may state it, the usual one first."""
        return tuple(f"{self.name}_{unit}" for unit in self.units)

    def read(self, table: Mapping[str, object]) -> tuple[str, Any] | None:
        """Return (key, converted value) as the table states it.

        Raises:
            ConfigError: it is wrong or missing.
        """
        stated = [key for key in self.keys if key in table]
        if len(stated) > 1:
            raise ConfigError(f"{' and '.join(stated)} state the same; remove one", key=stated[1])
        if not stated:
            if self.is_needed:
                raise ConfigError(f"{self.keys[0]!r} is missing; set it", key=self.keys[0])
            return None
        key, factor = stated[0], self.units[stated[0].removeprefix(f"{self.name}_")]
        value = table[key]
        if self.units is TABLES:
            return key, _scaled_table(key, value, factor)
        require_positive(key, value, or_zero=self.or_zero)
        scaled = value * factor  # type: ignore[operator]
        require_positive(key, scaled, or_zero=self.or_zero)
        return key, int(scaled) if self.units is SIZES else scaled


def refuse_other_keys(
    table: Mapping[str, object], plain: tuple[str, ...], quantities: tuple[Quantity, ...], path: KeyPath, where: Where
) -> None:
    """Raise ConfigError for a key that the table does not have, or that has another unit."""
    known = [*plain, *(key for quantity in quantities for key in quantity.keys)]
    for key in table:
        near = [quantity for quantity in quantities if str(key).startswith(f"{quantity.name}_") or key == quantity.name]
        if key not in known and near:
            raise ConfigError(
                f"{where((*path, key))}: {key!r} has no known unit; write one of {', '.join(near[-1].keys)}",
                key=key,
            )
    refuse_unknown_keys(table, known, path, where)


def require_positive(key: str, value: object, *, or_zero: bool = False) -> None:
    """Raise ConfigError unless `value` is a number above zero that arithmetic can bear."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and ((or_zero and value == 0) or SMALLEST <= value <= LARGEST):  # type: ignore[operator]
        return
    wanted = "0, or a number above it" if or_zero else "a number above 0"
    raise ConfigError(f"{key} must be {wanted} (and at most {LARGEST:g}), got {_short(value)}; correct it", key=key)


def require_name(key: str, value: object) -> None:
    """Raise ConfigError unless `value` is a name that a machine file can hold."""
    if not (isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.:/()+-]{0,99}", value)):
        raise ConfigError(
            f"{key} must be text of letters, digits and _.:/()+- that begins with a letter or digit, "
            f"got {_short(value)}; rename it",
            key=key,
        )


def require_size_table(key: str, table: SizeTable) -> None:
    """Raise ConfigError unless sizes and seconds of the table both grow strictly from above 0."""
    before: tuple[float, float] = (0, 0.0)
    for nbytes, seconds in table:
        if not (isinstance(nbytes, int) and before[0] < nbytes <= LARGEST and before[1] < seconds <= LARGEST):
            raise ConfigError(
                f"{key} must be of whole numbers of bytes and times that both grow from point to point, "
                f"got {_short((nbytes, seconds))} after {before}; sort it and remove what does not grow",
                key=key,
            )
        before = (nbytes, seconds)


def _scaled_table(key: str, value: object, factor: float) -> SizeTable:
    if not isinstance(value, list) or not value:
        raise ConfigError(
            f"{key} must be a list of [bytes, time] that is not empty, got {_short(value)}; "
            "add points, or remove the key",
            key=key,
        )
    for point in value:
        if not (isinstance(point, list) and len(point) == 2 and type(point[0]) is int):
            raise ConfigError(f"{key} must hold [bytes, time], got {_short(point)}; correct it", key=key)
        for number in point:
            require_positive(key, number)
    require_size_table(key, tuple((nbytes, time) for nbytes, time in value))
    return tuple((nbytes, time * factor) for nbytes, time in value)


def _short(value: object) -> str:
    """Return at most 80 characters of a value; a whole number may have too many digits to print."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return "a whole number of more than 24 digits"
    text = type(value).__name__ if isinstance(value, list | dict) and len(value) > 8 else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
