# Pure: no MPI, threads, clock or environment.
"""Links that lose, repeat and delay messages, and the ports where messages leave."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coarse.luwu.many_to_one.packets import NOTHING_CAME, Beat, Data, Message
from coarse.luwu.many_to_one.sender import Sender
from coarse.simulation.engine import Engine
from experiments.many_to_one.timers import Timer


@dataclass(frozen=True, kw_only=True)
class Network:
    """All links alike, each with both directions of its own."""

    bytes_per_s: float = 12.5e9
    latency_s: float = 2e-6
    packet_bytes: int = 8900
    """A packet's payload: what fills a link's frames of 9,000 bytes."""
    header_bytes: int = 100
    """Of a packet, and of a heartbeat as a whole."""
    loss: float = 0.0
    """The chance that a message is lost on a link; also of being repeated, `repeats`, or delayed, `delays`."""
    repeats: float = 0.0
    delays: float = 0.0
    """By up to ten packets' time, so that others overtake it."""

    @property
    def packet_s(self) -> float:
        """How long a packet takes of a link."""
        return (self.packet_bytes + self.header_bytes) / self.bytes_per_s


class Node(Protocol):
    """What has links."""

    def payload(self, link: int, packet: int) -> int:
        """What stands for a packet that leaves by a link."""
        ...

    def begin(self) -> None:
        """All links are there."""
        ...

    def arrive(self, link: int, message: Message, payloads: Sequence[int]) -> None:
        """A message has come on one of them."""
        ...


class Port:
    """Where messages leave on one direction of a link, one after the other, each packet in a datagram of its own.

    What does not come from a sender goes first; a sender is asked for a packet when the link is free.
    """

    def __init__(self, wires: "Wires", node: Node, link: int, to: Node, there: int) -> None:
        self._wires, self._node, self._link, self._to, self._there = wires, node, link, to, there
        self._waiting: deque[tuple[Message, Sequence[int]]] = deque()
        self._is_busy = False
        self._sender: Sender | None = None
        self._timer: Timer | None = None

    def has(self, sender: Sender, timer: "Timer") -> None:
        """A sender's packets leave here."""
        self._sender, self._timer = sender, timer

    def put(self, message: Message, payloads: Sequence[int] = ()) -> None:
        """Let a message leave; a sender's packets are asked for."""
        if not isinstance(message, Data):
            self._waiting.append((message, ()))
        for place, payload in enumerate(payloads):
            packet = message.begin + place if isinstance(message, Data) else 0
            self._waiting.append((Data(packet, packet + 1, NOTHING_CAME, asks=False), (payload,)))
        self.go_on()

    def go_on(self) -> None:
        """The sender may have more, or now wait for credit."""
        if self._timer is not None:
            self._timer.run()
        if self._is_busy:
            return
        if self._waiting:
            message, payloads = self._waiting.popleft()
        elif self._sender is not None and (sent := self._sender.send(1)):
            message = sent[0].message
            assert isinstance(message, Data)
            payloads = (self._node.payload(self._link, message.begin),)
        else:
            return
        if self._timer is not None and not isinstance(message, Beat):
            self._timer.on_sent(message)
        network, engine = self._wires.network, self._wires.engine
        nbytes = network.header_bytes
        if isinstance(message, Data):
            nbytes += network.packet_bytes
            self._wires.num_sent += 1
        self._is_busy = True
        engine.at(engine.now_s + nbytes / network.bytes_per_s, lambda: self._leave(message, payloads))

    def _leave(self, message: Message, payloads: Sequence[int]) -> None:
        network, draw, engine = self._wires.network, self._wires.draw, self._wires.engine
        for _ in range(1 + (draw() < network.repeats)):
            if draw() < network.loss:
                continue
            late_s = draw() * 10 * network.packet_s if draw() < network.delays else 0.0
            at_s = engine.now_s + network.latency_s + late_s
            engine.at(at_s, lambda: self._to.arrive(self._there, message, payloads))
        self._is_busy = False
        self.go_on()


class Wires:
    """All links of a network, both directions of each."""

    def __init__(self, network: Network, draw: Callable[[], float]) -> None:
        """`draw` gives numbers from 0 to 1, by which messages are lost, repeated and delayed."""
        self.engine = Engine([])
        self.network = network
        self.draw = draw
        self.num_sent = 0
        """Packets that left, those that were lost too."""
        self._ports: dict[tuple[Node, int], Port] = {}

    @property
    def nodes(self) -> list[Node]:
        """All that have links."""
        return list(dict.fromkeys(node for node, _ in self._ports))

    def join(self, one: Node, link: int, other: Node, there: int) -> None:
        """Let a node's link lead to another's."""
        self._ports[one, link] = Port(self, one, link, other, there)
        self._ports[other, there] = Port(self, other, there, one, link)

    def port(self, node: Node, link: int) -> Port:
        """Where a node's messages leave on a link."""
        return self._ports[node, link]
