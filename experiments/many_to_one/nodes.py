# Pure: no MPI, threads, clock or environment.
"""Workers, the optimizer and switches: they carry out what the machines of coarse/luwu/many_to_one want."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from coarse.luwu.many_to_one.all_reduce import AllReducingSwitch
from coarse.luwu.many_to_one.packets import (
    Beat,
    Complete,
    Data,
    Free,
    Instruction,
    Message,
    Probe,
    Take,
    Transmit,
)
from coarse.luwu.many_to_one.receiver import BEATS_PER_WINDOW, Receiver
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.switch import PARENT, AddingSwitch, BroadcastingSwitch
from experiments.many_to_one.go_back_n import GoBackAddingSwitch, GoBackBroadcastingSwitch, GoBackSender
from experiments.many_to_one.links import Wires
from experiments.many_to_one.timers import Do, RoundTripTimer, SilenceTimer, Timer

_STAGGER_S = 0.01
"""How much later each worker sends again than the one before it, with go-back-N."""


@dataclass(kw_only=True)
class Job:
    """What all nodes know: packets [first, end) go up, and as many down."""

    wires: Wires
    window: int
    first: int
    end: int
    is_go_back_n: bool
    is_all_reduce: bool
    silence_s: float
    num_workers: int = 0
    senders: list[Sender | GoBackSender] = field(default_factory=list)
    awaiting: set[str] = field(default_factory=set)
    """Who lacks packets."""
    done_s: dict[str, float] = field(default_factory=dict)
    """When the last packet came, by whether it was pushed or pulled."""

    def pushed(self, worker: int, packet: int) -> int:
        """What stands for a worker's packet."""
        return (worker + 1) * 1_000_003 + packet * 7_919

    def sum_of(self, packet: int) -> int:
        """What stands for the sum of all workers' ones."""
        return sum(self.pushed(worker, packet) for worker in range(self.num_workers))

    def timer(self, sender: Sender | GoBackSender, do: Do, worker: int = 0) -> Timer:
        """The timer of a sender."""
        engine, network = self.wires.engine, self.wires.network
        if isinstance(sender, GoBackSender):
            return SilenceTimer(engine, sender, do, self.silence_s + _STAGGER_S * worker)
        return RoundTripTimer(engine, sender, do, 2 * self.window * network.packet_s, 4 * network.latency_s)


class End:
    """A worker or the optimizer: sends one stream and takes the other."""

    def __init__(self, job: Job, name: str, takes: str, worker: int | None = None) -> None:
        self._job, self._name, self._takes, self._worker = job, name, takes, worker
        first, window = job.first, job.window
        self._receiver = Receiver(0, window, first=first)
        self._sender: Sender | GoBackSender
        if job.is_go_back_n:
            self._sender = GoBackSender(0, window, first=first)
        else:
            self._sender = Sender(0, window, first=first)
        job.senders.append(self._sender)
        job.awaiting.add(name)
        self._timer = job.timer(self._sender, self._do, worker or 0)

    def begin(self) -> None:
        """Offer all packets."""
        job = self._job
        self._port = job.wires.port(self, 0)
        if isinstance(self._sender, GoBackSender):
            self._do(self._sender.offer(job.end))
            self._beat_again()
        else:
            self._port.has(self._sender, self._timer)
            self._sender.offer(job.first, job.end)
            self._port.go_on()

    def payload(self, link: int, packet: int) -> int:
        """See Node."""
        return packet if self._worker is None else self._job.pushed(self._worker, packet)

    def arrive(self, link: int, message: Message, payloads: Sequence[int]) -> None:
        """See Node."""
        if isinstance(message, Data):
            self._do(self._receiver.on_data(message), payloads)
        elif isinstance(message, Probe):
            self._do(self._receiver.on_probe(message))
        else:
            self._timer.on_beat(message)
            self._do(self._sender.on_beat(message))
            self._port.go_on()

    def _do(self, wanted: Sequence[Instruction], payloads: Sequence[int] = ()) -> None:
        job = self._job
        for one in wanted:
            if isinstance(one, Take):
                right = job.sum_of(one.begin) if self._takes == "push" or job.is_all_reduce else one.begin
                assert payloads[0] == right, f"{self._name} took {payloads[0]} for {right} of packet {one.begin}"
            elif isinstance(one, Transmit):
                message = one.message
                own: list[int] = []
                if isinstance(message, Data):
                    self._timer.on_sent(message)
                    own = [self.payload(0, packet) for packet in range(message.begin, message.end)]
                self._port.put(message, own)
            elif isinstance(one, Complete):
                if one.end == job.end:
                    job.awaiting.discard(self._name)
                    job.done_s[self._takes] = job.wires.engine.now_s
                self._do(self._receiver.consume(one.end))

    def _beat_again(self) -> None:
        job = self._job
        if job.awaiting or any(sender.is_waiting for sender in job.senders):
            self._do([self._receiver.heartbeat()])
            every_s = job.window * job.wires.network.packet_s / BEATS_PER_WINDOW
            job.wires.engine.at(job.wires.engine.now_s + every_s, self._beat_again)


