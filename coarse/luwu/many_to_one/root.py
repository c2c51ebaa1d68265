# Pure: no MPI, threads, clock or environment.
"""Root of a tree: the optimizer node's ends of both streams, on the machines of every other hop."""

from collections.abc import Collection, Sequence

from coarse.luwu.many_to_one.packets import NOTHING_CAME, Beat, Complete, Data, Free, Full, Instruction, Probe
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.switch import PARENT, AddingSwitch, BroadcastingSwitch


class Root:
    """Root that adds its children's pushes, and broadcasts its offers to them.

    Links of its instructions are children. Complete(end): all children's packets below `end` are there, to be added in
    order, and `on_added` says when they are. Free(end) of `on_pull_beat`: all children have what was offered below.

    [Note: mapped hops] Where a child's packets lie in memory that both ends have mapped, nothing is copied on the way.
    A pushed packet stays where the child has it until it was added, which the child sees by its credit (the window's
    packets beyond those added). A pulled packet is said to have come when the child has copied it.
    """

    def __init__(
        self,
        num_children: int,
        push_window: int,
        pull_window: int,
        pull_credits: Sequence[int] | None = None,
        lossless: Collection[int] = (),
    ) -> None:
        """Start both streams.

        Args:
            num_children: number of children.
            push_window: packets of each child that may be under way.
            pull_window: packets kept for children.
            pull_credits: packets that each child takes; by default `pull_window` each.
            lossless: children in mapped memory.
        """
        self._adds = AddingSwitch(num_children, push_window, push_window)
        self._sink = Receiver(PARENT, push_window)
        credits = pull_credits or [pull_window] * num_children
        self._copies = BroadcastingSwitch(num_children, pull_window, credits, lossless=lossless)
        self.num_children = num_children

    def pushing(self, child: int) -> Receiver:
        """Return the end of a child's hop that takes its pushes."""
        return self._adds.children[child]

    def pulling(self, child: int) -> Sender:
        """Return the end of a child's hop that sends its pulls."""
        return self._copies.children[child]

    # --- pushes

    def on_push_data(self, child: int, data: Data) -> list[Instruction]:
        """Take a child's packets."""
        done: list[Instruction] = [
            one for one in self._adds.on_data(child, data) if not isinstance(one, Complete | Full)
        ]
        for sent in self._adds.send():
            assert isinstance(sent.message, Data)
            done += [one for one in self._sink.on_data(sent.message) if isinstance(one, Complete)]
        return done

    def on_push_probe(self, child: int, probe: Probe) -> list[Instruction]:
        """Answer a child's probe."""
        return self._adds.on_probe(child, probe)

    def on_added(self, end: int) -> list[Instruction]:
        """Free packets below `end`, which were added; each child is told at once that their payloads are free."""
        self._sink.consume(end)
        beat = Beat(end, self._sink.credit, 0, NOTHING_CAME)
        done: list[Instruction] = [one for one in self._adds.on_beat(beat) if isinstance(one, Free)]
        return [*done, *(child.heartbeat() for child in self._adds.children)]

    # --- pulls

    def offer(self, begin: int, end: int) -> list[Instruction]:
        """Offer packets to the children."""
        self._copies.on_data(Data(begin, end, NOTHING_CAME, asks=False))
        return self._send_on(range(self.num_children))

    def on_pull_beat(self, child: int, beat: Beat) -> list[Instruction]:
        """Take a child's heartbeat about its progress."""
        done: list[Instruction] = [one for one in self._copies.on_beat(child, beat) if isinstance(one, Free)]
        return [*done, *self._send_on([child])]

    def on_pull_timer(self, child: int) -> list[Instruction]:
        """Handle a silence of a child that is longer than a round trip takes."""
        return self._copies.on_timer(child)

    def _send_on(self, children: "range | list[int]") -> list[Instruction]:
        return [sent for child in children for sent in self._copies.send(child)]
