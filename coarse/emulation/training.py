"""A worker that replays its compute, while real gradients of the real shapes are synchronised; and its rows."""

from collections.abc import Sequence
from functools import partial

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
from coarse.simulation.adaptation import Profile
from coarse.simulation.report import WorkerIteration, with_idle_times
from coarse.strategy.rounds import By, SetOut, WorkerRounds


class EmulatedWorker:
    """One worker of an emulated job."""

    def __init__(self, rank: EmulatedRank, gpu: int | None = None) -> None:
        """`gpu`: where this worker's gradients are; None for device memory."""
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
        self.profiles: list[Profile] = []
        """Meetings at which the job was profiled as it ran."""
        self._open_keys()

    def train(self) -> list[WorkerIteration]:
        """All iterations; checks every sum. Kind: emulated."""
        rows = []
        every = self._job.profile_every
        self._meet(FabricPort.RUN)
        self._box.begin_run()
        for iteration in range(self._job.num_iterations):
            if iteration and every and iteration % every == 0:
                self._meet()
                self._profile_again(iteration)
            self._fill(iteration)
            rows.append(self._iterate(iteration))
            self._check(iteration)
        self._meet()
        return rows

    def _profile_again(self, iteration: int) -> None:
        """Measure; where that changes tables or split, all names are deregistered and register anew by these."""
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
        rounds = WorkerRounds()
        rounds.begin(job.round_at(iteration))
        handles: list[Handle] = []
        summed: list[int] = []
        for position, after_s in enumerate(moments.ready_s):
            box.go_on_until(min(forward_end_s + after_s, backward_end_s))
            self._set_out(rounds.on_ready(position), handles, summed)
        box.go_on_until(backward_end_s)
        self._set_out(rounds.on_backward_end(), handles, summed)
        self._client.link.wait_for(lambda: not self._under_way, None, "the workers' own all-reduces")
        for handle in handles:
            handle.wait()
        self._sums.take(summed)
        box.go_on_until(max(box.now_s, backward_end_s) + moments.decode_s)
        return WorkerIteration(
            worker=self._worker,
            iteration=iteration,
            begin_s=begin_s,
            forward_end_s=forward_end_s,
            backward_end_s=backward_end_s,
            end_s=box.now_s,
        )

    def _set_out(self, buckets: Sequence[SetOut], handles: list[Handle], summed: list[int]) -> None:
        """Push what the devices sum, and begin what the workers sum, all at one emulated time."""
        for position, by in buckets:
            place = self._places[position]
            if by is By.DEVICES:
                handles.append(self._gradients.push(place))
                continue
            summed.append(place)
            self._under_way.add(place)
            descriptor = self._descriptors[position]
            itemsize = DType(descriptor.dtype).accumulator.itemsize
            nbytes = descriptor.num_elements * itemsize
            self._spend(FabricPort.ALL_REDUCE, partial(self._on_summed, place), nbytes, itemsize)

    def _on_summed(self, place: int, _: float) -> None:
        self._under_way.remove(place)

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

    def _fill(self, iteration: int) -> None:
        self._gradients.fill(self._worker + 1 + iteration)
        self._sums.fill(self._worker + 1 + iteration)

    def _check(self, iteration: int) -> None:
        num_workers = self._job.num_workers
        total = sum(worker + 1 + iteration for worker in range(num_workers))
        for position, by in enumerate(self._job.round_at(iteration).by):
            if by is By.NOBODY:
                continue
            is_device, place, descriptor = by is By.DEVICES, self._places[position], self._descriptors[position]
            array = self._gradients.values(place) if is_device else self._sums.values(place)
            share = total / num_workers if is_device and descriptor.op == Op.AVERAGE else total
            wanted = stored(share, descriptor) if is_device else share
            if array.size and not (array[0] == array[-1] == wanted and (array == array[0]).all()):
                name = descriptor.name
                raise CoarseError(f"rank {self._worker}: the sum of {name!r} is {array[:3]}, wanted {wanted}")

    def _open_keys(self) -> None:
        """Regions of all gradients, on the side that synchronises each."""
        job = self._job
        self._descriptors = job.descriptors()
        by_devices, by_workers = (job.gradients_by(by) for by in (By.DEVICES, By.WORKERS))
        self._places = {at: place for them in (by_devices, by_workers) for place, at in enumerate(them)}
        of_devices = [self._descriptors[at] for at in by_devices]
        self._gradients = (
            Gradients(self._client, of_devices)
            if self._gpu is None
            else GradientsOnGpu(self._client, of_devices, self._gpu)
        )
        self._under_way: set[int] = set()
        """Places of all-reduces of which this worker waits for the sum."""
        self._sums = WorkerSums(
            self._runtime.worker_comm, self._client, self._rank.parts.memories,
            [self._descriptors[at] for at in by_workers],
        )  # fmt: skip

    def _close_keys(self) -> None:
        """Give all regions back; no neighbour reads them any more."""
        self._gradients.close()
        self._sums.close()


_FIELDS = ("worker", "iteration", "begin_s", "forward_end_s", "backward_end_s", "end_s", "idle_s")


def gather_rows(comm: MPI.Comm, rows: Sequence[WorkerIteration]) -> list[WorkerIteration]:
    """All workers' rows on every worker, with what each waited for the slowest."""
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
