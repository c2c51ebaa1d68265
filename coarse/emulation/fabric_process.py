"""Fabric process: it has the model of the machine, and forwards arrived messages.

It is linked to the others by its mailbox alone, so no lock is shared with a rank that may die. It ends when all
endpoints have left or died.
"""

import contextlib
import json
import mmap
import os
import sys
from collections.abc import Sequence

from coarse.emulation.absences import Absences
from coarse.emulation.envelope import FabricDelivery, unpack_submission
from coarse.emulation.fabric import FabricModel, FabricReport
from coarse.emulation.horizon import Horizon
from coarse.emulation.mailbox import FabricMailbox
from coarse.emulation.site_file import FabricOrder, parse_order

_LONGEST_SLEEP_S = 0.1


class FabricProcess:
    """Model of the machine behind its mailbox."""

    def __init__(self, order: FabricOrder, mailbox: FabricMailbox) -> None:
        num_endpoints = len(order.process_ids)
        self._mailbox = mailbox
        self._alive = set(range(num_endpoints))
        self._horizon = Horizon(num_endpoints, mailbox.word)
        self.absences = Absences(order.run, order.process_ids, len(order.worker_nodes), self._horizon)
        self.model = FabricModel(order.site, order.worker_nodes, self._deliver, order.rate_changes)

    def serve(self) -> None:
        """Serve until all endpoints are gone."""
        mailbox, before = self._mailbox, (0, 0)
        while self._alive:
            mailbox.look()
            gone = [endpoint for endpoint in self._alive if mailbox.has_left(endpoint)]
            horizon_s = self._horizon.least_s()
            for peer, frame in mailbox.frames():
                self.model.submit(peer, unpack_submission(frame))
            self._forget(gone)  # what they have submitted is read
            self.model.advance(horizon_s)
            mailbox.ring_bells()
            if self.model.progress != before or not self.model.is_waiting:
                before = self.model.progress
                self.absences.on_progress()
            elif self.absences.look():
                continue
            self._forget(mailbox.sleep(0.0 if gone else _LONGEST_SLEEP_S))

    def report(self) -> FabricReport:
        """Return the account of the run."""
        return self.model.report()._replace(absences=tuple(self.absences.found.values()))

    def _deliver(self, endpoint: int, delivery: FabricDelivery) -> bool:
        self._mailbox.post(endpoint, delivery.pack())
        return self._horizon.delivered(endpoint, delivery.due_s)

    def _forget(self, endpoints: Sequence[int]) -> None:
        self._alive.difference_update(endpoints)
        self._horizon.remove(endpoints)


def open_mailbox(order: FabricOrder, control: memoryview) -> FabricMailbox:
    """Return the fabric's mailbox; it hears of every rank's end."""
    mailbox = FabricMailbox(len(order.process_ids), control, order.run)
    for endpoint, process_id in enumerate(order.process_ids):
        mailbox.watch(os.pidfd_open(process_id), endpoint)
    return mailbox


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> None:
    """Serve as the order on standard input says; print the account of the run as the last line."""
    order = parse_order(sys.stdin.read())
    descriptor = int(arguments[0])
    control = memoryview(mmap.mmap(descriptor, 0))
    fabric = FabricProcess(order, open_mailbox(order, control))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    fabric.serve()
    with contextlib.suppress(BrokenPipeError):  # worker 0 was the first to die
        sys.stdout.write(json.dumps(fabric.report()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
