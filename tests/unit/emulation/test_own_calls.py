"""Calls of a run, one by one on a virtual clock: what they take, what hides them, and who waits for ever."""

import math

import pytest

from coarse.emulation.account import Iteration, Logged, Push, Waited
from coarse.emulation.own_calls import is_gathered, own_calls
from coarse.hardware.presets import load_preset
from coarse.protocol.joint import CollectiveKind, Joint, Meeting
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.job import Job
from coarse.strategy.builtin import Coarse
from coarse.strategy.rounds import Round

BOTH = Meeting((0, 1), 1)
NBYTES = 1 << 20
GATHER = Joint(CollectiveKind.ALL_GATHER, NBYTES)
COUNT = 4


@pytest.fixture(scope="module")
def job():
    cluster = ModelledCluster(machine=load_preset("cxl-cz120"), strategy=Coarse(), num_workers=2, num_devices=2)
    return Job(
        site=cluster.site(), placement=cluster.placement, facts=(), gradients=(), forward_s=0.0, backward_s=0.0,
        round=Round(by=()),
    )  # fmt: skip


@pytest.fixture(scope="module")
def gather_s(job):
    path = [job.site.links[link] for link in job.site.between_workers[0, 1]]
    return sum(link.latency_s for link in path) + NBYTES / min(link.bytes_per_s for link in path)


def logged(before_s, hidden_s, is_waited=True, meeting=BOTH):
    """A worker that computes, gathers, computes while that is under way, and waits; a second passes in each step."""
    pushes, waits = [], []
    for number in range(COUNT + 1):
        computed_s = number * (before_s + hidden_s)
        pushes.append(Push.of_call(float(number), computed_s, 0.0, 0.0, "all_gather", GATHER, meeting))
        if is_waited:
            waits.append(Waited(number + 0.5, computed_s + hidden_s, "wait all_gather"))
    return Logged(pushes, {}, 0.0, "", "", {}, {}, (0.0, math.inf), waits, (0, 0), [])


def rows(worker, compute_s):
    return [
        Iteration(worker, float(n), n + 1.0, compute_s, 1.0 - compute_s, 0.0, 0.0, ()) for n in range(COUNT)
    ]


@pytest.mark.parametrize("hidden_s", [0.0, 5e-6, 1.0])
def test_a_step_takes_its_compute_and_what_the_wait_exposes(job, gather_s, hidden_s):
    logs = [logged(1e-5, hidden_s)] * 2
    found = own_calls(job, logs, [*rows(0, 1e-5 + hidden_s), *rows(1, 1e-5 + hidden_s)])
    assert found.simulated_s == pytest.approx(1e-5 + max(hidden_s, gather_s), rel=1e-9)
    assert found.emulated_s == pytest.approx(1.0)
    slower = own_calls(job, logs, [*rows(0, 1e-5 + hidden_s), *rows(1, 1e-5 + hidden_s)], 2.0)
    assert slower.simulated_s == pytest.approx(2e-5 + max(2 * hidden_s, gather_s), rel=1e-9)


def test_the_slower_worker_is_waited_for(job, gather_s):
    logs = [logged(1e-5, 0.0), logged(3e-4, 0.0)]
    found = own_calls(job, logs, [*rows(0, 1e-5), *rows(1, 3e-4)])
    assert found.simulated_s == pytest.approx(3e-4 + gather_s, rel=1e-9)


def test_calls_that_nobody_else_makes_are_said(job):
    logs = [logged(1e-5, 0.0), logged(1e-5, 0.0, meeting=Meeting((0, 1), 2))]
    assert own_calls(job, logs, [*rows(0, 1e-5), *rows(1, 1e-5)]) == "its last calls do not fit together"
    assert own_calls(job, logs, rows(0, 1e-5)) == "there are too few iterations"


def test_steps_are_gathered_where_most_bytes_are():
    gathered = logged(1e-5, 0.0)
    norm = Push(0.5, 0.0, 0.0, 0.0, "norm", 1, 0, 0, True, CollectiveKind.ALL_REDUCE, (0, 1))
    summed = replace_pushes(gathered, [norm._replace(num_elements=NBYTES)])
    assert is_gathered(replace_pushes(gathered, [*gathered.pushes, norm]), rows(0, 1e-5))
    assert not is_gathered(summed, rows(0, 1e-5))
    assert not is_gathered(gathered, [])


def replace_pushes(log, pushes):
    return log._replace(pushes=pushes)
