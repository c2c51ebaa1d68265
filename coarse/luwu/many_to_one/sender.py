# Pure: no MPI, threads, clock or environment.
"""Sending end of a hop: selective repeat within the receiver's credit.

[Note: stamps] Every transmission has a number of its own, also where it carries a packet again, and a heartbeat echoes
the highest one that came. So an answer to one transmission is never taken for another of the same packet. A packet
whose latest transmission has an echoed one behind it, and which did not come, is lost, and is sent again before
anything new. `reorder` transmissions may overtake another before that. Where nothing follows that could be echoed, a
timer asks (`on_timer`), and the answer's echo tells which packets were lost; the timer itself sends no payload.
"""

from coarse.luwu.many_to_one.packets import Beat, Data, Free, Instruction, Probe, Transmit
from coarse.protocol.plan import mask_of, runs_of

LOSSLESS = 2**62


class Sender:
    """Sender of packets that are offered, in any order, until each has come."""

    def __init__(self, link: int, credit: int, *, first: int = 0, reorder: int = 3) -> None:
        """Start at the stream's first number.

        Args:
            link: link of its instructions.
            credit: number of packets that the receiver takes before its first heartbeat.
            first: the stream's first number.
            reorder: number of later transmissions that come before one is held for lost; LOSSLESS for a hop that loses
                nothing, whose receiver may take packets as late as it likes.
        """
        self._link = link
        self._reorder = reorder
        self.ack = first
        """Packet below which all have come."""
        self.credit = first + credit
        """Packet from which on none is to be sent yet."""
        self._offered_end = first
        """Packet below which all were offered."""
        self._offered = self._sent = self._came = self._again = 0
        """Bit sets, of which bit k is packet ack + k; `_offered` has those beyond others that were not offered."""
        self._flights: list[tuple[int, int, int]] = []
        """(stamp of the first, begin, end), in order, of packets' latest transmissions that no echo has passed."""
        self.next_stamp = 0
        self.num_resent = 0
        """Number of packets that were sent again."""

    @property
    def is_waiting(self) -> bool:
        """True if a timer is to run, as packets are under way or wait for credit. Any event may make it so."""
        return self._offered_end > self.ack or bool(self._offered & ~self._came)

    @property
    def has_more(self) -> bool:
        """True if `send` would send something."""
        return bool(self._again or self._may_be_sent())

    def offer(self, begin: int, end: int) -> None:
        """Offer the payloads of packets [begin, end); they may lie beyond others that are not there."""
        if begin > self._offered_end:
            self._offered |= mask_of(begin - self.ack, end - self.ack)
            return
        self._offered_end = max(self._offered_end, end)
        if self._offered:
            behind = self._offered >> (self._offered_end - self.ack)
            self._offered_end += (~behind & (behind + 1)).bit_length() - 1
            self._offered &= ~mask_of(0, self._offered_end - self.ack)

    def send(self, most: int | None = None) -> list[Transmit]:
        """Return at most `most` packets, to leave now.

        Lost packets, which keep the window shut, come before new ones. The driver asks when the link has room, for
        stamps are in the order in which packets leave.
        """
        runs = _first_of(runs_of(self._again), most)
        for begin, end in runs:
            self._again &= ~mask_of(begin, end)
            self.num_resent += end - begin
        if not self._again:
            left = None if most is None else most - sum(end - begin for begin, end in runs)
            new = _first_of(runs_of(self._may_be_sent()), left)
            for begin, end in new:
                self._sent |= mask_of(begin, end)
            runs += new
        sent = []
        for number, (begin, end) in enumerate(runs, 1):
            first, past = self.ack + begin, self.ack + end
            self._note_flight(first, past)
            asks = number == len(runs) and not self.has_more
            sent.append(Transmit(self._link, Data(first, past, self._stamped(end - begin), asks)))
        return sent

    def on_beat(self, beat: Beat) -> list[Instruction]:
        """Take a heartbeat, perhaps late or again; Free tells what it has freed, and `send` may have more."""
        freed = self._note_ack(beat.ack)
        self._came |= beat.beyond >> (self.ack - beat.ack)
        self.credit = max(self.credit, beat.credit)
        self._again = (self._again | self._lost_before(beat.echo)) & ~self._came
        return freed

    def on_timer(self) -> list[Instruction]:
        """Ask the receiver, which was not heard of for longer than a round trip takes."""
        if not self.is_waiting:
            return []
        self.next_stamp += self._reorder  # so that its echo tells of all before it
        return [Transmit(self._link, Probe(self._stamped(1)))]

    def _note_ack(self, ack: int) -> list[Instruction]:
        moved = ack - self.ack
        if moved <= 0:
            return []
        self.ack = ack
        self._offered >>= moved
        self._sent >>= moved
        self._came >>= moved
        self._again >>= moved
        return [Free(ack)]

    def _lost_before(self, echo: int) -> int:
        """Return and forget the packets whose latest transmission an echo shows to be lost."""
        lost = num_past = 0
        last = echo - self._reorder
        for stamp, begin, end in self._flights:
            if stamp > last:
                break
            past = min(end, begin + last - stamp + 1)
            lost |= mask_of(max(0, begin - self.ack), max(0, past - self.ack))
            if past < end:
                self._flights[num_past] = stamp + past - begin, past, end
                break
            num_past += 1
        del self._flights[:num_past]
        return lost

    def _note_flight(self, begin: int, end: int) -> None:
        """Note packets that leave now, as one flight with those before them where they follow."""
        if self._flights:
            stamp, first, past = self._flights[-1]
            if past == begin and stamp + past - first == self.next_stamp:
                self._flights[-1] = stamp, first, end
                return
        self._flights.append((self.next_stamp, begin, end))

    def _may_be_sent(self) -> int:
        """Return the packets that were offered, never sent, and have credit."""
        below = mask_of(0, max(0, min(self._offered_end, self.credit) - self.ack))
        beyond = self._offered & mask_of(0, max(0, self.credit - self.ack))
        return (below | beyond) & ~self._sent

    def _stamped(self, num_packets: int) -> int:
        """Return the stamp of the last of `num_packets` transmissions."""
        self.next_stamp += num_packets
        return self.next_stamp - 1


def _first_of(runs: list[tuple[int, int]], most: int | None) -> list[tuple[int, int]]:
    """Return the first runs, of at most `most` packets in all."""
    if most is None:
        return runs
    taken = []
    for begin, end in runs:
        if most <= 0:
            break
        taken.append((begin, min(end, begin + most)))
        most -= end - begin
    return taken
