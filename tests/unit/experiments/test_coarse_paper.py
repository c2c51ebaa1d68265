"""Goldens of the paper's evaluation: claims that come out alike until a model or an input changes on purpose."""

import sys
from dataclasses import replace

import pytest

from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import load_preset
from experiments.coarse_paper import fig3_cci_bandwidth, fig16_speedup, fig17_blocked_time, paper, solved
from experiments.coarse_paper.cells import Cell, outcome, under
from experiments.coarse_paper.inputs import CENTRAL, DECLARED, Platform
from experiments.coarse_paper.reasons import why_not
from experiments.coarse_paper.ring_utilisation import num_sets, rings
from experiments.coarse_paper.settings import blocked_ratio, settings, speedup
from experiments.validate import PAGE
from experiments.validation.claims import HEAD, Verdict
from experiments.validation.declared import require_declared
from experiments.validation.page import markdown

SLOW = (fig16_speedup.__name__, fig17_blocked_time.__name__)
QUICK = [sys.modules[each.command.split()[-1]] for each in paper.COARSE.figures if each.rows]
QUICK = [figure for figure in QUICK if figure.__name__ not in SLOW]
"""Those whose rows take seconds."""
GOLDENS = {
    "T4, 4 GPUs: largest share of communication in training time over the models": "57.7%",
    "V100: bidirectional bandwidth, remote over local, 2 to 64 MiB": "1.79x to 1.82x",
    "P100: bidirectional bandwidth, remote over local, 2 to 64 MiB": "0.57x to 0.71x",
    "prototype: GPU Direct over CCI, read, 64 KiB up": "9.00x to 16.99x",
    "V100: latency's share of a copy's time on p3, 64 KiB and 2 MiB": "7.7% to 63.6%",
    "P100: latency's share of a copy's time on SDSC, 64 KiB and 2 MiB": "7.1% to 61.9%",
    "T4: all-reduce's part of the communication; the rest copies inputs to GPUs": "46.8% to 100.0%",
}
V100 = Cell(platform=Platform.V100, policy="paper")
OVER_PCIE = replace(V100, inputs=replace(CENTRAL, copies_over_nvlink=False))


@pytest.fixture(scope="module")
def quick_rows():
    return {row.claim: row for figure in QUICK for row in figure.rows()}


def test_no_claim_stands_twice(quick_rows):
    assert len(quick_rows) == sum(len(figure.rows()) for figure in QUICK)


@pytest.mark.parametrize("claim", GOLDENS)
def test_a_golden_comes_out_again(quick_rows, claim):
    assert quick_rows[claim].ours_text == GOLDENS[claim]


def test_every_order_of_links_and_routes_that_the_paper_states_is_reproduced(quick_rows):
    orders = [row for row in quick_rows.values() if row.paper_range is None and row.verdict is not Verdict.INPUT]
    assert len(orders) == 13
    missed = [row.source for row in orders if row.verdict is not Verdict.ORDERING]
    assert missed == ["II-B, Fig. 2b"]  # two GPUs with AlexNet, whose images take as long as its ring


def test_ratios_that_the_machine_was_made_from_count_as_inputs():
    assert {row.verdict for row in fig3_cci_bandwidth.rows()} == {Verdict.INPUT}


def test_rows_name_declared_inputs_and_misses_their_reason(quick_rows):
    for row in (*quick_rows.values(), *fig16_speedup.memory_rows()):
        require_declared(row.inputs, DECLARED)
        assert row.why or row.verdict is not Verdict.MISSED, row.claim


def test_the_papers_batch_limits_hold_in_fp32_on_16_gb_alone():
    for mixed, memory_gib in ((True, 32), (True, 16), (False, 32), (False, 16)):
        with under(replace(CENTRAL, mixed_precision=mixed, v100_memory_gib=memory_gib)):
            (row,) = fig16_speedup.memory_rows()
            assert (row.verdict is Verdict.ORDERING) == (not mixed and memory_gib == 16)
    assert fig16_speedup.memory_limits(Precision.FP32, 16) == [3, 7]


