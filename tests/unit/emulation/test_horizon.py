"""The horizon: nothing is late and nobody is stuck, however stores and loads of endpoints and fabric interleave."""

import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest

from coarse.emulation.envelope import FabricDelivery, FabricPort, Submission
from coarse.emulation.fabric import FabricModel
from coarse.emulation.horizon import Horizon, signed
from coarse.hardware.links import Link
from coarse.simulation.engine import Engine
from coarse.simulation.sites import Site

MOST_ROUNDS = 100_000
LINKS = (
    Link(name="shared", latency_s=0.5, bytes_per_s=10.0),
    *(Link(name=f"port{n}", latency_s=0.25, bytes_per_s=8.0) for n in range(3)),
)
SITE = Site(
    links=LINKS, push={}, pull={}, between_devices={}, between_workers={(n, n): (1 + n, 0) for n in range(3)},
    adder_bytes_per_s=5.0,
)  # fmt: skip
SECONDS = (0.0, 0.5, 1.0, 7.25)


class Job:
    """Workers that compute, send to themselves over links that all share, and wait; every store is a step."""

    def __init__(self, bursts: list[list[tuple[float, int]]], random: Random) -> None:
        self.bursts = bursts
        self.words = [0.0] * len(bursts)
        self.taken = [0] * len(bursts)
        self.inboxes: list[deque[FabricDelivery]] = [deque() for _ in bursts]
        self.submitted: deque[tuple[int, Submission]] = deque()
        self.ends_s = [math.nan] * len(bursts)
        self.workers = {number: self.worker(number) for number in range(len(bursts))}
        self.random = random
        self.horizon = Horizon(len(bursts), self.read)
        self.model = FabricModel(SITE, (0,) * len(bursts), self.deliver)

    def worker(self, me: int) -> Iterator[None]:
        clock_s = 0.0
        for number, (seconds, nbytes) in enumerate(self.bursts[me], start=1):
            clock_s += seconds
            self.words[me] = signed(clock_s, listens=False)
            yield
            self.taken[me] = number - 1
            yield
            self.submitted.append((me, Submission(clock_s, nbytes, me, me, me, FabricPort.WORKERS, 0, b"")))
            yield
            self.words[me] = signed(math.inf, listens=True)
            yield
            while not self.inboxes[me]:
                yield
            clock_s = max(clock_s, self.inboxes[me].popleft().due_s)
        self.ends_s[me] = clock_s
        self.words[me] = signed(math.inf, listens=False)

    def read(self, endpoint: int) -> tuple[int, float]:
        taken = self.taken[endpoint]
        self.let_workers_step()
        word = self.words[endpoint]
        self.let_workers_step()
        return taken, word

    def deliver(self, endpoint: int, delivery: FabricDelivery) -> bool:
        self.inboxes[endpoint].append(delivery)
        return self.horizon.delivered(endpoint, delivery.due_s)

    def let_workers_step(self) -> None:
        for _ in range(self.random.choice((0, 0, 0, 1, 4))):
            if self.workers:
                number = self.random.choice(sorted(self.workers))
                if next(self.workers[number], "ended") == "ended":
                    del self.workers[number]

    def run(self) -> None:
        for _ in range(MOST_ROUNDS):
            if not self.workers:
                return
            horizon_s = self.horizon.least_s()
            self.let_workers_step()
            while self.submitted:
                self.model.submit(*self.submitted.popleft())
            self.let_workers_step()
            self.model.advance(horizon_s)
            self.let_workers_step()
        raise AssertionError("somebody is stuck")


def simulated(bursts: list[list[tuple[float, int]]]) -> list[float]:
    """When each worker ends, by one event loop."""
    engine, ends_s = Engine(LINKS), [math.nan] * len(bursts)

    def begin(me: int, number: int) -> None:
        if number == len(bursts[me]):
            ends_s[me] = engine.now_s
        else:
            engine.at(engine.now_s + bursts[me][number][0], partial(send, me, number))

    def send(me: int, number: int) -> None:
        engine.move(("workers", me), (1 + me, 0), bursts[me][number][1], partial(begin, me, number + 1))

    for me in range(len(bursts)):
        begin(me, 0)
    engine.run()
    return ends_s


@pytest.mark.parametrize("seed", range(300))
def test_whatever_comes_first_nothing_is_late_and_times_are_those_of_one_event_loop(seed):
    random = Random(seed)
    bursts = [
        [(random.choice(SECONDS), random.randint(0, 40)) for _ in range(random.randint(1, 5))]
        for _ in range(random.randint(1, 3))
    ]
    job = Job(bursts, random)
    job.run()
    report = job.model.report()
    assert (report.num_transfers, report.num_late) == (sum(map(len, bursts)), 0)
    assert job.ends_s == simulated(bursts)


def test_one_that_listens_may_react_to_the_first_delivery_that_it_has_not_taken_in():
    words = [(0, signed(9.0, listens=False)), (0, signed(math.inf, listens=True))]
    horizon = Horizon(2, lambda endpoint: words[endpoint])
    assert horizon.least_s() == 9.0
    assert horizon.delivered(1, 4.0)
    assert not horizon.delivered(0, 4.0)
    assert horizon.least_s() == 4.0
    words[1] = (1, signed(math.inf, listens=True))
    assert horizon.least_s() == 9.0  # the other's delivery cannot make it submit anything before its own time
    horizon.remove([0])
    assert horizon.least_s() == math.inf


def test_a_bound_of_zero_still_says_whether_its_endpoint_listens():
    words = [(0, signed(0.0, listens=True))]
    horizon = Horizon(1, lambda endpoint: words[endpoint])
    assert horizon.least_s() == 0.0
    assert horizon.delivered(0, 0.0)
