# Pure: no MPI, threads, clock or environment.
"""Receiving end of a hop: the packets that came, those that are lacking, and the room for more.

It has no timer. A sender that does not hear of it asks: see [Note: stamps] in sender.py.
"""

from coarse.luwu.many_to_one.packets import NOTHING_CAME, Beat, Complete, Data, Instruction, Probe, Take, Transmit
from coarse.protocol.plan import mask_of, runs_of

BEATS_PER_WINDOW = 4
"""Number of heartbeats while a window's packets come without a gap (LuWu, appendix B)."""


class Receiver:
    """Receiver that takes each packet once, in any order, with room for `depth` beyond those consumed."""

    def __init__(self, link: int, depth: int, *, first: int = 0) -> None:
        self._link = link
        self._depth = depth
        self.ack = first
        """Packet below which all came."""
        self._beyond = 0
        """Bit k: packet ack + k came; bit 0 is never set."""
        self._consumed = first
        self._echo = NOTHING_CAME
        self._told_ack, self._told_credit = first, first + depth
        """Ack and credit of the last heartbeat."""

    @property
    def credit(self) -> int:
        """Packet from which on there is no room."""
        return self._consumed + self._depth

    @property
    def has_untold(self) -> bool:
        """True if there is more room than the last heartbeat said."""
        return self.credit > self._told_credit

    @property
    def echo(self) -> int:
        """Highest stamp that came."""
        return self._echo

    def came(self, first: int) -> int:
        """Return the packets that came from packet `first` (at most ack) on, as a bit set."""
        return mask_of(0, self.ack - first) | self._beyond << (self.ack - first)

    def on_data(self, data: Data) -> list[Instruction]:
        """Take packets; they may come again, late, or after others that are lacking."""
        self._echo = max(self._echo, data.stamp)
        begin, end = max(data.begin, self.ack), min(data.end, self.credit)
        new = mask_of(begin - self.ack, end - self.ack) & ~self._beyond if begin < end else 0
        done: list[Instruction] = [
            Take(self._link, self.ack + first, self.ack + past) for first, past in runs_of(new)
        ]
        before = self.ack
        self._beyond |= new
        moved = (~self._beyond & (self._beyond + 1)).bit_length() - 1
        self._beyond >>= moved
        self.ack += moved
        if self.ack > before:
            done.append(Complete(self.ack))
        is_all_new = new.bit_count() == data.end - data.begin
        is_due = (self.ack - self._told_ack) * BEATS_PER_WINDOW >= self._depth
        if data.asks or self._beyond or is_due or not is_all_new:
            done.append(self.heartbeat())
        return done

    def on_probe(self, probe: Probe) -> list[Instruction]:
        """Answer a probe."""
        self._echo = max(self._echo, probe.stamp)
        return [self.heartbeat()]

    def consume(self, upto: int) -> list[Instruction]:
        """Free the room of packets below `upto` (at most ack)."""
        self._consumed = max(self._consumed, upto)
        gained = (self.credit - self._told_credit) * BEATS_PER_WINDOW
        return [self.heartbeat()] if gained >= self._depth else []

    def heartbeat(self) -> Transmit:
        """Send a heartbeat with the progress."""
        self._told_ack, self._told_credit = self.ack, self.credit
        return Transmit(self._link, Beat(self.ack, self.credit, self._beyond, self._echo))
