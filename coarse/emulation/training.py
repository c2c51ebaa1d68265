"""A worker that replays its compute, while real gradients of the real shapes are synchronised; and its rows."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from coarse.client.client import Client
from coarse.client.handle import Handle
from coarse.emulation.gradients import Gradients, GradientsOnGpu, stored
from coarse.emulation.runtime import EmulatedRank
from coarse.emulation.worker_ring import EmulatedWorkerRing
from coarse.errors import CoarseError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.simulation.adaptation import Profile
from coarse.simulation.report import WorkerIteration, with_idle_times
from coarse.strategy.rounds import By, SetOut, WorkerRounds

_BELLS = "the workers' own ring"


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
        self._run_s = 0.0
        self.profiles: list[Profile] = []
        """Meetings at which the job was profiled as it ran."""
        self._open_keys()

    def train(self) -> list[WorkerIteration]:
        """All iterations; checks every sum. Kind: emulated."""
        rows = []
        every = self._job.profile_every
        for iteration in range(self._job.num_iterations):
            if iteration and every and iteration % every == 0:
                self._profile_again(iteration)
            self._fill(iteration)
            self._runtime.worker_comm.Barrier()
            self._start_alike()
            self._set_run_clock(self._box.now_s, goes=True)
            rows.append(self._iterate(iteration))
            self._end_alike(rows[-1])
            self._check(iteration)
            self._runtime.worker_comm.Barrier()  # a neighbour may still read what the next fill overwrites
        return rows

    def _profile_again(self, iteration: int) -> None:
        """Measure; where that changes tables or split, all names are deregistered and register anew by these."""
        profile = self._rank.look(iteration, self._run_s)
        self._run_s = profile.end_s
        self.profiles.append(profile)
        if profile.is_new:
            self._close_keys()
            self._job = self._rank.parts.job
            self._runtime.profile()
            self._open_keys()

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
        for position, after_s in enumerate(moments.ready_s):
            ready_s = min(forward_end_s + after_s, backward_end_s)
            self._compute_until(ready_s)
            self._set_out(rounds.on_ready(position), ready_s, handles)
        self._compute_until(backward_end_s)
        self._set_out(rounds.on_backward_end(), backward_end_s, handles)
        if self._ring is not None:
            self._client.link.wait_for(lambda: self._ring is None or self._ring.is_done, None, _BELLS)
        for handle in handles:
            handle.wait()
        end_s = max(box.now_s, backward_end_s) + moments.decode_s
        self._compute_until(end_s)
        return WorkerIteration(
            worker=self._worker,
            iteration=iteration,
            begin_s=begin_s,
            forward_end_s=forward_end_s,
            backward_end_s=backward_end_s,
            end_s=end_s,
        )

    def _compute_until(self, emulated_s: float) -> None:
        """Replayed compute: until then this worker only takes in what comes, as its ring goes on beside compute."""
        left_s = self._rank.parts.pace.wall_s_until(emulated_s)
        if left_s > 0:
            self._client.link.wait_until(lambda: False, left_s)
        self._box.now_s = max(self._box.now_s, emulated_s)

    def _set_out(self, buckets: Sequence[SetOut], ready_s: float, handles: list[Handle]) -> None:
        """Push what the devices sum, and give the workers' ring what it sums, all at one emulated time."""
        ring, link = self._ring, self._client.link
        with self._box.as_of(ready_s):
            for position, by in buckets:
                if by is By.DEVICES:
                    handles.append(self._gradients.push(self._places[position]))
                    continue
                assert ring is not None
                with link.lock:
                    ring.push(self._places[position])
                    link.ring_bells()

    def _start_alike(self) -> None:
        """All workers begin an iteration at one emulated time: the latest of theirs."""
        self._box.now_s = self._latest(max(self._box.now_s, self._rank.parts.pace.now_s()))

    def _end_alike(self, row: WorkerIteration) -> None:
        """The run is older by this iteration, and stands until the next."""
        end_s = self._latest(row.end_s)
        self._run_s += end_s - row.begin_s
        self._set_run_clock(end_s, goes=False)

    def _latest(self, emulated_s: float) -> float:
        latest = np.array([emulated_s])
        self._runtime.worker_comm.Allreduce(MPI.IN_PLACE, latest, MPI.MAX)
        return float(latest[0])

    def _set_run_clock(self, at_s: float, *, goes: bool) -> None:
        if self._worker == 0 and self._job.rate_changes:
            with self._client.link.lock:
                self._box.set_run_clock(at_s, self._run_s, goes=goes)

    # --- real bytes

    def _fill(self, iteration: int) -> None:
        self._gradients.fill(self._worker + 1 + iteration)
        for array in self._ring_arrays:
            array.fill(self._worker + 1 + iteration)

    def _check(self, iteration: int) -> None:
        num_workers = self._job.num_workers
        total = sum(worker + 1 + iteration for worker in range(num_workers))
        for position, by in enumerate(self._job.round_at(iteration).by):
            if by is By.NOBODY:
                continue
            is_device, place, descriptor = by is By.DEVICES, self._places[position], self._descriptors[position]
            array = self._gradients.values(place) if is_device else self._ring_arrays[place]
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
        self._ring = self._open_ring([self._descriptors[at] for at in by_workers])

    def _close_keys(self) -> None:
        """Give all regions back; no neighbour reads them any more."""
        self._gradients.close()
        if self._ring is not None:
            self._client.free(0, self._ring_offset)

    def _open_ring(self, descriptors: Sequence[Descriptor]) -> EmulatedWorkerRing | None:
        """Regions of the ring's gradients, and where the previous worker has its own."""
        self._ring_arrays: list[np.ndarray] = []
        if not descriptors:
            return None
        comm = self._runtime.worker_comm
        nbytes = sum(map(_ring_nbytes, descriptors))
        self._ring_offset, region = self._client.allocate(0, nbytes)
        offsets = np.empty(self._job.num_workers, np.int64)
        comm.Allgather(np.array([self._ring_offset], np.int64), offsets)
        previous = self._rank.parts.memories[0].view(int(offsets[self._worker - 1]), nbytes)
        self._ring_arrays = _cut(region, descriptors)
        return EmulatedWorkerRing(
            self._worker, self._job.num_workers, self._box, self._ring_arrays, _cut(previous, descriptors)
        )


def _cut(region: np.ndarray, descriptors: Sequence[Descriptor]) -> list[np.ndarray]:
    """(nbytes,) uint8 as one (n,) array for each descriptor, of the type in which workers sum it."""
    arrays, begin = [], 0
    for descriptor in descriptors:
        nbytes = _ring_nbytes(descriptor)
        arrays.append(region[begin : begin + nbytes].view(DType(descriptor.dtype).accumulator))
        begin += nbytes
    return arrays


def _ring_nbytes(descriptor: Descriptor) -> int:
    return descriptor.num_elements * DType(descriptor.dtype).accumulator.itemsize


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
