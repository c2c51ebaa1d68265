"""Profiling over emulated links: the volleys of `Adaptation`, by real processes through the fabric."""

from dataclasses import replace

import numpy as np
from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.emulation.envelope import FabricPort, Submission
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.pace import Pace
from coarse.protocol.plan import RoutingTable
from coarse.simulation.adaptation import Decide, Measuring, Result, Seconds, drive
from coarse.simulation.job import Job
from coarse.simulation.volleys import Volley

_AHEAD_WALL_S = 0.001
"""So far ahead a volley is announced: the fabric then knows all of its transfers when they begin."""
_NUMBER_BYTES = 4
WAYS = {"push": FabricPort.PUSH, "pull": FabricPort.PULL, "devices": FabricPort.DEVICES, "workers": FabricPort.WORKERS}


class EmulatedProfiler:
    """One worker's part; all workers measure alike, each volley by the worker that owns it, and all hear of it."""

    def __init__(self, comm: MPI.Comm, link: DeviceLink, box: EmulatedMailbox, pace: Pace) -> None:
        """`comm` is the workers'; nothing else may be under way between them."""
        self._comm = comm
        self._link = link
        self._box = box
        self._pace = pace
        self._spent_s = 0.0

    def carry_out(self, measuring: Measuring[Result]) -> tuple[Result, float]:
        """What it comes to, and the emulated seconds that the volleys took, one after the other."""
        self._spent_s = 0.0
        return drive(measuring, self._measure), self._spent_s

    def agree_on(self, decide: Decide) -> Decide:
        """The same decision, made by worker 0 for all."""

        def agreed(job: Job) -> Job:
            rows = np.array([table.row for table in job.tables], np.int64)
            split = np.zeros(1, np.int64)
            if self._comm.Get_rank() == 0:
                decided = decide(job)
                rows[:] = [table.row for table in decided.tables]
                split[0] = decided.num_proxy_gradients
            self._comm.Bcast(rows, root=0)
            self._comm.Bcast(split, root=0)
            tables = tuple(RoutingTable.of_row(row) for row in rows.tolist())
            return replace(job, tables=tables, num_proxy_gradients=int(split[0]))

        return agreed

    def _measure(self, volley: Volley) -> Seconds:
        seconds = np.empty(len(volley.sends))
        if volley.owner == self._comm.Get_rank():
            seconds[:] = self._fire(volley)
        self._comm.Bcast(seconds, root=volley.owner)
        self._spent_s += float(seconds.max())
        return tuple(seconds.tolist())

    def _fire(self, volley: Volley) -> Seconds:
        """Send all at one emulated time, and wait until all have arrived: see [Note: probes] in mailbox.py."""
        box, num_sends = self._box, len(volley.sends)
        arrivals_s: dict[int, float] = {}

        def arrived(_: FabricPort, frame: bytes, due_s: float) -> None:
            arrivals_s[int.from_bytes(frame, "little")] = due_s

        begin_s = max(box.now_s, self._pace.now_s() + _AHEAD_WALL_S / self._pace.dilation)
        with self._link.lock:
            box.on_probe = arrived
            for number, send in enumerate(volley.sends):
                frame = number.to_bytes(_NUMBER_BYTES, "little")
                way = WAYS[send.way]
                box.submit(
                    Submission(begin_s, volley.nbytes, send.source, send.target, box.endpoint, way, 0, frame)
                )
            self._link.ring_bells()
        self._link.wait_for(lambda: len(arrivals_s) == num_sends, None, "what it measures of the links")
        box.on_probe = None
        return tuple(arrivals_s[number] - begin_s for number in range(num_sends))