class Switch:
    """Both directions of a switch."""

    def __init__(self, job: Job, num_children: int) -> None:
        window, first = job.window, job.first
        self._job = job
        self._adds = AddingSwitch(num_children, window, window, first=first)
        self._copies = BroadcastingSwitch(num_children, window, [window] * num_children, first=first)
        self._sums: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._up = job.timer(self._adds.sender, self._do)
        self._down = [job.timer(child, self._do) for child in self._copies.children]
        job.senders += [self._adds.sender, *self._copies.children]

    def begin(self) -> None:
        """The links are there."""
        self._ports = {link: self._job.wires.port(self, link) for link in (PARENT, *range(len(self._down)))}
        self._ports[PARENT].has(self._adds.sender, self._up)
        for link, (child, timer) in enumerate(zip(self._copies.children, self._down, strict=True)):
            self._ports[link].has(child, timer)

    def payload(self, link: int, packet: int) -> int:
        """See Node."""
        return self._sums[packet] if link == PARENT else self._kept[packet]

    def arrive(self, link: int, message: Message, payloads: Sequence[int]) -> None:
        """See Node."""
        if link == PARENT:
            self._come_down(message, payloads)
        else:
            self._come_up(link, message, payloads)
        for port in self._ports.values():
            port.go_on()

    def _come_down(self, message: Message, payloads: Sequence[int]) -> None:
        if isinstance(message, Data):
            wanted = self._copies.on_data(message)
            for one in wanted:
                if isinstance(one, Take):
                    self._kept[one.begin] = payloads[0]
            self._do(wanted)
        elif isinstance(message, Probe):
            self._do(self._copies.on_probe(message))
        else:
            self._up.on_beat(message)
            self._do(self._adds.on_beat(message), self._sums)

    def _come_up(self, link: int, message: Message, payloads: Sequence[int]) -> None:
        if isinstance(message, Data):
            wanted = self._adds.on_data(link, message)
            for one in wanted:
                if isinstance(one, Take):
                    self._sums[one.begin] = self._sums.get(one.begin, 0) + payloads[0]
            self._do(wanted)
        elif isinstance(message, Probe):
            self._do(self._adds.on_probe(link, message))
        else:
            self._down[link].on_beat(message)
            self._do(self._copies.on_beat(link, message), self._kept)

    def _do(self, wanted: Sequence[Instruction], store: dict[int, int] | None = None) -> None:
        for one in wanted:
            if isinstance(one, Free):
                assert store is not None
                for packet in [packet for packet in store if packet < one.end]:
                    del store[packet]
            elif isinstance(one, Transmit):
                self._ports[one.link].put(one.message)


class TurningSwitch:
    """The root of an all-reduce."""

    def __init__(self, job: Job, num_children: int) -> None:
        self._job = job
        self._machine = AllReducingSwitch(num_children, job.window, job.window, first=job.first)
        self._sums: dict[int, int] = {}
        self._timers = [job.timer(sender, self._do) for sender in self._machine.senders]
        job.senders += self._machine.senders

    def begin(self) -> None:
        """See Node."""
        self._ports = [self._job.wires.port(self, link) for link in range(len(self._timers))]
        for port, sender, timer in zip(self._ports, self._machine.senders, self._timers, strict=True):
            port.has(sender, timer)

    def payload(self, link: int, packet: int) -> int:
        """See Node."""
        return self._sums[packet]

    def arrive(self, link: int, message: Message, payloads: Sequence[int]) -> None:
        """See Node."""
        if isinstance(message, Data):
            wanted = self._machine.on_data(link, message)
            for one in wanted:
                if isinstance(one, Take):
                    self._sums[one.begin] = self._sums.get(one.begin, 0) + payloads[0]
        elif isinstance(message, Probe):
            wanted = self._machine.on_probe(link, message)
        else:
            self._timers[link].on_beat(message)
            wanted = self._machine.on_beat(link, message)
        self._do(wanted)
        for port in self._ports:
            port.go_on()

    def _do(self, wanted: Sequence[Instruction]) -> None:
        for one in wanted:
            if isinstance(one, Free):
                for packet in [packet for packet in self._sums if packet < one.end]:
                    del self._sums[packet]
            elif isinstance(one, Transmit):
                self._ports[one.link].put(one.message)


class GoBackSwitch:
    """Both directions of the paper's switch."""

    def __init__(self, job: Job, num_children: int) -> None:
        window, first = job.window, job.first
        self._job = job
        self._adds = GoBackAddingSwitch(num_children, window, first=first)
        self._copies = GoBackBroadcastingSwitch(num_children, window, first=first)
        self._sums: dict[int, int] = {}

    def begin(self) -> None:
        """See Node."""

    def payload(self, link: int, packet: int) -> int:
        """See Node: nobody asks."""
        raise NotImplementedError

    def arrive(self, link: int, message: Message, payloads: Sequence[int]) -> None:
        """See Node."""
        if link == PARENT:
            self._do(self._copies.on_data(message) if isinstance(message, Data) else self._beat(message), payloads)
        elif isinstance(message, Data):
            for one in (wanted := self._adds.on_data(link, message)):
                if isinstance(one, Take):
                    self._sums[one.begin] = self._sums.get(one.begin, 0) + payloads[0]
            self._do(wanted, [self._sums[message.begin]] if message.begin in self._sums else [])
        elif isinstance(message, Beat):
            self._do(self._copies.on_beat(link, message), ())

    def _beat(self, message: Message) -> list[Instruction]:
        return self._adds.on_beat(message) if isinstance(message, Beat) else []

    def _do(self, wanted: list[Instruction], payloads: Sequence[int]) -> None:
        for one in wanted:
            if isinstance(one, Transmit):
                self._job.wires.port(self, one.link).put(one.message, payloads)
            elif isinstance(one, Free):
                for packet in [packet for packet in self._sums if packet < one.end]:
                    del self._sums[packet]
