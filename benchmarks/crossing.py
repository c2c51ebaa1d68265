"""Bytes that have crossed this node's network interface, read inside the node of a cluster in a box."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coarse.launch.cluster.interfaces import columns_of

INTERFACE = "eth0"
HEADER_BYTES = 66
"""Of a packet over TCP: 14 of Ethernet, 20 of IPv4, 32 of TCP with its time stamps."""
_RECEIVED_BYTES, _RECEIVED_PACKETS = 0, 1
"""Columns of /proc/net/dev (proc(5))."""


@dataclass(frozen=True)
class Received:
    """What came in; a large segment that the kernel passes on whole counts as one packet."""

    num_bytes: int
    num_packets: int

    def since(self, before: Received) -> Received:
        """What came on top of an earlier count."""
        return Received(self.num_bytes - before.num_bytes, self.num_packets - before.num_packets)

    @property
    def payload_bytes(self) -> int:
        """Without the headers of the packets."""
        return self.num_bytes - HEADER_BYTES * self.num_packets


def received(text: str, interface: str = INTERFACE) -> Received:
    """The count of an interface in the text of /proc/net/dev; KeyError where it has none."""
    columns = columns_of(text, interface)
    return Received(columns[_RECEIVED_BYTES], columns[_RECEIVED_PACKETS])


def received_now() -> Received:
    """What this process's node has received so far."""
    try:
        return received(Path("/proc/net/dev").read_text(encoding="utf-8"))
    except KeyError:
        raise OSError(
            f"this network namespace has no {INTERFACE}; start the benchmark by coarse run --cluster 2x2"
        ) from None
