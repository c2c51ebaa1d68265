"""The models of gradients that go up, and of parameters that go down."""

from collections.abc import Iterator
from typing import Any

from coarse.luwu.many_to_one.packets import Data, Free, Instruction, Take, Transmit, unwrapped
from coarse.luwu.many_to_one.switch import PARENT
from tests.support.model_check import PERHAPS, Violation
from tests.unit.luwu.many_to_one.model import Hop, Model, State, Unwrap


class GradientsGoUp(Model):
    """Workers' gradients, added by a switch, to an optimizer that takes them at once."""

    def __init__(
        self,
        senders: list[Any],
        switch: Any,
        receiver: Any,
        *,
        first: int,
        num_packets: int,
        window: int,
        faults: int | None,
        has_stamps: bool,
        unwrap: Unwrap = unwrapped,
    ) -> None:
        self._num, self._begin, self._end = len(senders), first, first + num_packets
        super().__init__([*senders, switch, receiver], 2 * self._num + 2, window, faults, unwrap)
        self._switch, self._optimizer = self._num, self._num + 1
        self._up, self._down = 2 * self._num, 2 * self._num + 1
        if has_stamps:
            self.hops = (
                *(
                    Hop((w, lambda m: m), (self._switch, lambda m, w=w: m.children[w]), 2 * w, 2 * w + 1)
                    for w in range(self._num)
                ),
                Hop((self._switch, lambda m: m.sender), (self._optimizer, lambda m: m), self._up, self._down),
            )
        self._has_stamps = has_stamps
        for worker in range(self._num):
            given = (first, self._end) if has_stamps else (self._end,)
            state, wanted = self.call_and_send(self.first, worker, "offer", *given)
            self.first = self._worker_sends(state, worker, wanted)
        self.first = self._settled(self.first)

    def arrive(self, state: State, link: int, message: Any) -> State:
        """See Model."""
        _, packet, contents = message
        if link == self._up:
            optimizer = self.machine(state, self._optimizer)
            state, wanted = self.told(state, self._optimizer, packet, optimizer.ack)
            return self._optimizer_does(state, wanted, contents)
        if link == self._down:
            switch = self.machine(state, self._switch)
            return self._switch_told(state, packet, switch.sender.ack if self._has_stamps else switch._ack)
        worker = link // 2
        if link % 2:
            state, wanted = self.told(state, worker, packet, self.machine(state, worker).ack)
            return self._worker_sends(state, worker, wanted)
        switch = self.machine(state, self._switch)
        near = switch.children[worker].ack if self._has_stamps else switch._ack
        return self._switch_told(state, packet, near, worker)

    def timers(self, state: State) -> Iterator[tuple[str, State]]:
        """See Model."""
        for worker in range(self._num):
            if self.machine(state, worker).is_waiting:
                after, wanted = self.call(state, worker, "on_timer")
                yield f"worker {worker}'s timer", self._worker_sends(after, worker, wanted)
        if self._has_stamps and self.machine(state, self._switch).sender.is_waiting:
            after, wanted = self.call(state, self._switch, "on_timer")
            yield "the switch's timer", self._switch_does(after, wanted, self._begin)
        if self._has_stamps and self._is_unreliable:
            for worker in range(self._num):
                beat = self.beat_of(state, self._switch, lambda switch, worker=worker: switch.children[worker])
                yield f"{PERHAPS}worker {worker} hears again", self._switch_does(state, [beat], self._begin)
        if not self._has_stamps or self._is_unreliable:
            beat = self.beat_of(state, self._optimizer, lambda optimizer: optimizer)
            name = f"{PERHAPS}the switch hears again" if self._has_stamps else "the optimizer's heartbeat"
            yield name, self._optimizer_does(state, [beat], ())

    def is_end(self, state: State) -> bool:
        """See Model."""
        workers = [self.machine(state, worker) for worker in range(self._num)]
        return all(machine.ack == self._end for machine in [*workers, self.machine(state, self._optimizer)])

    def is_useless(self, state: State, link: int, message: Any) -> bool:
        """See Model."""
        switch, optimizer = self.machine(state, self._switch), self.machine(state, self._optimizer)
        workers = [self.machine(state, worker) for worker in range(self._num)]
        if link == self._up:
            return self.received(message, optimizer.ack).begin < optimizer.ack
        if link == self._down:
            return all(_says_nothing(self.received(message, switch._ack), worker) for worker in workers)
        if link % 2:
            return _says_nothing(self.received(message, workers[link // 2].ack), workers[link // 2])
        return self.received(message, switch._ack).begin < switch._ack

    def _worker_sends(self, state: State, worker: int, wanted: list[Instruction]) -> State:
        for one in wanted:
            if isinstance(one, Transmit):
                state = self.send(state, 2 * worker, one.message)
        return state

    def _switch_told(self, state: State, packet: Any, near: int, *child: int) -> State:
        switch = self.machine(state, self._switch)
        base = switch.sender.ack if self._has_stamps else switch._ack
        state, wanted = self.told(state, self._switch, packet, near, *child)
        return self._switch_does(state, wanted, base)

    def _switch_does(self, state: State, wanted: list[Instruction], base: int) -> State:
        slots = self.slots(state)
        for one in wanted:
            if isinstance(one, Take):
                for packet in range(one.begin, one.end):
                    slot = packet % len(slots)
                    slots[slot] = tuple(sorted((*slots[slot], (one.link, packet))))
            elif isinstance(one, Free):
                for packet in range(base, one.end):
                    slots[packet % len(slots)] = ()
            elif isinstance(one, Transmit) and one.link == PARENT:
                data = one.message
                packets = range(data.begin, data.end) if isinstance(data, Data) else ()
                sums = tuple(slots[packet % len(slots)] for packet in packets)
                state = self.send(state, self._up, data, sums)
                if getattr(self.machine(state, self._switch), "clears", False):
                    for packet in packets:
                        slots[packet % len(slots)] = ()
            elif isinstance(one, Transmit):
                state = self.send(state, 2 * one.link + 1, one.message)
        return self.with_slots(state, slots)

    def _optimizer_does(self, state: State, wanted: list[Instruction], contents: Any) -> State:
        for one in wanted:
            if isinstance(one, Take):
                right = tuple((worker, one.begin) for worker in range(self._num))
                if contents != right:
                    raise Violation(f"packet {one.begin} is taken as {contents}, and {right} was pushed")
            elif isinstance(one, Transmit):
                state = self.send(state, self._down, one.message)
            else:
                state, more = self.call(state, self._optimizer, "consume", one.end)
                state = self._optimizer_does(state, more, ())
        return state


class ParametersGoDown(Model):
    """An optimizer's parameters, broadcast by a switch, to workers that take them at once."""

    def __init__(
        self,
        sender: Any,
        switch: Any,
        receivers: list[Any],
        *,
        first: int,
        num_packets: int,
        window: int,
        faults: int | None,
        has_stamps: bool,
        unwrap: Unwrap = unwrapped,
    ) -> None:
        self._num, self._begin, self._end = len(receivers), first, first + num_packets
        super().__init__([*receivers, switch, sender], 2 * self._num + 2, window, faults, unwrap)
        self._switch, self._optimizer = self._num, self._num + 1
        self._down, self._up = 2 * self._num, 2 * self._num + 1
        self._has_stamps = has_stamps
        if has_stamps:
            self.hops = (
                *(
                    Hop((self._switch, lambda m, w=w: m.children[w]), (w, lambda m: m), 2 * w, 2 * w + 1)
                    for w in range(self._num)
                ),
                Hop((self._optimizer, lambda m: m), (self._switch, lambda m: m.receiver), self._down, self._up),
            )
        given = (first, self._end) if has_stamps else (self._end,)
        state, wanted = self.call_and_send(self.first, self._optimizer, "offer", *given)
        self.first = self._settled(self._optimizer_sends(state, wanted))

    def arrive(self, state: State, link: int, message: Any) -> State:
        """See Model."""
        _, packet, contents = message
        if link == self._up:
            state, wanted = self.told(state, self._optimizer, packet, self.machine(state, self._optimizer).ack)
            return self._optimizer_sends(state, wanted)
        switch = self.machine(state, self._switch)
        if link == self._down:
            near = switch.receiver.ack if self._has_stamps else switch._beats[0].ack
            state, wanted = self.told(state, self._switch, packet, near)
            return self._switch_does(state, wanted, contents)
        worker = link // 2
        if link % 2:
            near = switch.children[worker].ack if self._has_stamps else switch._beats[worker].ack
            state, wanted = self.told(state, self._switch, packet, near, worker)
            return self._switch_does(state, wanted, ())
        state, wanted = self.told(state, worker, packet, self.machine(state, worker).ack)
        return self._worker_does(state, worker, wanted, contents)

    def timers(self, state: State) -> Iterator[tuple[str, State]]:
        """See Model."""
        if self.machine(state, self._optimizer).is_waiting:
            after, wanted = self.call(state, self._optimizer, "on_timer")
            yield "the optimizer's timer", self._optimizer_sends(after, wanted)
        for worker in range(self._num):
            if not self._has_stamps or self._is_unreliable:
                beat = self.beat_of(state, worker, lambda receiver: receiver)
                name = f"{PERHAPS}the switch hears of {worker} again" if self._has_stamps else f"{worker}'s heartbeat"
                yield name, self._worker_does(state, worker, [beat], ())
            if self._has_stamps and self.machine(state, self._switch).children[worker].is_waiting:
                after, wanted = self.call(state, self._switch, "on_timer", worker)
                yield f"the switch's timer of worker {worker}", self._switch_does(after, wanted, ())

        if self._has_stamps and self._is_unreliable:
            beat = self.beat_of(state, self._switch, lambda switch: switch.receiver)
            yield f"{PERHAPS}the optimizer hears again", self._switch_does(state, [beat], ())

    def is_end(self, state: State) -> bool:
        """See Model."""
        numbers = [*range(self._num), self._optimizer]
        return all(self.machine(state, number).ack == self._end for number in numbers)

    def is_useless(self, state: State, link: int, message: Any) -> bool:
        """See Model."""
        switch, optimizer = self.machine(state, self._switch), self.machine(state, self._optimizer)
        workers = [self.machine(state, worker) for worker in range(self._num)]
        if link == self._up:
            return _says_nothing(self.received(message, optimizer.ack), optimizer)
        if link == self._down:
            return all(self.received(message, worker.ack).begin < worker.ack for worker in workers)
        worker = workers[link // 2]
        if link % 2:
            known = switch._beats[link // 2]
            return _says_nothing(self.received(message, known.ack), known)
        return self.received(message, worker.ack).begin < worker.ack

    def _optimizer_sends(self, state: State, wanted: list[Instruction]) -> State:
        for one in wanted:
            if isinstance(one, Transmit):
                data = one.message
                packets = tuple(range(data.begin, data.end)) if isinstance(data, Data) else ()
                state = self.send(state, self._down, data, packets)
        return state

    def _switch_does(self, state: State, wanted: list[Instruction], contents: Any) -> State:
        slots = self.slots(state)
        for one in wanted:
            if isinstance(one, Take):
                slots[one.begin % len(slots)] = contents
            elif isinstance(one, Transmit) and one.link == PARENT:
                state = self.send(state, self._up, one.message)
            elif isinstance(one, Transmit):
                data = one.message
                if not isinstance(data, Data):
                    kept: tuple[Any, ...] = ()
                elif self._has_stamps:
                    kept = tuple(slots[packet % len(slots)] for packet in range(data.begin, data.end))
                else:
                    kept = (contents,)
                state = self.send(state, 2 * one.link, data, kept)
        return self.with_slots(state, slots)

    def _worker_does(self, state: State, worker: int, wanted: list[Instruction], contents: Any) -> State:
        for one in wanted:
            if isinstance(one, Take):
                if contents != one.begin:
                    raise Violation(f"worker {worker} takes packet {contents} as {one.begin}")
            elif isinstance(one, Transmit):
                state = self.send(state, 2 * worker + 1, one.message)
            else:
                state, more = self.call(state, worker, "consume", one.end)
                state = self._worker_does(state, worker, more, ())
        return state


def _says_nothing(beat: Any, known: Any) -> bool:
    return beat.ack <= known.ack and beat.credit <= known.credit
