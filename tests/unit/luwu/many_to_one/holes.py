"""Machines with one hole each, of which every one must be found."""

from typing import Any

from coarse.luwu.many_to_one.packets import Beat, Data, Instruction, Take, Transmit
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.switch import PARENT, AddingSwitch
from experiments.many_to_one.go_back_n import GoBackAddingSwitch


class ClearedWhenSent(GoBackAddingSwitch):
    """As the paper has it: a slot is cleared when its sum is sent, and then only. A late copy begins a false sum."""

    clears = True

    def __init__(self, num_children: int, window: int, *, first: int = 0) -> None:
        super().__init__(num_children, window, first=first)
        self._bitmaps = [0] * window

    def on_data(self, child: int, data: Data) -> list[Instruction]:
        """See GoBackAddingSwitch."""
        slot = data.begin % self._window
        if self._bitmaps[slot] >> child & 1:
            return []
        self._bitmaps[slot] |= 1 << child
        done: list[Instruction] = [Take(child, data.begin, data.end)]
        if self._bitmaps[slot] == (1 << len(self._came)) - 1:
            self._bitmaps[slot] = 0
            done.append(Transmit(PARENT, data))
        return done

    def on_beat(self, beat: Beat) -> list[Instruction]:
        """See GoBackAddingSwitch."""
        return [one for one in super().on_beat(beat) if isinstance(one, Transmit)]


class AddedTwice(GoBackAddingSwitch):
    """A packet that comes again is added again."""

    def on_data(self, child: int, data: Data) -> list[Instruction]:
        """See GoBackAddingSwitch."""
        done = super().on_data(child, data)
        is_taken = any(isinstance(one, Take) for one in done)
        return done if is_taken or data.begin < self._ack else [Take(child, data.begin, data.end), *done]


class SumSentOnce(GoBackAddingSwitch):
    """A sum whose copy is lost on its way to the optimizer is not sent again."""

    def on_data(self, child: int, data: Data) -> list[Instruction]:
        """See GoBackAddingSwitch."""
        done = super().on_data(child, data)
        is_taken = any(isinstance(one, Take) for one in done)
        return done if is_taken else [one for one in done if not _is_sum(one)]


class TakesAgain(Receiver):
    """A packet that comes again is taken again."""

    def on_data(self, data: Data) -> list[Instruction]:
        """See Receiver."""
        done = super().on_data(data)
        is_taken = any(isinstance(one, Take) for one in done)
        return done if is_taken else [Take(self._link, data.begin, data.end), *done]


class NeverResends(Sender):
    """What is lost stays lost."""

    def _lost_before(self, echo: int) -> int:
        super()._lost_before(echo)
        return 0


class BelievesEchoes(Sender):
    """Takes what was echoed for what came, though a later one may have overtaken it."""

    def _lost_before(self, echo: int) -> int:
        self._came |= super()._lost_before(echo)
        return 0


class CreditWhenSent(AddingSwitch):
    """Children get credit for slots whose sums were sent, and not only for those that were acknowledged."""

    def on_data(self, child: int, data: Data) -> list[Instruction]:
        """See AddingSwitch."""
        done = super().on_data(child, data)
        upto = min(one.ack for one in self.children)
        for one in self.children:
            done += one.consume(upto)
        return done


def _is_sum(one: Any) -> bool:
    return isinstance(one, Transmit) and one.link == PARENT


def with_parts(switch: AddingSwitch, child: type | None = None, sender: type | None = None) -> AddingSwitch:
    """The switch with other machines for its ends of hops."""
    for one in switch.children if child else ():
        one.__class__ = child
    if sender:
        switch.sender.__class__ = sender
    return switch
