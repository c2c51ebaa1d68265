"""Timelines of sharded training that were worked out by hand, and what may never happen."""

from dataclasses import replace
from itertools import pairwise

import pytest

from coarse.collectives.shape import Collective
from coarse.errors import ConfigError
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.report import rate_over_time
from coarse.strategy.sharding import COLLECTIVE, SHARDINGS, SIMULATED, Fcdp, Fsdp, Hybrid, OnDemand, Zero2, ZeroPP
from tests.support.volumes import TrainedShape, iteration_volume
from tests.unit.simulation.sharded_jobs import cluster, simulated, spans, units

MODES = [SHARDINGS[name]() for name in SIMULATED]
LORA = {"of": units(nbytes=2, frozen_nbytes=18)}


def test_fsdp_gathers_the_next_unit_while_one_computes():
    report = simulated(Fsdp())  # a gather or reduction sends 10 of 20 bytes over 10 bytes/s
    assert spans(report, "forward gather") == [("u0", 0, 1), ("u1", 1, 2)]
    assert spans(report, "backward gather") == [("u1", 2, 3), ("u0", 3, 4)]
    assert spans(report, "compute") == [("u0", 1, 2), ("u1", 2, 3), ("u1", 3, 5), ("u0", 5, 7)]
    assert spans(report, "reduce-scatter") == [("u1", 5, 6), ("u0", 7, 8)]
    assert (report.iteration_s, report.compute_s, report.exposed_s) == (8, 6, 2)


def test_one_unit_in_flight_hides_nothing_but_a_reduction():
    report = simulated(Fsdp(), in_flight_limit=1)
    assert spans(report, "compute") == [("u0", 1, 2), ("u1", 3, 4), ("u1", 5, 7), ("u0", 9, 11)]
    assert report.iteration_s == 12


def test_without_prefetch_backward_waits_for_a_reduction_and_then_for_a_gather():
    report = simulated(Fsdp(), backward_prefetch=False)
    assert spans(report, "reduce-scatter") == [("u1", 6, 7), ("u0", 10, 11)]
    assert spans(report, "backward gather") == [("u1", 3, 4), ("u0", 7, 8)]
    assert report.iteration_s == 11


def test_fcdp_loads_in_backward_what_forward_has_stored():
    report = simulated(Fcdp())  # 20 bytes to and from the host over 20 bytes/s
    assert spans(report, "store") == [("u0", 2, 3), ("u1", 3, 4)]
    assert spans(report, "backward gather") == [("u0", 3, 4), ("u1", 4, 5)]
    assert spans(report, "compute") == [("u0", 1, 2), ("u1", 2, 3), ("u1", 5, 7), ("u0", 7, 9)]
    assert report.iteration_s == 10


ROOT = (replace(units(1)[0], name="embedding", is_of_root=True), *units(1))


def test_as_fsdp2_has_it_the_root_stays_until_backward_has_ended_and_compute_waits_for_reductions():
    report = simulated(Fsdp(), of=ROOT, schedule=Schedule.FSDP2)
    assert spans(report, "forward gather") == [("root", 0, 1), ("u0", 1, 2)]
    assert spans(report, "backward gather") == [("u0", 3, 4)]
    assert spans(report, "compute") == [("embedding", 1, 2), ("u0", 2, 3), ("u0", 4, 6), ("embedding", 7, 9)]
    assert spans(report, "reduce-scatter") == [("u0", 6, 7), ("root", 9, 10)]
    assert report.iteration_s == 10
    assert simulated(Fsdp(), of=ROOT).iteration_s == 8  # a gather more, beside compute