def test_cells_that_differ_in_what_their_mode_ignores_are_one():
    ring = V100.baseline("allreduce")
    assert ring.essential() == replace(ring, inputs=replace(CENTRAL, sharer_growth=1.0)).essential()
    assert V100.essential() == replace(V100, num_devices=2).essential()
    assert V100.essential() != replace(V100, nvlink=False).essential()


@pytest.mark.parametrize("stores_overlap", [True, False])
def test_a_parameter_server_that_hides_nothing_of_its_loads_is_slower_by_them(stores_overlap):
    inputs = replace(CENTRAL, stores_overlap=stores_overlap)
    server = Cell(platform=Platform.T4, mode="dense", inputs=inputs)
    following = outcome(replace(server, inputs=replace(inputs, loads_wait=False)))
    nbytes = 4 * model_named("bert-large").num_parameters
    bus = CENTRAL.serial_bus(Platform.T4)
    loads_s = nbytes / (bus / 17) * 1.2
    assert following.iteration_s < outcome(server).iteration_s < following.iteration_s + loads_s
    stores_s = nbytes / (bus / 4) * 1.2
    least_s = loads_s + (max(stores_s, outcome(server).compute_s) if stores_overlap else stores_s)
    assert outcome(server).iteration_s > least_s


@pytest.mark.parametrize(("num_workers", "gain"), [(2, 1.0), (4, 2.0)])
def test_a_ring_of_nvlinks_in_both_directions_gains_what_its_cables_leave_idle(num_workers, gain):
    ring = Cell(platform=Platform.V100, mode="allreduce", num_workers=num_workers)
    one_way = replace(ring, inputs=replace(CENTRAL, rings_both_ways=False))
    assert outcome(one_way).exposed_s / outcome(ring).exposed_s == pytest.approx(gain, rel=0.02)


def test_the_papers_formula_splits_by_rates_of_pcie_with_nvlink_on_and_off():
    shares = [outcome(replace(V100, nvlink=nvlink)).proxy_share for nvlink in (True, False)]
    assert shares[0] == shares[1] < 1.0
    seen = replace(CENTRAL, profiler_sees_nvlink=True)
    assert outcome(replace(V100, inputs=seen)).proxy_share == 1.0


def test_two_v100_by_the_papers_formula_take_the_time_that_they_took():
    assert outcome(OVER_PCIE).iteration_s == pytest.approx(0.2149, rel=0.02)
    assert speedup(OVER_PCIE) == pytest.approx(12.23, rel=0.02)
    assert outcome(V100).iteration_s < 0.6 * outcome(OVER_PCIE).iteration_s


def test_the_profiler_leaves_nvlink_out_whatever_pushes_take():
    wide = Cell(platform=Platform.V100, policy="paper", num_workers=4)
    job, by_pcie = wide.job(), replace(wide, nvlink=False).job()
    assert job.facts == by_pcie.facts
    assert job.num_to_devices == by_pcie.num_to_devices
    seen = replace(wide, inputs=replace(CENTRAL, profiler_sees_nvlink=True)).job()
    assert seen.facts != by_pcie.facts


def test_the_ceiling_of_a_speed_up_is_dense_over_compute():
    cell = Cell(platform=Platform.T4, model="resnet50", batch=64, policy="paper")
    assert "no synchronisation, however fast, gains more than 3.4x" in why_not(cell, 3.5)


def test_inputs_that_were_put_right_change_what_they_should_and_nothing_else():
    """T4 alone: eight lanes halve DENSE's rates, and slow rings and copies as well."""
    server, ring = (Cell(platform=Platform.T4, mode=mode) for mode in ("dense", "allreduce"))
    old = replace(CENTRAL, wide_t4=True, own_bus=False)
    assert outcome(server).iteration_s > 1.5 * outcome(replace(server, inputs=old)).iteration_s
    assert outcome(ring).exposed_s > outcome(replace(ring, inputs=old)).exposed_s
    assert replace(V100, inputs=old).essential() == V100.essential()


def test_pushes_over_nvlink_are_a_setting_of_machines_that_have_some():
    assert outcome(V100).exposed_s < outcome(OVER_PCIE).exposed_s
    t4 = Cell(platform=Platform.T4)
    assert replace(t4, inputs=OVER_PCIE.inputs).essential() == t4.essential()


