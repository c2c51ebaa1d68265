# Pure: no MPI, threads, clock or environment.
"""Rate of a link of a cluster in a box, in tc's units, and the token bucket that holds it."""

import re
from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.protocol.units import bytes_per_s_from_bit_per_s

UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
"""Units of tc in bits per second; its "bps" are bytes, and are refused."""
SLOWEST_BIT_PER_S = 64 * 10**3
FASTEST_BIT_PER_S = 100 * 10**9

_BURST_S = 0.005
"""Seconds by which a timer may be late without a loss of rate."""
_LEAST_BURST_BYTES = 4096
"""Room for the largest packet."""
_QUEUE_S = 0.05
"""Seconds of bytes that may wait at a link before packets are dropped. It is as in a switch with small buffers."""


@dataclass(frozen=True)
class LinkRate:
    """Rate of one direction of a node's link."""

    bit_per_s: int

    @property
    def bytes_per_s(self) -> float:
        """Rate in bytes per second, headers of the Ethernet frames included."""
        return bytes_per_s_from_bit_per_s(self.bit_per_s)

    @property
    def burst_bytes(self) -> int:
        """Bytes that may pass at once after a pause."""
        return max(_LEAST_BURST_BYTES, round(self.bytes_per_s * _BURST_S))

    @property
    def text(self) -> str:
        """Rate as tc writes it, in the largest unit that leaves it whole."""
        unit = max((factor, name) for name, factor in {"bit": 1, **UNITS}.items() if not self.bit_per_s % factor)
        return f"{self.bit_per_s // unit[0]}{unit[1]}"

    def token_bucket(self) -> tuple[str, ...]:
        """Return the arguments of `tc qdisc add dev X root` that limit the bytes that leave X."""
        queue_us = round(_QUEUE_S * 1e6)
        return ("tbf", "rate", f"{self.bit_per_s}bit", "burst", f"{self.burst_bytes}b", "latency", f"{queue_us}us")


def rate_from_text(text: str) -> LinkRate:
    """Return the rate of "100mbit", "2.5gbit" or "512kbit".

    Raises:
        ConfigError: the text is anything else.
    """
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([A-Za-z/]+)", text.strip())
    unit = found.group(2).lower() if found else ""
    if not found or unit not in UNITS:
        beware = "; tc's bps are bytes per second, so say bits" if unit.endswith("bps") else ""
        raise ConfigError(
            f"--rate must be a number of {', '.join(UNITS)} (per second), such as 100mbit, got {text!r}{beware}"
        )
    rate = LinkRate(round(float(found.group(1)) * UNITS[unit]))
    if not SLOWEST_BIT_PER_S <= rate.bit_per_s <= FASTEST_BIT_PER_S:
        lowest, highest = LinkRate(SLOWEST_BIT_PER_S).text, LinkRate(FASTEST_BIT_PER_S).text
        raise ConfigError(f"--rate must lie between {lowest} and {highest}, got {text!r}; choose another")
    return rate
