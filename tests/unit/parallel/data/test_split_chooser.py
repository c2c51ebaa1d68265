"""How one worker follows the plan of an optimizer's split, with devices and other workers that a fake plays."""

from types import SimpleNamespace

import numpy as np
import pytest

from coarse.errors import CapacityError, InFlightError, StallError
from coarse.parallel.data.split_chooser import SplitChooser
from coarse.protocol.clock import VirtualClock
from coarse.protocol.config import Config, MeasuredRouting
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Cluster
from coarse.protocol.records import Descriptor
from coarse.protocol.units import MIB
from coarse.strategy.decisions import Decisions
from coarse.strategy.named import strategy_of

NUM_BUCKETS, BUCKET_BYTES = 8, 4 * MIB
BUCKETS = [
    Descriptor(f"bucket {index}", int(DType.FLOAT32), int(Op.AVERAGE), (BUCKET_BYTES // 4,), index)
    for index in range(NUM_BUCKETS)
]
WORKERS = 2


class Answer:
    """What a push or a submission of the fake machine comes to after a time of its clock."""

    def __init__(self, machine, seconds, array=None):
        self._machine = machine
        self._seconds = seconds
        self._array = array
        self._is_taken = False

    def wait(self, timeout=None):
        machine = self._machine
        if machine.num_stalls:
            machine.num_stalls -= 1
            raise StallError("another worker is late")
        if not self._is_taken:
            self._is_taken = True
            machine.clock.advance_to(machine.clock.now_s() + self._seconds)
            if self._array is not None:
                self._array *= machine.num_present
        return self._array


class Machine:
    """Client, stream and runtime at once: all workers have what this one has, and sums take time by their bytes."""

    def __init__(self, config, *, devices_s, workers_s):
        self.clock = VirtualClock()
        self.link = SimpleNamespace(clock=self.clock, job_clock=self.clock, pace=1.0, point=None)
        self.protocol = SimpleNamespace(epoch=1)
        self.strategy = strategy_of(config)
        self.decisions = Decisions(None, Cluster(worker_nodes=(0, 0), device_nodes=(0,), local_devices=(0, 0)))
        self.placement = SimpleNamespace(num_clients=WORKERS)
        self.seconds_per_mib = {"devices": devices_s, "workers": workers_s}
        self.num_present = WORKERS
        self.num_stalls = 0
        self.is_quiet = True
        self.has_room = True
        self.num_profiled = 0
        self.pushed, self.deregistered, self.counters = [], [], {}

    def require_client(self):
        return self

    def require_quiet(self):
        if not self.is_quiet:
            raise InFlightError("a result was not taken")

    def profile(self):
        self.num_profiled += 1
        self.protocol.epoch += 1

    # --- the client

    def host_array(self, descriptor):
        if "scratch" in descriptor.name and not self.has_room:
            raise CapacityError("no room")
        return np.zeros(descriptor.shape, DType(descriptor.dtype).storage)

    def push_pull(self, descriptor, array, out):
        self.pushed.append(descriptor.name)
        self.counters[descriptor.name] = {"pushes": 1}
        if array is None:  # it lies in device memory, and is measured
            return Answer(self, self._seconds("devices", descriptor))
        assert array is out
        return Answer(self, 0.0, array)

    def deregister(self, name):
        self.deregistered.append(name)

    # --- the workers' stream

    def open(self):
        return None

    def submit(self, descriptor, array):
        return Answer(self, self._seconds("workers", descriptor))

    def _seconds(self, way, descriptor):
        return 1e-5 + self.seconds_per_mib[way] * descriptor.nbytes / MIB


class Job:
    """Steps of one worker: `waits_s` tells by the split how long a step waits after backward."""

    def __init__(self, config=None, *, devices_s=0.02, workers_s=0.02, waits_s=lambda split: 0.01 * split):
        self.machine = Machine(config or Config(), devices_s=devices_s, workers_s=workers_s)
        self.chooser = SplitChooser(self.machine, self.machine, "optimizer/")
        self.waits_s = waits_s
        self.split = NUM_BUCKETS
        self.steps()

    def steps(self, number=1):
        """The splits of so many more rounds, each as it was decided at the border before it."""
        return [self._step() for _ in range(number)]

    def _step(self):
        clock, timer = self.machine.clock, self.chooser.timer
        used = self.split
        timer.on_stepped()
        clock.advance_to(clock.now_s() + 0.03)
        for index in range(NUM_BUCKETS):
            clock.advance_to(clock.now_s() + 0.005)
            timer.on_gradient()
            timer.on_bucket(index)
        clock.advance_to(clock.now_s() + self.waits_s(used))
        self.border()
        return used

    def border(self):
        self.split = self.chooser.next_round(BUCKETS).num_to_devices


def test_all_goes_to_the_devices_until_three_steps_were_timed():
    job = Job()
    assert job.steps(3) == [NUM_BUCKETS] * 3
    assert 0 < job.split < NUM_BUCKETS


def test_what_was_measured_is_what_passed():
    job = Job(waits_s=lambda split: 0.1 if split == NUM_BUCKETS else 0.01)
    job.steps(10)
    found = job.chooser.dual_sync
    assert found.step.forward_s == pytest.approx(0.035)
    assert found.step.backward_s == pytest.approx(0.035)
    assert found.step.step_s == pytest.approx(0.17)
    assert found.step.ready_s == pytest.approx([0.005 * index for index in range(NUM_BUCKETS)])
    for way, table in (("devices", found.ways.devices), ("workers", found.ways.workers)):
        for nbytes, seconds in table:
            assert seconds == pytest.approx(1e-5 + job.machine.seconds_per_mib[way] * nbytes / MIB)
    assert found.ways.devices[-1][0] == BUCKET_BYTES
    assert found.bytes_to_devices == found.num_to_devices * BUCKET_BYTES


def test_what_simulated_faster_is_kept_if_steps_are_faster_with_it():
    job = Job(waits_s=lambda split: 0.1 if split == NUM_BUCKETS else 0.01)
    *tried, kept = job.steps(8)[3:]
    assert set(tried) == {kept}
    assert kept < NUM_BUCKETS
    found = job.chooser.dual_sync
    assert (found.num_tried, found.num_to_devices) == (kept, kept)
    assert found.tried_step_s < found.step.step_s


def test_what_simulated_faster_is_given_up_if_steps_are_slower_with_it():
    job = Job(waits_s=lambda split: 0.01 if split == NUM_BUCKETS else 0.1)
    *tried, kept = job.steps(8)[3:]
    assert max(tried) < NUM_BUCKETS
    assert kept == NUM_BUCKETS
    assert job.chooser.dual_sync.tried_step_s > job.chooser.dual_sync.step.step_s


def test_the_papers_split_is_taken_without_a_trial():
    job = Job(Config(policy="paper"), waits_s=lambda split: 0.01 if split == NUM_BUCKETS else 0.1)
    splits = job.steps(20)[3:]
    assert len(set(splits)) == 1
    assert splits[0] < NUM_BUCKETS
    assert job.chooser.dual_sync.num_tried is None


def test_devices_that_are_faster_keep_all_and_nothing_is_tried():
    job = Job(devices_s=0.0001, workers_s=0.1)
    assert job.steps(20) == [NUM_BUCKETS] * 20
    assert job.chooser.dual_sync.num_to_devices == NUM_BUCKETS
    assert job.chooser.dual_sync.num_tried is None


def test_a_stall_while_measuring_is_tried_again_where_it_was():
    patient, stalling = Job(), Job()
    patient.steps(3)
    stalling.steps(2)
    stalling.machine.num_stalls = 5
    with pytest.raises(StallError):
        stalling.steps()
    for _ in range(4):
        with pytest.raises(StallError):
            stalling.border()
    stalling.border()
    assert stalling.machine.pushed == patient.machine.pushed
    assert stalling.split == patient.split


def test_measuring_leaves_no_scratch_tensor_and_counts_no_bytes():
    job = Job()
    job.steps(10)
    assert set(job.machine.deregistered) == {name for name in job.machine.pushed if "scratch" in name}
    assert job.machine.counters == {}


def test_a_device_without_room_for_scratch_tensors_keeps_all():
    job = Job()
    job.machine.has_room = False
    assert job.steps(20) == [NUM_BUCKETS] * 20
    assert job.chooser.dual_sync is None
    assert job.machine.pushed == ["optimizer/dual/24"]


def test_nothing_is_measured_while_a_worker_has_joined_and_everything_afterwards():
    job = Job()
    job.machine.num_present = WORKERS - 1
    assert job.steps(20) == [NUM_BUCKETS] * 20
    assert not [name for name in job.machine.pushed if "scratch" in name]
    job.machine.num_present = WORKERS
    job.chooser.restart()
    job.border()
    job.steps(10)
    assert job.chooser.dual_sync is not None


def test_a_round_that_was_not_seen_whole_is_measured_again():
    job = Job()
    job.border()
    job.steps(2)
    assert job.chooser.dual_sync is None
    job.steps(30)
    assert job.chooser.dual_sync is not None


@pytest.mark.parametrize("policy", ["devices", "paper", "auto"])
def test_profiling_every_so_many_steps_profiles_and_decides_again(policy):
    config = Config(policy=policy, routing=MeasuredRouting(profile_every_steps=10))
    job = Job(config, devices_s=0.0001, workers_s=0.1)
    for number in range(1, 4):
        job.steps(9)
        assert job.machine.num_profiled == number - 1
        job.steps()
        assert job.machine.num_profiled == number
        job.machine.seconds_per_mib = {"devices": 0.1, "workers": 0.0001}
    found = job.chooser.dual_sync
    assert (found is None) == (policy == "devices")
    assert found is None or found.ways.devices[-1][1] == pytest.approx(0.4, rel=0.01)


def test_profiling_every_step_still_comes_to_a_decision():
    job = Job(Config(routing=MeasuredRouting(profile_every_steps=1)), devices_s=0.0001, workers_s=0.1)
    job.steps(9)
    assert job.machine.num_profiled == 3
    assert job.chooser.dual_sync is not None


def test_routes_are_not_profiled_while_a_result_is_still_to_be_taken():
    config = Config(policy="devices", routing=MeasuredRouting(profile_every_steps=4))
    job = Job(config)
    job.machine.is_quiet = False
    job.steps(9)
    assert job.machine.num_profiled == 0
    job.machine.is_quiet = True
    job.steps(4)
    assert job.machine.num_profiled == 1


def test_a_decision_is_taken_anew_once_others_have_profiled():
    job = Job(devices_s=0.0001, workers_s=0.1)
    job.steps(10)
    first = job.chooser.dual_sync
    job.machine.profile()
    job.steps(3)
    assert job.chooser.dual_sync is first
    job.steps(1)
    assert job.chooser.dual_sync is not first


def test_new_buckets_are_measured_with_the_others():
    job = Job(devices_s=0.0001, workers_s=0.1)
    job.steps(10)
    first = job.chooser.dual_sync
    job.chooser.next_round([*BUCKETS, BUCKETS[-1]])
    assert job.chooser.next_round(BUCKETS).num_to_devices == NUM_BUCKETS
    job.steps(10)
    assert job.chooser.dual_sync is not first
