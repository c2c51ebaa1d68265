"""Models of gradients that go up and of parameters that go down by a switch, over links that lose, repeat and reorder.

There are two networks. On an unreliable one, what was sent may arrive at any time, again and again, or never: messages
are lost, repeated and reordered in every way. On one with so many faults, messages arrive once and in order, but for
that many losses, repetitions, overtakings and timers that run out too early.

Numbers of transmissions are kept by their order alone, on which alone the machines depend where `reorder` is 0: so
there are finitely many states.
"""

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from coarse.luwu.many_to_one.packets import Beat, Data, Instruction, Probe, Transmit
from coarse.luwu.many_to_one.switch import BroadcastingSwitch
from tests.support.model_check import PERHAPS

MODULUS = 16
"""Of packets' numbers on the wire."""
State = tuple[int, ...]
"""Numbers of what is kept: of each machine's state, of what is on each link, and of what is in the switch's slots."""
Unwrap = Callable[[int, int, int], int]


class Anyone:
    """In place of a worker's sender: whatever it has credit for may come at any time, again and again."""

    def __init__(self, end: int, credit: int, *, first: int = 0) -> None:
        self.ack, self._next, self._end = first, first, end
        self.credit = first + credit
        self.next_stamp = 0
        self._came, self._flights, self.is_waiting = -1, [], False

    def offer(self, *given: int) -> list[Instruction]:
        """Send all that there is credit for."""
        begin, self._next = self._next, max(self._next, min(self._end, self.credit))
        return [Transmit(0, Data(begin, self._next, 0, asks=False))]

    def on_beat(self, beat: Beat) -> list[Instruction]:
        """See Sender."""
        self.ack, self.credit = max(self.ack, beat.ack), max(self.credit, beat.credit)
        return self.offer()


@dataclass(frozen=True)
class Hop:
    """The two ends of a hop, each a machine's place and the way to the end in it, and its two links."""

    sender: tuple[int, Callable[[Any], Any]]
    receiver: tuple[int, Callable[[Any], Any]]
    forth: int
    back: int