def test_fsdp2_asks_for_a_unit_when_the_one_before_has_come_and_for_the_first_of_backward_when_forward_has_ended():
    report = simulated(Fsdp(), of=(*ROOT, *units(3)[1:]), schedule=Schedule.FSDP2)
    computed = {name: begin for name, begin, _ in spans(report, "compute")[:4]}
    asked = {name: begin for name, begin, _ in spans(report, "forward gather")}
    assert [asked[each] for each in ("u0", "u1", "u2")] == [computed[each] for each in ("embedding", "u0", "u1")]
    first, *_ = spans(report, "backward gather")
    assert first[:2] == ("u2", report.forward_end_s)


def test_buckets_of_gradients_are_none_of_fsdp2s():
    with pytest.raises(ConfigError, match="reduces the gradients of each unit by itself"):
        simulated(Fsdp(), schedule=Schedule.FSDP2, bucket_nbytes=100)


def test_units_that_stay_on_the_gpu_are_neither_stored_nor_loaded():
    report = simulated(Fcdp(), policy={"num_cached_units": 1})
    assert [unit for unit, _, _ in spans(report, "store")] == ["u1"]
    assert [unit for unit, _, _ in spans(report, "backward gather")] == ["u1"]


@pytest.mark.parametrize(
    ("mode", "forward", "backward", "reduced", "after"),
    [
        (Zero2(), 0, 0, 40, 40),
        (Fsdp(), 40, 40, 40, 0),
        (Hybrid(), 0, 0, 80, 0),
        (ZeroPP(), 40, 0, 40, 0),
        (Fcdp(), 40, 0, 40, 0),
    ],
)
@pytest.mark.parametrize("collective", list(Collective))
def test_each_mode_moves_between_nodes_what_table_1_says(mode, forward, backward, reduced, after, collective):
    report = simulated(mode, cluster(gpus_per_node=1), policy={"collective": collective})
    names = ("forward gather", "backward gather", "reduce-scatter", "gather after the step")
    assert [report.crossing_nbytes(name) for name in names] == [forward, backward, reduced, after]


@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("schedule", list(Schedule))
def test_simulated_bytes_are_those_of_the_formulas_that_live_runs_are_held_against(collective, lora, schedule):
    machine, of = cluster(num_nodes=2, gpus_per_node=2), units(3, nbytes=40, frozen_nbytes=400 if lora else 0)
    of = (replace(of[0], is_of_root=True), *of[1:])
    shape = TrainedShape(
        num_nodes=2, num_workers=4, parameter_nbytes=sum(unit.nbytes for unit in of), trainable_nbytes=120,
        gradient_nbytes=120, root_nbytes=of[0].nbytes if schedule is Schedule.FSDP2 else 0,
    )  # fmt: skip
    for mode in COLLECTIVE:
        wanted = iteration_volume(mode, shape, is_ring=collective is Collective.RING)
        policy = {"collective": collective}
        report = simulated(SHARDINGS[mode](), machine, of=of, policy=policy, schedule=schedule)
        forward, backward, reduced = (
            report.crossing_nbytes(name) / 2 for name in ("forward gather", "backward gather", "reduce-scatter")
        )
        assert (forward, backward) == (wanted.forward_gather, wanted.backward_gather), mode
        assert reduced == wanted.reduce_scatter + wanted.all_reduce


def test_a_ring_leaves_nodes_with_more_bytes_than_rails_do():
    machine = cluster(num_nodes=2, gpus_per_node=2)
    ring, rails = (
        simulated(Fsdp(), machine, policy={"collective": collective}).crossing_nbytes("forward gather")
        for collective in (Collective.RING, Collective.HIERARCHICAL)
    )
    assert (ring, rails) == (2 * 2 * 15, 2 * 2 * 10)  # units, nodes, and 3/4 or 1/2 of 20 bytes


def test_frozen_parameters_cross_for_zero3_and_not_for_fcdp_comm():
    whole = simulated(Fsdp(), **LORA)
    sched = simulated(Fcdp(comm=False), **LORA)
    comm = simulated(Fcdp(), **LORA)
    names = ("forward gather", "backward gather", "reduce-scatter")
    assert [whole.crossing_nbytes(name) for name in names] == [40, 40, 4]
    assert [sched.crossing_nbytes(name) for name in names] == [40, 0, 4]
    assert [comm.crossing_nbytes(name) for name in names] == [4, 0, 4]


