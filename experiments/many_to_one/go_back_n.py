# Pure: no MPI, threads, clock or environment.
"""The machines as the paper has them (LuWu 3.2.3): Ack and Credit from end to end, and go-back-N after a silence.

One thing differs, for as described they add wrongly: a slot is kept until Ack has passed it, see [Note: a slot's life]
in switch.py. The receiving ends are Receivers, whose `heartbeat` the driver sends every quarter of the time in which a
window is sent (appendix B), and of whose heartbeats Ack and Credit alone are read.
"""

from coarse.luwu.many_to_one.packets import (
    NOTHING_CAME,
    Beat,
    Data,
    Free,
    Instruction,
    Take,
    Transmit,
)
from coarse.luwu.many_to_one.switch import PARENT
from coarse.protocol.plan import mask_of, runs_of

SILENCE_S = 2.0
"""How long Ack stands still before packets are sent again: "several seconds"."""
_UNSTAMPED = NOTHING_CAME


class GoBackSender:
    """The TX side of a WorkerNIC or an AggNIC."""

    def __init__(self, link: int, credit: int, *, first: int = 0) -> None:
        """See Sender."""
        self._link = link
        self.ack = self._next = self._end = first
        self.credit = first + credit
        self.num_resent = 0

    @property
    def is_waiting(self) -> bool:
        """Whether Ack standing still would be a silence."""
        return self.ack < self._next

    def offer(self, end: int) -> list[Instruction]:
        """The payloads of all packets below `end` are there."""
        self._end = max(self._end, end)
        return self._send()

    def on_beat(self, beat: Beat) -> list[Instruction]:
        """A heartbeat came, perhaps late or again."""
        freed: list[Instruction] = [Free(beat.ack)] if beat.ack > self.ack else []
        self.ack = max(self.ack, beat.ack)
        self.credit = max(self.credit, beat.credit)
        self._next = max(self._next, self.ack)
        return freed + self._send()

    def on_timer(self) -> list[Instruction]:
        """Ack stood still for SILENCE_S: send all again from there on."""
        if not self.is_waiting:
            return []
        self.num_resent += self._next - self.ack
        return [Transmit(self._link, Data(self.ack, self._next, _UNSTAMPED, asks=False))]

    def _send(self) -> list[Instruction]:
        begin, self._next = self._next, max(self._next, min(self._end, self.credit))
        if begin == self._next:
            return []
        return [Transmit(self._link, Data(begin, self._next, _UNSTAMPED, asks=False))]


class GoBackAddingSwitch:
    """The gradient aggregation unit, and the unit that broadcasts gradients' heartbeats."""

    def __init__(self, num_children: int, window: int, *, first: int = 0) -> None:
        """`window`: slots; the optimizer's receive buffer is not deeper."""
        self._window = window
        self._ack = first
        self._came = [0] * num_children
        """By child, a bit set, of which bit k is packet ack + k: the slots' bitmaps."""

    def on_data(self, child: int, data: Data) -> list[Instruction]:
        """A child's packets came: sums of slots that they fill are sent, and again of full ones."""
        begin, end = max(data.begin, self._ack) - self._ack, min(data.end - self._ack, self._window)
        mask = mask_of(begin, end) if begin < end else 0
        full_before = self._full()
        new = mask & ~self._came[child]
        self._came[child] |= new
        to_send = (self._full() & ~full_before) | (mask & full_before)
        taken = [Take(child, self._ack + first, self._ack + past) for first, past in runs_of(new)]
        return [*taken, *self._sums(to_send)]

    def on_beat(self, beat: Beat) -> list[Instruction]:
        """The optimizer's heartbeat came: slots below Ack are free, and all children hear of it."""
        moved = max(0, beat.ack - self._ack)
        self._ack += moved
        self._came = [came >> moved for came in self._came]
        freed: list[Instruction] = [Free(self._ack)] if moved else []
        return freed + [Transmit(child, beat) for child in range(len(self._came))]

    def _full(self) -> int:
        full = -1
        for came in self._came:
            full &= came
        return full

    def _sums(self, mask: int) -> list[Instruction]:
        return [
            Transmit(PARENT, Data(self._ack + begin, self._ack + end, _UNSTAMPED, asks=False))
            for begin, end in runs_of(mask)
        ]


class GoBackBroadcastingSwitch:
    """The parameter broadcast unit, which keeps nothing, and the unit that takes the least of heartbeats."""

    def __init__(self, num_children: int, credit: int, *, first: int = 0) -> None:
        """`credit`: how many packets each child takes at first."""
        self._beats = [Beat(first, first + credit, 0, _UNSTAMPED)] * num_children

    def on_data(self, data: Data) -> list[Instruction]:
        """The optimizer's packets came; their payloads go on to all children at once."""
        return [Transmit(child, data) for child in range(len(self._beats))]

    def on_beat(self, child: int, beat: Beat) -> list[Instruction]:
        """A child's heartbeat came: the least Ack and Credit of all children go on."""
        known = self._beats[child]
        self._beats[child] = Beat(max(known.ack, beat.ack), max(known.credit, beat.credit), 0, _UNSTAMPED)
        least = Beat(
            min(beat.ack for beat in self._beats), min(beat.credit for beat in self._beats), 0, _UNSTAMPED
        )
        return [Transmit(PARENT, least)]