class Model:
    """What up and down have in common: machines, hops between them, and the network."""

    hops: tuple[Hop, ...] = ()

    def __init__(
        self, machines: list[Any], num_links: int, slots: int, faults: int | None, unwrap: Unwrap
    ) -> None:
        """`faults` of the network; without a number, it is an unreliable one."""
        self._is_unreliable = faults is None
        self._empty: Any = frozenset() if self._is_unreliable else ()
        self._unwrap = unwrap
        self._numbers: dict[Any, int] = {}
        self._kept: list[Any] = []
        self._done: dict[Any, Any] = {}
        self._links, self._slots = len(machines), len(machines) + num_links
        self.first: State = (
            *(self._number(_frozen(machine), machine) for machine in machines),
            *(self._number(self._empty, self._empty) for _ in range(num_links)),
            self._number(((),) * slots, ((),) * slots),
            faults or 0,
        )

    # --- what a model says

    def arrive(self, state: State, link: int, message: Any) -> State:
        """The state after a message has arrived."""
        raise NotImplementedError

    def timers(self, state: State) -> Iterator[tuple[str, State]]:
        """What time may bring."""
        raise NotImplementedError

    def is_end(self, state: State) -> bool:
        """Whether everything has come and everybody knows."""
        raise NotImplementedError

    # --- steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """What may happen next."""
        for name, after in self._arrivals(state):
            yield name, self._settled(after)
        is_silent = self._is_unreliable or not any(self.on_link(state, link) for link in self._all_links)
        if is_silent or state[-1]:
            for name, after in self.timers(state if is_silent else self._at_fault(state)):
                yield name if is_silent else f"{PERHAPS}too early: {name}", self._settled(after)

    @property
    def _all_links(self) -> range:
        return range(self._slots - self._links)

    def _arrivals(self, state: State) -> Iterator[tuple[str, State]]:
        for link in self._all_links:
            messages = self.on_link(state, link)
            if self._is_unreliable:
                for message in messages:
                    yield f"link {link}: {message}", self.arrive(state, link, message)
                continue
            for place, message in enumerate(messages):
                rest = messages[:place] + messages[place + 1 :]
                if not place:
                    yield f"link {link}: {message}", self.arrive(self._on(state, link, rest), link, message)
                if not state[-1]:
                    break
                fault = self._at_fault(state)
                lost = self._on(fault, link, rest)
                yield f"{PERHAPS}lost on link {link}: {message}", lost
                yield f"{PERHAPS}repeated on link {link}: {message}", self._on(fault, link, (*messages, message))
                if place:
                    yield f"{PERHAPS}overtakes on link {link}: {message}", self.arrive(lost, link, message)

    def _at_fault(self, state: State) -> State:
        return (*state[:-1], state[-1] - 1)

    def _on(self, state: State, link: int, messages: Any) -> State:
        return _with(state, self._links + link, self._number(messages, messages))

    def machine(self, state: State, place: int) -> Any:
        """A machine, not to be changed."""
        return self._kept[state[place]]

    def on_link(self, state: State, link: int) -> Any:
        """The messages on a link."""
        return self._kept[state[self._links + link]]

    def slots(self, state: State) -> list[Any]:
        """What is in the switch's slots."""
        return list(self._kept[state[self._slots]])

    def call(self, state: State, place: int, method: str, *given: Any) -> tuple[State, list[Instruction]]:
        """The state after an event of a machine, and what the machine wants."""
        asked = state[place], method, given
        if asked not in self._done:
            machine = copy.deepcopy(self._kept[state[place]])
            wanted = getattr(machine, method)(*given)
            self._done[asked] = self._number(_frozen(machine), machine), wanted
        number, wanted = self._done[asked]
        return _with(state, place, number), wanted

    def call_and_send(self, state: State, place: int, method: str, *given: Any) -> tuple[State, list[Instruction]]:
        """The same, with all that the machine's senders have to send then."""
        state, wanted = self.call(state, place, method, *given)
        machine = self.machine(state, place)
        if isinstance(machine, BroadcastingSwitch):
            for child in range(len(machine.children)):
                state, sent = self.call(state, place, "send", child)
                wanted = [*(wanted or ()), *sent]
        elif hasattr(machine, "send"):
            state, sent = self.call(state, place, "send")
            wanted = [*(wanted or ()), *sent]
        return state, wanted

    def beat_of(self, state: State, place: int, receiver: Callable[[Any], Any]) -> Any:
        """A machine's heartbeat as it is now."""
        asked = state[place], receiver.__code__, receiver.__defaults__
        if asked not in self._done:
            self._done[asked] = receiver(copy.deepcopy(self._kept[state[place]])).heartbeat()
        return self._done[asked]

    def send(self, state: State, link: int, message: Any, contents: tuple[Any, ...] = ()) -> State:
        """Put a message on a link, each packet by itself."""
        if isinstance(message, Beat) and not self.hops:
            message = message._replace(beyond=0)
        before, more = self.on_link(state, link), _datagrams(message, contents)
        return self._on(state, link, before.union(more) if self._is_unreliable else (*before, *more))

    def with_slots(self, state: State, slots: list[Any]) -> State:
        """The state with these slots."""
        return _with(state, self._slots, self._number(tuple(slots), tuple(slots)))

    def received(self, message: Any, near: int) -> Any:
        """A message with numbers as a machine near `near` understands them."""
        if isinstance(message, Data):
            begin = self._unwrap(message.begin, near, MODULUS)
            return message._replace(begin=begin, end=begin + 1)
        if isinstance(message, Beat):
            ack = self._unwrap(message.ack, near, MODULUS)
            return message._replace(ack=ack, credit=self._unwrap(message.credit, ack, MODULUS))
        return message

    def told(self, state: State, number: int, packet: Any, near: int, *who: int) -> tuple[State, list[Instruction]]:
        events = {Data: "on_data", Probe: "on_probe", Beat: "on_beat"}
        return self.call_and_send(state, number, events[type(packet)], *who, self.received(packet, near))

    # --- within

    def _number(self, key: object, kept: object) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._kept)
            self._kept.append(kept)
        return number

    def _settled(self, state: State) -> State:
        """The state with stamps by their order, and on an unreliable network without messages that are of no use."""
        for hop in self.hops:
            places = hop.sender[0], hop.receiver[0], self._links + hop.forth, self._links + hop.back
            asked = (hop.forth, *(state[place] for place in places))
            if asked not in self._done:
                self._done[asked] = self._by_order(hop, *(self._kept[state[place]] for place in places))
            for place, number in zip(places, self._done[asked], strict=True):
                state = _with(state, place, number)
        return self._without_useless(state) if self._is_unreliable and not self.hops else state

    def _without_useless(self, state: State) -> State:
        """As _still_of_use, of machines without stamps."""
        for link in self._all_links:
            messages = self.on_link(state, link)
            kept = frozenset(one for one in messages if not self.is_useless(state, link, one[1]))
            if len(kept) < len(messages):
                state = self._on(state, link, kept)
        return state

    def is_useless(self, state: State, link: int, message: Any) -> bool:
        """Whether a message without stamps will never again change anything."""
        raise NotImplementedError

    def _still_of_use(self, sender: Any, receiver: Any, forth: Any, back: Any) -> tuple[Any, Any]:
        """A hop's messages without those that will never again change the machine to which they come.

        What came has come for good, and Ack, Credit and echo only grow. So a packet that came, and whose stamp is not
        above the echo, brings no more than a heartbeat, which `timers` brings too; and a heartbeat that says nothing
        new, and whose echo is below all transmissions under way, brings nothing.
        """
        if not self._is_unreliable:
            return forth, back
        keeps = isinstance(sender, Anyone)
        came = receiver.came(receiver.ack)

        def is_known(packet: int) -> bool:
            return packet < receiver.ack or came >> (packet - receiver.ack) & 1

        def is_old(beat: Any) -> bool:
            told = self.received(beat, sender.ack)
            return (
                told.ack <= sender.ack
                and told.credit <= sender.credit
                and not told.beyond >> (sender.ack - told.ack) & ~sender._came
                and not any(stamp <= told.echo for stamp, _, _ in sender._flights)
            )

        return (
            frozenset(
                one for one in forth
                if keeps or one[1].stamp > receiver._echo or (
                    one[0] is Data and not is_known(self.received(one[1], receiver.ack).begin)
                )
            ),
            frozenset(one for one in back if not is_old(one[1])),
        )  # fmt: skip

    def _by_order(self, hop: Hop, one: Any, other: Any, forth: Any, back: Any) -> tuple[int, int, int, int]:
        """A hop in which a stamp is the number of packets under way whose latest transmission was not after it.

        A machine compares stamps with those alone. Where packets are asked for is left out: a window as small as these
        has a heartbeat for each.
        """
        forth, back = self._still_of_use(hop.sender[1](one), hop.receiver[1](other), forth, back)
        one, other = copy.deepcopy(one), copy.deepcopy(other)
        sender, receiver = hop.sender[1](one), hop.receiver[1](other)
        flights = sorted(
            (stamp + packet - begin, packet)
            for stamp, begin, end in sender._flights
            for packet in range(begin, end)
            if packet >= sender.ack and not sender._came >> (packet - sender.ack) & 1
        )
        stamps = [stamp for stamp, _ in flights]
        sender._flights = [(place, packet, packet + 1) for place, (_, packet) in enumerate(flights, 1)]
        sender.next_stamp = len(flights) + 1
        receiver._echo = bisect_right(stamps, receiver._echo)
        gathered = frozenset if self._is_unreliable else tuple
        forth = gathered(
            (kind, message._replace(stamp=bisect_right(stamps, message.stamp), **NOT_ASKED[kind]), contents)
            for kind, message, contents in forth
        )
        back = gathered(
            (kind, message._replace(echo=bisect_right(stamps, message.echo)), none) for kind, message, none in back
        )
        return (
            self._number(_frozen(one), one),
            self._number(_frozen(other), other),
            self._number(forth, forth),
            self._number(back, back),
        )


