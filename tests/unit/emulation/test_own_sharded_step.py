"""Sharded steps that an emulated run has shown, as the simulator is asked about them."""

import pytest

from coarse.collectives.shape import Collective
from coarse.emulation.account import Iteration, Logged, Push, Waited
from coarse.emulation.live import _job_on
from coarse.emulation.modelled import modelled_cluster
from coarse.emulation.own_sharded_step import own_sharded_step
from coarse.hardware.presets import load_preset
from coarse.protocol.config import Config, EmulateSettings
from coarse.protocol.joint import CollectiveKind, Joint, Meeting
from coarse.simulation.sharded.iteration import simulate_sharded
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.routes import SiteRoutes
from coarse.simulation.sharded.units import Unit
from coarse.strategy.builtin import Coarse
from coarse.strategy.sharding import SHARDINGS

EVERYBODY = (0, 1)
MEETING = Meeting(EVERYBODY, 1)
ROOT, BLOCK = 4000, 80_000
"""Bytes of the two units."""
STEPS = (
    # What is called or waited for, its kind, the bytes of a member, and milliseconds of compute that follow a wait.
    ("forward gather of root", CollectiveKind.ALL_GATHER, ROOT // 2, 1.0),
    ("forward gather of h.0", CollectiveKind.ALL_GATHER, BLOCK // 2, 2.0),
    ("backward gather of h.0", CollectiveKind.ALL_GATHER, BLOCK // 2, 3.0),
    ("gradient reduce-scatter of h.0", CollectiveKind.REDUCE_SCATTER, BLOCK, 0.0),
    ("gradient reduce-scatter of root", CollectiveKind.REDUCE_SCATTER, ROOT, 0.5),
)


@pytest.fixture(scope="module")
def job():
    settings = EmulateSettings(machine="fcdp-a40-10gbe", nodes=2)
    return _job_on(modelled_cluster(load_preset(settings.machine), settings, 2, 2, Config(), Coarse()))


def log_of(mode="fsdp", *, slow=1.0, has_agreement=False, **options):
    """One worker's steps, a second apart, whose compute takes `slow` times as long."""
    pushes, waits, computed_s = [], [], 0.0
    for number in range(4):
        for place, (name, kind, nbytes, milliseconds) in enumerate(STEPS):
            at_s = number + 0.01 * place
            joint = Joint(kind, nbytes, 4 if kind is CollectiveKind.REDUCE_SCATTER else 1)
            pushes.append(Push.of_call(at_s, computed_s, 0.0, 0.0, name, joint, MEETING))
            waits.append(Waited(at_s, computed_s, f"wait {name}"))
            computed_s += 1e-3 * milliseconds * slow
        if has_agreement:
            joint = Joint(CollectiveKind.ALL_REDUCE, 5, is_ring=False)
            pushes.append(Push.of_call(number + 0.5, computed_s, 0.0, 0.0, "agreement on changes", joint, MEETING))
    said = {"collective": "hierarchical", **options}
    return Logged(pushes, {}, 0.0, "", mode, said, {}, (0.0, float("inf")), waits, (0, 0), [])


def rows_of(log, worker, *, slow=1.0):
    compute_s = 1e-3 * sum(step[3] for step in STEPS) * slow
    return [
        Iteration(
            worker=worker, begin_s=float(number), end_s=number + 1.0, compute_s=compute_s, exposed_s=1.0 - compute_s,
            backward_s=0.0, forward_s=0.0, pushes=(log.pushes[0],),
        )
        for number in range(3)
    ]  # fmt: skip


def simulated_s(job, slow=1.0, mode="fsdp"):
    """The same units, asked directly."""
    units = (
        Unit(name="root", trainable_nbytes=ROOT, forward_s=1e-3 * slow, backward_s=0.0, is_of_root=True),
        Unit(name="h.0", trainable_nbytes=BLOCK, forward_s=2e-3 * slow, backward_s=3e-3 * slow),
    )
    routes = SiteRoutes(site=job.site, workers=EVERYBODY, worker_nodes=(0, 1))
    policy = ShardedPolicy(sharding=SHARDINGS[mode](), collective=Collective.HIERARCHICAL)
    return simulate_sharded(ShardedJob(units=units, routes=routes, policy=policy)).iteration_s + 0.5e-3 * slow


def test_units_have_their_bytes_and_the_compute_that_follows_their_waits_and_the_slowest_worker_counts(job):
    logs = [log_of(), log_of(slow=2.0)]
    rows = [*rows_of(logs[0], 0), *rows_of(logs[1], 1, slow=2.0)]
    found = own_sharded_step(job, logs, rows, with_others=True)
    assert found.emulated_s == 1.0
    assert found.simulated_s == pytest.approx(simulated_s(job, slow=2.0), rel=1e-9)
    assert dict(found.others)["fcdp"] == pytest.approx(simulated_s(job, 2.0, "fcdp"), rel=1e-9)
    assert [name for name, _ in found.others] == ["hybrid", "zeropp", "fcdp"]


def test_agreements_are_added_and_what_is_not_simulated_is_said(job):
    logs = [log_of(has_agreement=True) for _ in EVERYBODY]
    rows = [row for worker in EVERYBODY for row in rows_of(logs[worker], worker)]
    with_agreement = own_sharded_step(job, logs, rows, with_others=True).simulated_s
    assert 0 < with_agreement - simulated_s(job) < 1e-3  # a few messages of one byte and more between nodes
    for mode, options, said in (
        ("Mine", {}, "a sharded mode of a file"),
        ("zeropp", {"quantised": True}, "gathers of int8 are not simulated as they run"),
    ):
        others = [log_of(mode, **options) for _ in EVERYBODY]
        assert own_sharded_step(job, others, rows) == said
    assert own_sharded_step(job, logs, []) == "there are too few iterations"
