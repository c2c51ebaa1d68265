"""The step that a run has shown, simulated: what comes out of a simulation is what went in."""

from dataclasses import replace

import pytest

from coarse.emulation.account import Iteration, OwnStep, Push
from coarse.emulation.own_step import own_step
from coarse.errors import ConfigError
from coarse.hardware.presets import load_preset
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.job import Gradient, Job
from coarse.simulation.profiling import measured_facts
from coarse.simulation.training import simulate
from coarse.strategy.builtin import Allreduce, Coarse, Dense
from coarse.strategy.rounds import By, Round

GRADIENTS = tuple(Gradient(name=f"g{n}", num_elements=1 << 20, ready_s=0.001 * n) for n in range(3))


def job_of(strategy, by):
    cluster = ModelledCluster(machine=load_preset("cxl-cz120"), strategy=strategy, num_workers=2)
    facts = measured_facts(cluster.site(), cluster.placement.cluster, strategy) if strategy.probes else ((), ())
    return Job(
        site=cluster.site(), placement=cluster.placement, facts=facts, gradients=GRADIENTS, forward_s=0.002,
        backward_s=0.0035, round=Round(by=by, hold_back=False),
    )  # fmt: skip


def shown(job, *, slow=(1.0, 1.0)):
    """Two iterations of each worker, as a run of the job has them."""
    rows = []
    for worker, factor in enumerate(slow):
        for number in range(2):
            begin_s = 1.0 + number
            pushes = tuple(
                Push(begin_s + g.ready_s * factor, 0.0, 0.0, 0.0, g.name, g.num_elements, int(g.dtype), int(g.op),
                     by is By.WORKERS)
                for g, by in zip(job.gradients, job.round.by, strict=True)
            )  # fmt: skip
            forward_s, backward_s = job.forward_s * factor, job.backward_s * factor
            rows.append(Iteration(worker, begin_s, begin_s + 0.5, 0.4, 0.1, backward_s, forward_s, pushes))
    return rows


@pytest.mark.parametrize(("strategy", "by"), [
    (Coarse(), (By.DEVICES,) * 3), (Coarse(), (By.DEVICES, By.WORKERS, By.WORKERS)), (Dense(), (By.DEVICES,) * 3)
])  # fmt: skip
def test_a_step_that_a_job_would_show_is_simulated_as_the_job(strategy, by):
    job = job_of(strategy, by)
    template = replace(job, gradients=(), round=Round(by=()), forward_s=0.0, backward_s=0.0)
    found = own_step(template, shown(job), 2)
    assert isinstance(found, OwnStep)
    assert found.simulated_s == pytest.approx(simulate(job).iteration_s, rel=1e-12)
    assert found.emulated_s == 0.5


def test_a_slower_worker_is_waited_for():
    job = job_of(Coarse(), (By.DEVICES,) * 3)
    slow = own_step(job, shown(job, slow=(1.0, 2.0)), 2)
    assert isinstance(slow, OwnStep)
    assert slow.simulated_s == pytest.approx(simulate(replace(job, slow_downs=(1.0, 2.0))).iteration_s, rel=1e-12)


def test_workers_that_pushed_other_names_are_not_simulated():
    job = job_of(Coarse(), (By.DEVICES,) * 3)
    rows = shown(job)
    rows[0] = rows[0]._replace(pushes=rows[0].pushes[:2])
    assert own_step(job, rows, 2) == "workers pushed other names"
    assert own_step(job, [], 2) == "there are too few iterations"


def test_other_modes_are_simulated_on_their_own_places_and_those_without_any_are_left_out():
    job = job_of(Coarse(), (By.DEVICES,) * 3)

    def cluster_of(strategy):
        if isinstance(strategy, Dense):
            raise ConfigError("no place")
        return ModelledCluster(machine=load_preset("cxl-cz120"), strategy=strategy, num_workers=2)

    found = own_step(job, shown(job), 2, cluster_of)
    assert [name for name, _ in found.others] == ["coarse in_place", "coarse ring", "allreduce"]
    own = job_of(Coarse(collective="ring"), (By.DEVICES,) * 3)
    assert dict(found.others)["coarse ring"] == pytest.approx(simulate(own).iteration_s, rel=1e-12)
    summed = cluster_of(Allreduce())
    job = replace(
        job, site=summed.site(), placement=summed.placement, facts=((), ()),
        round=Round(by=(By.WORKERS,) * 3, hold_back=False),
    )  # fmt: skip
    assert dict(found.others)["allreduce"] == pytest.approx(simulate(job).iteration_s)
