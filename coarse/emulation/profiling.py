"""Profiling over emulated links: the probe batches of `Adaptation`, by real processes through the fabric."""

import json
from dataclasses import replace
from functools import partial
from operator import setitem

import numpy as np
from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.emulation.envelope import FabricPort
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.simulation.adaptation import Decide, Measuring, Result, Seconds, drive
from coarse.simulation.job import Job
from coarse.simulation.probe_batches import ProbeBatch
from coarse.strategy.rounds import By, Round

WAYS = {"push": FabricPort.PUSH, "pull": FabricPort.PULL, "devices": FabricPort.DEVICES, "workers": FabricPort.WORKERS}


class EmulatedProfiler:
    """Profiler of one worker; all workers measure equally, each probe batch by its owner, and all hear of it."""

    def __init__(self, comm: MPI.Comm, link: DeviceLink, box: EmulatedMailbox) -> None:
        """Join the other workers; `comm` is theirs, and nothing else may be under way between them."""
        self._comm = comm
        self._link = link
        self._box = box
        self._spent_s = 0.0

    def carry_out(self, measuring: Measuring[Result]) -> tuple[Result, float]:
        """Return the result of measurements, and the emulated seconds of their probe batches, one after the other."""
        self._spent_s = 0.0
        return drive(measuring, self._measure), self._spent_s

    def agree_on(self, decide: Decide) -> Decide:
        """Return a function that has worker 0 decide for all."""

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
        """Return worker 0's text, on all."""
        length = np.array([len(text)], np.int64)
        self._comm.Bcast(length, root=0)
        found = np.zeros(int(length[0]), np.uint8)
        found[: len(text)] = np.frombuffer(text, np.uint8)
        self._comm.Bcast(found, root=0)
        return found.tobytes()

    def _measure(self, probe_batch: ProbeBatch) -> Seconds:
        """Measure a probe batch; all workers are at one emulated time, before it and after."""
        seconds = np.empty(len(probe_batch.sends))
        if probe_batch.owner == self._comm.Get_rank():
            begin_s = self._box.now_s
            seconds[:] = self._fire(probe_batch)
            self._comm.Bcast(seconds, root=probe_batch.owner)
        else:
            begin_s = self._box.now_s
            with self._box.away():
                self._comm.Bcast(seconds, root=probe_batch.owner)
        self._box.go_on_until(begin_s + float(seconds.max()))
        self._spent_s += float(seconds.max())
        return tuple(seconds.tolist())

    def _fire(self, probe_batch: ProbeBatch) -> Seconds:
        """Send all at one emulated time, and wait until all have arrived."""
        box, num_sends, begin_s = self._box, len(probe_batch.sends), self._box.now_s
        arrivals_s: dict[int, float] = {}
        with self._link.lock:
            for number, send in enumerate(probe_batch.sends):
                note = partial(setitem, arrivals_s, number)
                box.spend(WAYS[send.way], probe_batch.nbytes, send.source, send.target, note)
            self._link.ring_bells()
        self._link.wait_for(lambda: len(arrivals_s) == num_sends, None, "what it measures of the links")
        return tuple(arrivals_s[number] - begin_s for number in range(num_sends))
