# Pure: no MPI, threads, clock or environment.
"""What travels on a hop, and what the machines have their driver do.

Packets of a stream are numbered from 0 on, without end; on the wire a number is its lowest bits (`unwrapped`).
"""

from typing import NamedTuple

WIRE_MODULUS = 2**32
"""Numbers on the wire are below this. A message that is older than half of it must not arrive any more."""
NOTHING_CAME = -1
"""The echo of a receiver to which nothing came."""


class Data(NamedTuple):
    """Packets [begin, end), with their payloads."""

    begin: int
    end: int
    stamp: int
    """Number of the last one's transmission; those before it have the numbers before. A resend has new numbers."""
    asks: bool
    """Whether it wants a heartbeat at once."""

    def part(self, begin: int, end: int) -> "Data":
        """Packets [begin, end) of these alone, which left when they did."""
        return Data(begin, end, self.stamp - (self.end - end), self.asks and end == self.end)


class Probe(NamedTuple):
    """A question how far the receiver is."""

    stamp: int


class Beat(NamedTuple):
    """A heartbeat: how far a receiver is (LuWu 3.2.3, with what came beyond Ack)."""

    ack: int
    """All packets below it came."""
    credit: int
    """Packets from here on are not to be sent."""
    beyond: int
    """Bit k: packet ack + k came."""
    echo: int
    """The highest stamp that came; NOTHING_CAME at first."""


Message = Data | Probe | Beat


class Transmit(NamedTuple):
    """Send a message on a link. The payload of packets is what was taken, or the sum of what was."""

    link: int
    message: Message


class Take(NamedTuple):
    """Of the data that just came on a link, the payloads of packets [begin, end) are new; drop all others."""

    link: int
    begin: int
    end: int


class Complete(NamedTuple):
    """All packets of the stream below `end` are here."""

    end: int


class Full(NamedTuple):
    """All children's payloads of packets [begin, end) are here: their sums may be made, each once."""

    begin: int
    end: int


class Free(NamedTuple):
    """The payloads of packets below `end` will not be sent again."""

    end: int


Instruction = Transmit | Take | Complete | Full | Free


def unwrapped(number: int, near: int, modulus: int = WIRE_MODULUS) -> int:
    """The number nearest to `near` of all that are `number` on the wire."""
    ahead = (number - near) % modulus
    return near + (ahead if ahead < modulus // 2 else ahead - modulus)
