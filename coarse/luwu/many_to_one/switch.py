# Pure: no MPI, threads, clock or environment.
"""Switch that adds its children's pushes and broadcasts its parent's packets (LuWu 3.2.3, appendix A).

Each link is a hop of its own, so a packet lost on one is sent again on that one alone. A parent may be a switch, too: a
rack's, or that of a node whose workers come first together.
"""

from collections.abc import Collection, Iterable

from coarse.luwu.many_to_one.packets import Beat, Data, Free, Full, Instruction, Probe, Take, Transmit
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import LOSSLESS, Sender
from coarse.protocol.plan import runs_of

PARENT = -1
"""Link towards the optimizer; children's are numbered from 0 on."""


class AddingSwitch:
    """Switch that adds packets of one number from all children in a slot, and sends the sum to the parent.

    Take(child, ...) adds that child's payloads to the slots of these packets. [Note: a slot's life] A slot is that of
    packet s from its first contribution on until the parent has acknowledged s, not only until the sum was sent: before
    that the sum may have to be sent again, and a late copy of a contribution would begin a false one. Each child's
    packet counts once: its bit is set. Free(end) says that slots below may be used anew, `window` packets later.
    """

    def __init__(
        self, num_children: int, window: int, credit: int, *, first: int = 0, reorder: int = 3
    ) -> None:
        """Start at the stream's first number.

        Args:
            num_children: number of children.
            window: number of slots.
            credit: number of packets that the parent takes at first.
            first: the stream's first number.
            reorder: see Sender.
        """
        self.children = [Receiver(child, window, first=first) for child in range(num_children)]
        self.sender = Sender(PARENT, credit, first=first, reorder=reorder)
        self._full = 0
        """Bit k: the slot of packet sender.ack + k is full."""

    def on_data(self, child: int, data: Data) -> list[Instruction]:
        """Take a child's packets."""
        done = self.children[child].on_data(data)
        return done + self._offer_full()

    def on_probe(self, child: int, probe: Probe) -> list[Instruction]:
        """Answer a child's probe."""
        return self.children[child].on_probe(probe)

    def on_beat(self, beat: Beat) -> list[Instruction]:
        """Take the parent's heartbeat."""
        before = self.sender.ack
        done = self.sender.on_beat(beat)
        self._full >>= self.sender.ack - before
        if self.sender.ack > before:
            for child in self.children:
                done += child.consume(self.sender.ack)
        return done

    def send(self, most: int | None = None) -> list[Transmit]:
        """Send sums to the parent; see Sender."""
        return self.sender.send(most)

    def on_timer(self) -> list[Instruction]:
        """Handle a silence of the parent that is longer than a round trip takes."""
        return self.sender.on_timer()

    def _offer_full(self) -> list[Instruction]:
        first = self.sender.ack
        full = -1
        for child in self.children:
            full &= child.came(first)
        new, self._full = full & ~self._full, full
        runs = [Full(first + begin, first + end) for begin, end in runs_of(new)]
        for run in runs:
            self.sender.offer(run.begin, run.end)
        return list(runs)


class BroadcastingSwitch:
    """Switch that keeps each packet of the parent's until all children have it.

    Take(PARENT, ...) keeps payloads in a buffer of `window` packets; Free(end) frees those below.
    """

    def __init__(
        self,
        num_children: int,
        window: int,
        credits: Iterable[int],
        *,
        first: int = 0,
        reorder: int = 3,
        lossless: Collection[int] = (),
    ) -> None:
        """Start at the stream's first number.

        `credits` has the number of packets that each child takes at first. `lossless` has the children in mapped
        memory.
        """
        self.receiver = Receiver(PARENT, window, first=first)
        self.children = [
            Sender(child, credit, first=first, reorder=LOSSLESS if child in lossless else reorder)
            for child, credit in zip(range(num_children), credits, strict=True)
        ]

    def on_data(self, data: Data) -> list[Instruction]:
        """Take the parent's packets; they may go on at once, also before others that are lacking."""
        done = self.receiver.on_data(data)
        for one in done:
            if isinstance(one, Take):
                for child in self.children:
                    child.offer(one.begin, one.end)
        return done

    def on_probe(self, probe: Probe) -> list[Instruction]:
        """Answer the parent's probe."""
        return self.receiver.on_probe(probe)

    def on_beat(self, child: int, beat: Beat) -> list[Instruction]:
        """Take a child's heartbeat; the parent gets credit for the least of all children's Acks."""
        before = self._least_ack()
        self.children[child].on_beat(beat)
        if (least := self._least_ack()) > before:
            return [Free(least), *self.receiver.consume(least)]
        return []

    def send(self, child: int, most: int | None = None) -> list[Transmit]:
        """Send packets to a child; see Sender."""
        return self.children[child].send(most)

    def on_timer(self, child: int) -> list[Instruction]:
        """Handle a silence of a child that is longer than a round trip takes."""
        return self.children[child].on_timer()

    def _least_ack(self) -> int:
        return min(child.ack for child in self.children)