NOT_ASKED: dict[type, dict[str, bool]] = {Data: {"asks": False}, Probe: {}}



def _with(state: State, place: int, number: int) -> State:
    return (*state[:place], number, *state[place + 1 :])


def _datagrams(message: Any, contents: tuple[Any, ...]) -> Iterator[tuple[type, Any, Any]]:
    """Messages as they are on the wire, each packet by itself, with what is in it; and their kind, for messages are
    tuples, and equal to those of another kind."""
    kind = type(message)
    if kind is Beat:
        ack, credit, beyond, echo = message
        yield kind, Beat(ack % MODULUS, credit % MODULUS, beyond, echo), ()
    elif kind is Data:
        for place, packet in enumerate(range(message.begin, message.end)):
            behind = message.end - 1 - packet
            stamp = message.stamp - behind if message.stamp >= 0 else message.stamp
            one = Data(packet % MODULUS, packet % MODULUS + 1, stamp, message.asks and not behind)
            yield kind, one, contents[place] if contents else ()
    else:
        yield kind, message, ()


def _frozen(value: object) -> Any:
    """A machine, or a part of one, as a value; what it counts for people is left out."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, int | tuple):
        return value
    return type(value), tuple(_frozen(part) for name, part in vars(value).items() if name != "num_resent")