def test_adapters_that_stay_gathered_cross_once_after_the_step():
    report = simulated(Fcdp(), policy={"keeps_adapters": True}, **LORA)
    assert report.crossing_nbytes("forward gather") == 0
    assert report.crossing_nbytes("gather after the step") == 4
    (gather,) = spans(report, "gather after the step")
    assert gather[1] == max(end_s for _, _, end_s in spans(report, "reduce-scatter"))
    assert report.iteration_s == gather[2]


def test_a_bucket_that_never_fills_is_reduced_after_the_last_unit():
    report = simulated(Fsdp(), bucket_nbytes=10**6)
    assert len(spans(report, "reduce-scatter")) == 1
    assert report.crossing_nbytes("reduce-scatter") == simulated(Fsdp()).crossing_nbytes("reduce-scatter")
    assert report.iteration_s > simulated(Fsdp()).iteration_s


def test_quantised_gathers_move_half_in_forward():
    report = simulated(ZeroPP(quantised=True))
    assert (report.crossing_nbytes("forward gather"), report.crossing_nbytes("reduce-scatter")) == (20, 40)


@pytest.mark.parametrize("network", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("gpus_per_node", [1, 2])
def test_a_lower_limit_never_speeds_up_what_one_stream_does(gpus_per_node, network):
    for mode in (Fsdp(), Zero2(), Hybrid()):
        times_s = times_by_limit(mode, Collective.RING, gpus_per_node, network)
        assert all(fast <= slow * (1 + 1e-9) for slow, fast in pairwise(times_s)), mode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collective", list(Collective))
def test_one_in_flight_is_never_faster_though_streams_share_ports(mode, collective):
    """More than two may be slower than two: what is wanted later takes a part of the port from what is wanted now."""
    for network in (1.0, 10.0, 100.0):
        alone_s, *others_s = times_by_limit(mode, collective, 2, network)
        assert max(others_s) <= alone_s * (1 + 1e-9)
        assert max(others_s) <= min(others_s) * 1.1


def times_by_limit(mode, collective, gpus_per_node, network):
    machine = cluster(gpus_per_node=gpus_per_node, network=network)
    times_s = []
    for limit in (1, 2, 3, 8):
        report = simulated(mode, machine, of=units(6), policy={"collective": collective}, in_flight_limit=limit)
        assert report.most_in_flight <= limit
        times_s.append(report.iteration_s)
    return times_s


@pytest.mark.parametrize("mode", MODES)
def test_no_iteration_is_shorter_than_its_compute_or_its_busiest_link(mode):
    machine = cluster(gpus_per_node=2, latency_s=0.01)
    report = simulated(mode, machine, of=units(4))
    assert report.iteration_s >= report.compute_s
    for link, nbytes in zip(machine.links, report.link_nbytes, strict=True):
        assert report.iteration_s >= nbytes / link.bytes_per_s * (1 - 1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_one_node_sends_nothing_to_others(mode):
    assert simulated(mode, cluster(num_nodes=1, gpus_per_node=4)).crossing_nbytes() == 0


def test_rates_over_time_add_up_to_the_bytes_that_crossed():
    report = simulated(Fsdp())
    rates = rate_over_time(report, [0.0, 0.5, 2.5, report.iteration_s])
    assert sum(rate * s for rate, s in zip(rates, (0.5, 2.0, 5.5), strict=True)) == pytest.approx(120)


def test_options_of_other_modes_are_refused():
    with pytest.raises(ConfigError, match="'odc' has no collectives"):
        ShardedPolicy(sharding=OnDemand())
    with pytest.raises(ConfigError, match="at least 1 unit"):
        simulated(Fsdp(), in_flight_limit=0)