def test_bert_by_tensorflows_containers_is_what_they_published():
    cell = replace(V100, inputs=replace(CENTRAL, bert_container="20.06", mixed_precision=False))
    assert outcome(cell).compute_s == pytest.approx(2 / 7.36)


def test_v100_claims_are_shown_with_both_policies_and_nvlink_on_and_off():
    assert [(one.policy, one.nvlink) for one in settings(Platform.V100)] == [
        ("paper", True), ("paper", False), ("auto", True), ("auto", False),
    ]  # fmt: skip


def test_what_the_busiest_link_carries_bounds_blocked_time_from_below():
    for cell in (replace(V100, nvlink=False), replace(OVER_PCIE, num_workers=4), replace(OVER_PCIE, num_devices=1)):
        found = outcome(cell)
        assert 0 < found.least_blocked_s < found.exposed_s


def test_what_a_stated_gain_needs_of_dense_gives_it():
    one = next(solved.needed())
    ours = outcome(one.cell)
    assert one.needed_s / ours.iteration_s == pytest.approx(one.stated)
    assert one.bytes_per_s(one.needed_s) < one.bytes_per_s(one.needed_s / one.factor)


def test_the_overlap_that_is_solved_for_gives_the_papers_blocked_time():
    overlap, blocked = solved.overlap_for_p100()
    assert 0 < overlap < 1
    assert blocked == pytest.approx(solved.STATED_BLOCKED, abs=0.02)


def test_pushes_that_backward_hides_less_block_longer():
    cell = Cell(platform=Platform.P100, policy="paper")
    late = replace(cell, inputs=replace(CENTRAL, push_overlap=0.0))
    assert blocked_ratio(late) > blocked_ratio(cell)


def test_copies_that_are_not_staged_leave_the_uplinks_to_rings():
    direct = outcome(replace(V100, inputs=replace(OVER_PCIE.inputs, direct_copies=True)))
    assert "switch" not in direct.busiest
    assert direct.exposed_s < outcome(OVER_PCIE).exposed_s / 2


def test_neighbours_all_reduce_faster_where_their_switch_is():
    ring = Cell(platform=Platform.P100, mode="allreduce")
    near = replace(ring, inputs=replace(CENTRAL, neighbours_reduce=True))
    assert outcome(near).exposed_s < outcome(ring).exposed_s


def test_a_ring_of_all_eight_gpus_uses_the_doubled_links_alone():
    machine = load_preset("aws-p3")
    found = {len(ring.members): ring.used for ring in rings(machine)}
    assert found[8] == pytest.approx(16 / 24)
    assert num_sets(machine) == 219


@pytest.mark.parametrize(
    "figure", [QUICK[0], *(pytest.param(figure, marks=pytest.mark.test_all) for figure in QUICK[1:])],
    ids=lambda module: module.__name__.rpartition(".")[2],
)  # fmt: skip
def test_a_figure_is_drawn(figure, tmp_path):
    pytest.importorskip("matplotlib")
    figure.draw(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]


HEADLINES = ("a", "c")
"""Panels of figures 16 and 17 that are simulated in seconds: two and four T4 with ResNet50, two P100 with BERT."""


def test_the_headline_rows_stand_in_the_page():
    shown = PAGE.read_text(encoding="utf-8").splitlines()
    panels = [panel for panel in fig16_speedup.PANELS if panel.letter in HEADLINES]
    ways = [(panel, setting) for panel in panels for setting in settings(panel.base.platform)]
    blocked = [row for panel, setting in ways for row in fig17_blocked_time.panel_rows(panel.letter, setting)]
    rows = [*(row for panel in panels for row in fig16_speedup.panel_rows(panel)), *fig16_speedup.memory_rows()]
    assert (len(rows), len(blocked)) == (11, 11)
    for row in (*rows, *blocked):
        require_declared(row.inputs, DECLARED)
        assert row.why or row.verdict is not Verdict.MISSED, row.claim
        assert list(markdown([list(HEAD), row.cells]))[-1] in shown, row.claim
