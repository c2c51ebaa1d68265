"""Worker that replays its compute, while real gradients of the real shapes are synchronised."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from coarse.client.client import Client
from coarse.client.handle import Handle
from coarse.emulation.envelope import FabricPort
from coarse.emulation.gradients import Gradients, GradientsOnGpu, WorkerSums, stored
from coarse.emulation.mailbox import Then
from coarse.emulation.runtime import EmulatedRank
from coarse.errors import CoarseError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.joint import OWN_GROUP, CollectiveKind, Joint, Meeting
from coarse.protocol.records import Descriptor
from coarse.simulation.adaptation import Profile
from coarse.simulation.report import WorkerIteration, with_idle_times
from coarse.strategy.rounds import By, SetOut, WorkerRounds


class EmulatedWorker:
    """Worker of an emulated job."""

    def __init__(self, rank: EmulatedRank, gpu: int | None = None) -> None:
        """Open all keys; `gpu` holds this worker's gradients, None stands for device memory."""
        self._gpu = gpu
        runtime = rank.runtime
        assert runtime.client_index is not None
        self._rank = rank
        self._runtime = runtime
        self._worker = runtime.client_index
        self._job = rank.parts.job
        self._client: Client = runtime.require_client()
        assert rank.parts.box is not None
        self._box = rank.parts.box
        self._meeting = Meeting(tuple(range(self._job.num_workers)), OWN_GROUP)
        self.profiles: list[Profile] = []
        """Profilings of the job as it ran."""
        self._open_keys()

    def train(self) -> list[WorkerIteration]:
        """Run all iterations, and check every sum; kind "emulated"."""
        rows = []
        every = self._job.profile_every
        self._meet(FabricPort.RUN)
        self._box.begin_run()
        for iteration in range(self._job.num_iterations):
            if iteration and every and iteration % every == 0:
                self._meet()
                self._profile_again(iteration)
            rows.append(self._iterate(iteration))
        for late in list(self._begun):
            self._apply(late)
        self._meet()
        return rows

    def _profile_again(self, iteration: int) -> None:
        """Measure again; if that changes tables or split, deregister all names and register them by these."""
        profile = self._rank.look(iteration)
        self.profiles.append(profile)
        if profile.is_new:
            self._close_keys()
            self._job = self._rank.parts.job
            self._runtime.profile()
            self._open_keys()
            self._meet()

    # --- one iteration

    def _iterate(self, iteration: int) -> WorkerIteration:
        job, box = self._job, self._box
        moments = job.moments(self._worker, iteration)
        begin_s = box.now_s
        forward_end_s = begin_s + moments.forward_s
        backward_end_s = forward_end_s + moments.backward_s
        self._fill(iteration)
        rounds, begun = WorkerRounds(), _Begun()
        self._begun[iteration] = begun
        rounds.begin(job.round_at(iteration))
        for position, after_s in enumerate(moments.ready_s):
            box.go_on_until(min(forward_end_s + after_s, backward_end_s))
            self._set_out(rounds.on_ready(position), iteration, begun)
        box.go_on_until(backward_end_s)
        self._set_out(rounds.on_backward_end(), iteration, begun)
        if (applied := iteration - job.lag) >= 0:
            self._apply(applied)
            box.go_on_until(box.now_s + moments.decode_s)
        return WorkerIteration(
            worker=self._worker,
            iteration=iteration,
            begin_s=begin_s,
            forward_end_s=forward_end_s,
            backward_end_s=backward_end_s,
            end_s=box.now_s,
        )

    def _set_out(self, buckets: Sequence[SetOut], iteration: int, begun: "_Begun") -> None:
        """Push gradients that the devices sum, and begin those that the workers sum, all at one emulated time."""
        turn = self._turn(iteration)
        for position, by in buckets:
            place = self._places[position]
            if by is By.DEVICES:
                begun.handles.append(turn.gradients.push(place))
                continue
            begun.summed.append(place)
            begun.under_way.add(place)
            descriptor = turn.descriptors[position]
            itemsize = DType(descriptor.dtype).accumulator.itemsize
            joint = Joint(CollectiveKind.ALL_REDUCE, descriptor.num_elements * itemsize, itemsize)
            with self._client.link.lock:
                self._box.join(self._meeting, joint, partial(begun.on_summed, place))
                self._client.link.ring_bells()

    def _apply(self, iteration: int) -> None:
        """Wait for all sums of an iteration, and check them."""
        begun = self._begun.pop(iteration)
        self._client.link.wait_for(lambda: not begun.under_way, None, "the workers' own all-reduces")
        for handle in begun.handles:
            handle.wait()
        self._turn(iteration).sums.take(begun.summed)
        self._check(iteration)

    def _spend(self, way: FabricPort, then: Then, nbytes: int = 0, target: int = 0) -> None:
        with self._client.link.lock:
            self._box.spend(way, nbytes, self._worker, target, then)
            self._client.link.ring_bells()

    def _meet(self, way: FabricPort = FabricPort.MEET) -> None:
        """Go on at one emulated time with all workers: the latest of theirs."""
        met: list[float] = []
        self._spend(way, met.append)
        self._client.link.wait_for(lambda: bool(met), None, "the other workers")
        self._box.go_on_until(met[0])

    # --- real bytes

    def _turn(self, iteration: int) -> "_Turn":
        return self._turns[iteration % len(self._turns)]

    def _fill(self, iteration: int) -> None:
        turn = self._turn(iteration)
        turn.gradients.fill(self._worker + 1 + iteration)
        turn.sums.fill(self._worker + 1 + iteration)

    def _check(self, iteration: int) -> None:
        turn = self._turn(iteration)
        num_workers = self._job.num_workers
        total = sum(worker + 1 + iteration for worker in range(num_workers))
        for position, by in enumerate(self._job.round_at(iteration).by):
            if by is By.NOBODY:
                continue
            is_device, place, descriptor = by is By.DEVICES, self._places[position], turn.descriptors[position]
            array = turn.gradients.values(place) if is_device else turn.sums.values(place)
            share = total / num_workers if is_device and descriptor.op == Op.AVERAGE else total
            wanted = stored(share, descriptor) if is_device else share
            if array.size and not (array[0] == array[-1] == wanted and (array == array[0]).all()):
                name = descriptor.name
                raise CoarseError(f"rank {self._worker}: the sum of {name!r} is {array[:3]}, wanted {wanted}")

    def _open_keys(self) -> None:
        """Open regions of all gradients, on the side that synchronises each, for each turn."""
        job = self._job
        by_devices, by_workers = (job.gradients_by(by) for by in (By.DEVICES, By.WORKERS))
        self._places = {at: place for them in (by_devices, by_workers) for place, at in enumerate(them)}
        self._begun: dict[int, _Begun] = {}
        """Iterations whose sums are still to be applied."""
        every, count = job.descriptors(), len(job.gradients)
        self._turns = [
            self._opened(every[turn * count : (turn + 1) * count], by_devices, by_workers)
            for turn in range(job.num_turns)
        ]

    def _opened(
        self, descriptors: Sequence[Descriptor], by_devices: Sequence[int], by_workers: Sequence[int]
    ) -> "_Turn":
        of_devices, of_workers = ([descriptors[at] for at in them] for them in (by_devices, by_workers))
        client, gpu, memories = self._client, self._gpu, self._rank.parts.memories
        return _Turn(
            descriptors,
            Gradients(client, of_devices) if gpu is None else GradientsOnGpu(client, of_devices, gpu),
            WorkerSums(self._runtime.worker_comm, client, memories, of_workers),
        )

    def _close_keys(self) -> None:
        """Give all regions back; no neighbour reads them any more."""
        for turn in self._turns:
            turn.gradients.close()
            turn.sums.close()


