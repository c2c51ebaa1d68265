# Pure: no MPI, threads, clock or environment.
"""Messages that travel on a hop, and instructions of the machines to their driver.

Packets of a stream are numbered from 0 on, without end; on the wire a number is its lowest bits (`unwrapped`).
"""

from typing import NamedTuple

WIRE_MODULUS = 2**32
"""Modulus of numbers on the wire. A message that is older than half of it must not arrive any more."""
NOTHING_CAME = -1
"""Echo of a receiver to which nothing came."""


class Data(NamedTuple):
    """Packets [begin, end), with their payloads."""

    begin: int
    end: int
    stamp: int
    """Number of the last packet's transmission; those before it have the numbers before. A resend has new numbers."""
    asks: bool
    """True if it asks for a heartbeat at once."""

    def part(self, begin: int, end: int) -> "Data":
        """Return packets [begin, end) of these alone, with their own stamps."""
        return Data(begin, end, self.stamp - (self.end - end), self.asks and end == self.end)


class Probe(NamedTuple):
    """Question about the receiver's progress."""

    stamp: int


class Beat(NamedTuple):
    """Heartbeat: a receiver's progress (LuWu 3.2.3, with the packets that came beyond Ack)."""

    ack: int
    """Packet below which all came."""
    credit: int
    """Packet from which on none is to be sent."""
    beyond: int
    """Bit k: packet ack + k came."""
    echo: int
    """Highest stamp that came; NOTHING_CAME at first."""


Message = Data | Probe | Beat


class Transmit(NamedTuple):
    """Instruction to send a message on a link; packets carry the payload taken, or the sum of those taken."""

    link: int
    message: Message


class Take(NamedTuple):
    """Instruction to keep the new payloads, packets [begin, end), of a link's last data; drop all others."""

    link: int
    begin: int
    end: int


class Complete(NamedTuple):
    """Notice that all packets of the stream below `end` are here."""

    end: int


class Full(NamedTuple):
    """Notice that all children's payloads of packets [begin, end) are here, and may be summed, each once."""

    begin: int
    end: int


class Free(NamedTuple):
    """Notice that the payloads of packets below `end` will not be sent again."""

    end: int


Instruction = Transmit | Take | Complete | Full | Free


def unwrapped(number: int, near: int, modulus: int = WIRE_MODULUS) -> int:
    """Return the number nearest to `near` of all that are `number` on the wire."""
    ahead = (number - near) % modulus
    return near + (ahead if ahead < modulus // 2 else ahead - modulus)
