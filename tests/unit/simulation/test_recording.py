"""What a recording keeps of a simulated job."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from coarse.hardware.compute import compute_profile
from coarse.hardware.links import Link
from coarse.hardware.models import Precision, resnet50
from coarse.hardware.presets import load_preset
from coarse.protocol.config import MODES
from coarse.simulation.job import Job
from coarse.simulation.recording import RecordingEngine, Transfer
from coarse.simulation.scenario import Scenario
from coarse.simulation.training import simulate

MACHINE = load_preset("aws-p3")
MODEL = resnet50()
PROFILE = compute_profile(MODEL, "v100", 2, Precision.FP32)


def job_of(mode: str) -> Job:
    """Two workers, one iteration."""
    scenario = Scenario(
        machine=MACHINE, model=MODEL, profile=PROFILE, mode=mode, num_workers=2, policy="devices"
    )
    return replace(scenario.job(), num_iterations=1)


@pytest.mark.parametrize("mode", MODES)
def test_recording_changes_no_number(mode):
    job = job_of(mode)
    plain, recorded = simulate(job), simulate(job, record=True)
    assert plain.iterations == recorded.iterations
    assert plain.link_bytes == recorded.link_bytes
    assert plain.recording is None


@pytest.mark.parametrize("mode", MODES)
def test_recorded_transfers_carry_all_bytes_of_every_link(mode):
    job = job_of(mode)
    report = simulate(job, record=True)
    carried = Counter()
    for each in report.recording.transfers():
        for link in each.path:
            carried[job.site.links[link].name] += each.nbytes
    assert carried == pytest.approx({name: nbytes for name, nbytes in report.link_bytes.items() if nbytes})


@pytest.mark.parametrize("mode", MODES)
def test_a_port_sends_one_thing_at_a_time(mode):
    by_port = {}
    for each in simulate(job_of(mode), record=True).recording.transfers():
        by_port.setdefault(each.port, []).append(each)
    for transfers in by_port.values():
        assert all(before.end_s <= after.begin_s <= after.end_s for before, after in pairwise(transfers))


def test_every_gradient_of_every_worker_is_seen_until_it_is_there():
    job = job_of("coarse")
    report = simulate(job, record=True)
    everything = {(worker, position) for worker in range(2) for position in range(len(job.gradients))}
    assert {(sync.worker, sync.position) for sync in report.syncs} == everything
    assert max(sync.end_s for sync in report.syncs) == max(row.end_s for row in report.iterations)


def test_progress_ends_when_everything_is_synchronised():
    job, seen = job_of("coarse"), []
    simulate(job, on_progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, 2 * len(job.gradients) + 1))
    assert seen[-1][0] == seen[-1][1]


def test_transfers_in_turns_are_recorded_as_one_until_the_last_has_ended():
    engine = RecordingEngine([Link(name="wire", latency_s=1.0, bytes_per_s=100.0)])
    engine.move_in_turns(("ring", 0), (0,), 100, 3, lambda: None, priority=7)
    engine.run()
    assert list(engine.recording.transfers()) == [Transfer(("ring", 0), 7, (0,), 300, 2.0, 6.0)]


def test_work_is_recorded_from_when_the_processor_is_free():
    engine = RecordingEngine([])
    for seconds in (2.0, 3.0):
        engine.work(("adder", 1), seconds, lambda: None)
    engine.run()
    assert [(work.begin_s, work.end_s) for work in engine.recording.works()] == [(0.0, 2.0), (2.0, 5.0)]
