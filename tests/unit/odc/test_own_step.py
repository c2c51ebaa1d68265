"""Minibatches of an emulated run, simulated: by their own reads, pushes and compute, and by nothing else."""

import math

import pytest

from coarse.emulation.account import Iteration, Logged, Waited
from coarse.hardware.presets import load_preset
from coarse.odc.layout import OdcDeclaration, OdcUnit
from coarse.odc.simulation.own_step import own_minibatches
from coarse.protocol.dtypes import DType
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.job import Job
from coarse.strategy.builtin import Coarse
from coarse.strategy.rounds import Round
from coarse.strategy.sharding import Sum

SHARD = 1 << 20
"""Bytes of a worker's half of the only unit, of which nothing is trained."""
COUNT = 3


@pytest.fixture(scope="module")
def job():
    cluster = ModelledCluster(
        machine=load_preset("cxl-cz120"), strategy=Coarse(), num_workers=2, num_devices=1, is_exact=True
    )
    return Job(
        site=cluster.site(), placement=cluster.placement, facts=(), gradients=(), forward_s=0.0, backward_s=0.0,
        round=Round(by=()),
    )  # fmt: skip


def declared(members=(0, 1)):
    unit = OdcUnit(SHARD, (), int(DType.FLOAT32))
    return OdcDeclaration(members=members, units=(unit,), sum=Sum.INT64, cache_bytes=0, top=18, num_slots=4)


def logged(step_s, forward_s, members=(0, 1), besides=(), options=None):
    """A worker that steps, reads the unit once and computes; two seconds pass in each minibatch."""
    waits, computed_s = [], 0.0
    for number in range(COUNT + 1):
        waits.append(Waited(2.0 * number, computed_s, "end of call 1 of fully_shard"))
        waits += [Waited(2.0 * number + 0.5, computed_s, point) for point in besides]
        waits.append(Waited(2.0 * number + 1.0, computed_s + step_s, "wait forward gather of root"))
        computed_s += step_s + forward_s
    said = {"declarations": [declared(members).to_text()], "units": ["root"], "trees": 1} | (options or {})
    return Logged([], {}, 0.0, "", "odc", said, {}, (0.0, math.inf), waits, (0, 0), [])


ROWS = [Iteration(worker, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, ()) for worker in (0, 1) for _ in range(COUNT)]


def read_s(job, nbytes, ways):
    links = [job.site.links[link] for link in ways[0, 0]]
    return sum(link.latency_s for link in links) + nbytes / min(link.bytes_per_s for link in links)


@pytest.mark.parametrize("besides", [(), ("wait all_reduce", "wait")])
def test_a_minibatch_takes_its_compute_and_the_read_of_what_never_changes(job, besides):
    logs = [logged(2e-3, 1e-3, besides=besides)] * 2
    found = own_minibatches(job, logs, ROWS)
    both = 2 * read_s(job, 2 * SHARD, job.site.pull)  # the workers share the device's port
    assert 3e-3 < found.simulated_s <= 3e-3 + both
    assert found.emulated_s == pytest.approx(2.0)
    slower = own_minibatches(job, logs, ROWS, 2.0)
    assert slower.simulated_s - found.simulated_s == pytest.approx(3e-3, rel=1e-6)


def test_models_of_several_calls_are_one(job):
    one = [logged(2e-3, 1e-3)] * 2
    halves = [declared().to_text()] * 2
    two = [logged(2e-3, 1e-3, options={"declarations": halves, "units": ["root", "layers.0"]})] * 2
    assert own_minibatches(job, two, ROWS).simulated_s == pytest.approx(own_minibatches(job, one, ROWS).simulated_s)


def test_workers_are_those_of_the_declaration_in_its_order(job):
    logs = [logged(2e-3, 1e-3, members=(1, 0)), logged(5e-3, 1e-3, members=(1, 0))]
    swapped = [logged(5e-3, 1e-3), logged(2e-3, 1e-3)]
    found = own_minibatches(job, logs, ROWS)
    assert found.simulated_s > 6e-3
    assert found.simulated_s == pytest.approx(own_minibatches(job, swapped, ROWS).simulated_s, rel=1e-2)


def test_what_cannot_be_simulated_is_said(job):
    several = logged(1e-3, 1e-3, options={"trees": 2})
    assert own_minibatches(job, [several] * 2, ROWS) == "several models end their minibatches apart"
    unlike = [declared().to_text(), declared((1, 0)).to_text()]
    several = logged(1e-3, 1e-3, options={"declarations": unlike})
    assert own_minibatches(job, [several] * 2, ROWS).startswith("parts of the model are fetched by unlike workers")
    alone = logged(1e-3, 1e-3, members=(0,))
    assert own_minibatches(job, [alone] * 2, ROWS) == "some workers have no part of the model"
    short = logged(1e-3, 1e-3)
    short = short._replace(waits=short.waits[:1])
    assert own_minibatches(job, [short] * 2, ROWS) == "there are too few iterations"


def microbatches(counts, forward_s, backward_s):
    """A worker whose minibatches have so many microbatches of one unit."""
    waits, computed_s, at_s = [], 0.0, 0.0

    def wait(point, seconds):
        nonlocal computed_s, at_s
        waits.append(Waited(at_s, computed_s, point))
        computed_s, at_s = computed_s + seconds, at_s + 1.0

    for count in (*counts, 0):
        wait("end of call 1 of fully_shard", 0.0)
        for _ in range(count):
            wait("wait forward gather of root", forward_s)
            wait("wait backward gather of root", backward_s)
    return logged(0.0, 0.0)._replace(waits=waits)


def test_modes_by_collectives_take_the_slowest_worker_of_each_microbatch(job):
    logs = [microbatches([2, 2], 1e-3, 5e-3), microbatches([2, 2], 3e-3, 2e-3)]
    others = dict(own_minibatches(job, logs, ROWS, with_others=True).others)
    assert set(others) == {"fsdp", "hybrid", "zeropp", "fcdp"}
    assert 2 * 8e-3 < others["fsdp"] < 2 * 8e-3 + 4 * 2 * read_s(job, 2 * SHARD, job.site.pull)
    assert others["fsdp"] == pytest.approx(others["hybrid"])


def test_modes_by_collectives_have_no_unequal_microbatches(job):
    logs = [microbatches([2, 2], 1e-3, 2e-3), microbatches([1, 3], 1e-3, 2e-3)]
    assert own_minibatches(job, logs, ROWS, with_others=True).others == ()
    alike = [logs[0]] * 2
    assert own_minibatches(job, alike, ROWS).others == ()