class _Turn(NamedTuple):
    """Arrays of the iterations of one turn: with late sums several are under way."""

    descriptors: Sequence[Descriptor]
    gradients: Gradients
    sums: WorkerSums


class _Begun:
    """Sums of an iteration that are under way."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.summed: list[int] = []
        """Places of gradients that the workers sum."""
        self.under_way: set[int] = set()
        """Places whose sums this worker waits for."""

    def on_summed(self, place: int, _: float) -> None:
        """Note that this worker has the sum of a place."""
        self.under_way.remove(place)


_FIELDS = ("worker", "iteration", "begin_s", "forward_end_s", "backward_end_s", "end_s", "idle_s")


def gather_rows(comm: MPI.Comm, rows: Sequence[WorkerIteration]) -> list[WorkerIteration]:
    """Return all workers' rows on every worker, with each one's wait for the slowest."""
    own = np.array([[getattr(row, name) for name in _FIELDS] for row in rows])
    everybody = np.empty((comm.Get_size(), *own.shape))
    comm.Allgather(own, everybody)
    return with_idle_times(_row(values) for values in everybody.reshape(-1, len(_FIELDS)).tolist())


def _row(values: Sequence[float]) -> WorkerIteration:
    worker, iteration, begin_s, forward_end_s, backward_end_s, end_s, idle_s = values
    return WorkerIteration(
        worker=int(worker),
        iteration=int(iteration),
        begin_s=begin_s,
        forward_end_s=forward_end_s,
        backward_end_s=backward_end_s,
        end_s=end_s,
        idle_s=idle_s,
    )
