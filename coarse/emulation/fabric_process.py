"""The fabric: one process that knows all links, and hands on what has arrived.

It is nobody's peer but by its mailbox, so no lock is shared with a rank that may die. It ends when all
endpoints have left or died.
"""

import contextlib
import json
import mmap
import os
import sys
from collections.abc import Sequence

from coarse.emulation.envelope import RUN_SECONDS, FabricDelivery, FabricPort, Submission, unpack_submission
from coarse.emulation.pace import Pace
from coarse.emulation.run_clock import RunClock
from coarse.emulation.site_file import FabricOrder, parse_order
from coarse.hardware.ports import Ports
from coarse.simulation.sites import Path, Site
from coarse.transport.mailbox import Mailbox

LATE_SHARE = 0.02
"""A transfer that is handed on later than this share of its duration has overrun."""
FLOOR_WALL_S = 0.002
"""Wall seconds of lateness that no process on a busy machine can avoid; see benchmarks/emulation.py."""
_LONGEST_SLEEP_S = 0.1
_SPIN_SHARE, _LEAST_SPIN_S, _MOST_SPIN_S = 0.02, 0.0001, 0.0005
"""The last moment of a sleep is not slept but waited for: a core that slept longer wakes up later."""
_WAKE_UP_S = 0.0002
"""Wall seconds that it takes a receiver to wake up: what is due by then is handed on."""


class Punctuality:
    """When each transfer began, and whether it was handed on too late."""

    def __init__(self) -> None:
        self._begins_s: list[float] = []
        self._lates_s: list[float] = []
        """Emulated seconds of lateness; 0 where a transfer was in time."""

    def note(self, begin_s: float, due_s: float, now_s: float, floor_s: float) -> None:
        """One transfer is handed on."""
        late_s = now_s - due_s
        self._begins_s.append(begin_s)
        self._lates_s.append(late_s if late_s > max(floor_s, LATE_SHARE * (due_s - begin_s)) else 0.0)

    def as_json(self) -> str:
        """Two lists, in the order in which transfers were handed on."""
        return json.dumps([self._begins_s, self._lates_s])


class FabricProcess:
    """The model of the links, paced by the wall clock."""

    def __init__(self, site: Site, mailbox: Mailbox, pace: Pace, num_endpoints: int, clock: RunClock) -> None:
        self._site = site
        self._mailbox = mailbox
        self._pace = pace
        self._clock = clock
        self._alive = set(range(num_endpoints))
        self._ports = Ports(site.links)
        self._moving: dict[int, Submission] = {}
        self._num_submitted = 0
        self.punctuality = Punctuality()

    def serve(self) -> None:
        """Until all endpoints are gone."""
        while self._alive:
            self._take_submissions()
            self._hand_on()
            self._mailbox.ring_bells()
            self._alive -= {endpoint for endpoint in self._alive if self._mailbox.has_left(endpoint)}
            self._alive -= set(self._mailbox.sleep(self._sleep_s()))

    def _take_submissions(self) -> None:
        for _, frame in self._mailbox.frames():
            submission = unpack_submission(frame)
            if submission.way is FabricPort.CLOCK:
                (run_s,) = RUN_SECONDS.unpack(submission.frame)
                self._clock.set(submission.begin_s, run_s, goes=bool(submission.nbytes))
                continue
            self._num_submitted += 1
            self._moving[self._num_submitted] = submission
            begin_s = submission.begin_s
            self._ports.submit(
                self._num_submitted,
                submission.way.queue(submission.source, submission.target),
                self._path(submission),
                submission.nbytes,
                max(begin_s, self._ports.fabric.now_s),
                priority=submission.priority,
                begun_s=begin_s,
            )

    def _hand_on(self) -> None:
        now_s = self._pace.now_s() + _WAKE_UP_S / self._pace.dilation
        floor_s = FLOOR_WALL_S / self._pace.dilation
        for at_s, link, bytes_per_s in self._clock.take_due(now_s):
            fabric = self._ports.fabric
            fabric.set_rate(link, bytes_per_s, max(at_s, fabric.now_s))
        for due_s, number in self._ports.advance(max(now_s, self._ports.fabric.now_s)):
            submission = self._moving.pop(number)
            self._mailbox.post(submission.endpoint, FabricDelivery(due_s, submission.way, submission.frame).pack())
            self.punctuality.note(submission.begin_s, due_s, now_s, floor_s)

    def _path(self, submission: Submission) -> Path:
        source, target = submission.source, submission.target
        match submission.way:
            case FabricPort.PUSH:
                return self._site.push[source, target]
            case FabricPort.PULL:
                return self._site.pull[target, source]
            case FabricPort.DEVICES | FabricPort.FETCH | FabricPort.WRITE:
                return self._site.between_devices[source, target]
            case FabricPort.WORKERS:
                return self._site.between_workers[source, target]
        raise AssertionError(f"{submission} takes no way")

    def _sleep_s(self) -> float:
        nexts_s = [next_s for next_s in (self._ports.next_s(), self._clock.next_s()) if next_s is not None]
        if not nexts_s:
            return _LONGEST_SLEEP_S
        next_s = min(nexts_s)
        left_s = self._pace.wall_s_until(next_s) - _WAKE_UP_S
        left_s -= min(_MOST_SPIN_S, max(_LEAST_SPIN_S, left_s * _SPIN_SHARE))
        return max(0.0, min(_LONGEST_SLEEP_S, left_s))


def open_mailbox(order: FabricOrder, control: memoryview) -> Mailbox:
    """The fabric's mailbox; it hears of every rank's end."""
    num_endpoints = len(order.process_ids)
    peers = tuple(range(num_endpoints))
    mailbox = Mailbox(num_endpoints, num_endpoints + 1, peers, control, order.run, is_punctual=True)
    for endpoint, process_id in enumerate(order.process_ids):
        mailbox.watch(os.pidfd_open(process_id), endpoint)
    return mailbox


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> None:
    """Serve as the order on standard input says; print how punctual it was as the last line.

    It goes before all other processes where it may: it computes little and has to be in time.
    """
    order = parse_order(sys.stdin.read())
    descriptor = int(arguments[0])
    control = memoryview(mmap.mmap(descriptor, 0))
    mailbox = open_mailbox(order, control)
    pace = Pace(order.origin_s, order.dilation)
    with contextlib.suppress(OSError):  # not allowed: then it is late more often, and says so
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    fabric = FabricProcess(order.site, mailbox, pace, len(order.process_ids), RunClock(order.rate_changes))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    fabric.serve()
    with contextlib.suppress(BrokenPipeError):  # worker 0 was the first to die
        sys.stdout.write(fabric.punctuality.as_json() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
