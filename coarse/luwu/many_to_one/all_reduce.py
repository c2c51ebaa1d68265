# Pure: no MPI, threads, clock or environment.
"""All-reduce through a switch: the sum goes back to those who pushed its parts.

It is SwitchML's all-reduce (NSDI 2021), and a way to agree on blocks' exponents, whose "sum" is their maximum, before
the blocks are pushed as integers (LuWu 3.2.2).
"""

from coarse.luwu.many_to_one.packets import Beat, Data, Free, Instruction, Probe, Transmit
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import Sender
from coarse.protocol.plan import runs_of


class AllReducingSwitch:
    """Root of a tree that adds packets of one number from all children, and sends the sum to each of them.

    Take(child, ...) adds that child's payloads to slots. A slot is that of packet s until all children have
    acknowledged the sum of s; see [Note: a slot's life]. Below it are AddingSwitches and BroadcastingSwitches.
    """

    def __init__(self, num_children: int, window: int, credit: int, *, first: int = 0, reorder: int = 3) -> None:
        """Start at the stream's first number.

        Args:
            num_children: number of children.
            window: number of slots.
            credit: number of packets that each child takes at first.
            first: the stream's first number.
            reorder: see Sender.
        """
        self.receivers = [Receiver(child, window, first=first) for child in range(num_children)]
        self.senders = [Sender(child, credit, first=first, reorder=reorder) for child in range(num_children)]
        self._first = first
        self._full = 0
        """Bit k: the slot of packet first + k is full."""

    def on_data(self, child: int, data: Data) -> list[Instruction]:
        """Take a child's packets."""
        done = self.receivers[child].on_data(data)
        full = -1
        for receiver in self.receivers:
            full &= receiver.came(self._first)
        for begin, end in runs_of(full & ~self._full):
            for sender in self.senders:
                sender.offer(self._first + begin, self._first + end)
        self._full = full
        return done

    def on_probe(self, child: int, probe: Probe) -> list[Instruction]:
        """Answer a child's probe."""
        return self.receivers[child].on_probe(probe)

    def on_beat(self, child: int, beat: Beat) -> list[Instruction]:
        """Take a child's heartbeat; slots whose sums all children have are free, and may be pushed to again."""
        self.senders[child].on_beat(beat)
        least = min(sender.ack for sender in self.senders)
        if least == self._first:
            return []
        self._full >>= least - self._first
        self._first = least
        return [Free(least), *(beat for one in self.receivers for beat in one.consume(least))]

    def send(self, child: int, most: int | None = None) -> list[Transmit]:
        """Send sums to a child; see Sender."""
        return self.senders[child].send(most)

    def on_timer(self, child: int) -> list[Instruction]:
        """Handle a silence of a child that is longer than a round trip takes."""
        return self.senders[child].on_timer()
