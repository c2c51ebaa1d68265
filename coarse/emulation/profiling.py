"""Profiling over emulated links: the volleys of `Adaptation`, by real processes through the fabric."""

import json
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.emulation.envelope import FabricPort, Submission
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.pace import Pace
from coarse.simulation.adaptation import Decide, Measuring, Result, Seconds, drive
from coarse.simulation.job import Job
from coarse.simulation.volleys import Volley
from coarse.strategy.rounds import By, Round

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
            text = b""
            if self._comm.Get_rank() == 0:
                decided = decide(job)
                by = [by.value for by in decided.round.by]
                text = json.dumps([decided.facts, by, decided.round.hold_back]).encode()
            facts, by, is_held_back = json.loads(self._from_first(text))
            decided_round = Round(by=tuple(map(By, by)), hold_back=is_held_back)
            return replace(job, facts=tuple(map(tuple, facts)), round=decided_round)

        return agreed

    def _from_first(self, text: bytes) -> bytes:
        """Worker 0's text, on all."""
        length = np.array([len(text)], np.int64)
        self._comm.Bcast(length, root=0)
        found = np.zeros(int(length[0]), np.uint8)
        found[: len(text)] = np.frombuffer(text, np.uint8)
        self._comm.Bcast(found, root=0)
        return found.tobytes()

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
