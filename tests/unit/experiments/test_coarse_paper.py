"""Goldens of the paper's evaluation: claims that come out alike until a model or an input changes on purpose."""

from dataclasses import replace

import pytest

from coarse.emulation.models import Precision
from coarse.simulation.scenario import Mode, Policy
from experiments.coarse_paper import (
    fig2_communication_share,
    fig3_cci_bandwidth,
    fig8_pairs,
    fig10_deadlock,
    fig13_access_size,
    fig14_dma,
    fig15_routing,
    fig16_speedup,
    validate,
)
from experiments.coarse_paper.cells import Cell, outcome
from experiments.coarse_paper.claims import Verdict
from experiments.coarse_paper.inputs import CENTRAL, Platform, require_declared
from experiments.coarse_paper.settings import settings, speedup

QUICK = (
    fig2_communication_share,
    fig3_cci_bandwidth,
    fig8_pairs,
    fig10_deadlock,
    fig13_access_size,
    fig14_dma,
    fig15_routing,
)
GOLDENS = {
    "T4, 4 GPUs: largest share of communication in training time over the models": "63.8%",
    "V100: bidirectional bandwidth, remote over local, 2 to 64 MiB": "1.79x to 1.82x",
    "P100: bidirectional bandwidth, remote over local, 2 to 64 MiB": "0.57x to 0.71x",
    "prototype: GPU Direct over CCI, read, 64 KiB up": "9.00x to 16.99x",
    "T4, V100, P100: partition size that the profiler finds": "2 MiB to 8 MiB",
}
V100 = Cell(platform=Platform.V100, policy=Policy.PAPER)


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
    assert {row.verdict for row in orders} == {Verdict.ORDERING}


def test_ratios_that_the_machine_was_made_from_count_as_inputs():
    assert {row.verdict for row in fig3_cci_bandwidth.rows()} == {Verdict.INPUT}


def test_rows_name_declared_inputs_and_misses_their_reason(quick_rows):
    for row in (*quick_rows.values(), *fig16_speedup.memory_rows()):
        require_declared(row.inputs)
        assert row.why or row.verdict is not Verdict.MISSED, row.claim


def test_the_papers_batch_limits_hold_in_fp32_on_16_gb_alone():
    verdicts = [row.verdict for row in fig16_speedup.memory_rows()]
    assert verdicts == [Verdict.ORDERING, Verdict.MISSED, Verdict.MISSED, Verdict.MISSED]
    assert fig16_speedup.memory_limits(Precision.FP32, 16) == [3, 8]


def test_cells_that_differ_in_what_their_mode_ignores_are_one():
    ring = V100.baseline(Mode.ALLREDUCE)
    assert ring.essential() == replace(ring, inputs=replace(CENTRAL, sharer_growth=1.0)).essential()
    assert V100.essential() == replace(V100, num_devices=2).essential()
    assert V100.essential() != replace(V100, nvlink=False).essential()


def test_two_v100_by_the_papers_formula_take_the_time_that_they_took():
    assert outcome(V100).iteration_s == pytest.approx(0.2939, rel=0.02)
    assert speedup(V100) == pytest.approx(6.70, rel=0.02)


def test_the_ceiling_of_a_speed_up_is_dense_over_compute():
    cell = Cell(platform=Platform.T4, model="resnet50", batch=64, policy=Policy.PAPER)
    assert "no synchronisation, however fast, gains more than 1.4x" in fig16_speedup.why_not(cell, 3.3)


def test_v100_claims_are_shown_with_both_policies_and_nvlink_on_and_off():
    assert [(one.policy, one.nvlink) for one in settings(Platform.V100)] == [
        (Policy.PAPER, True), (Policy.PAPER, False), (Policy.AUTO, True), (Policy.AUTO, False),
    ]  # fmt: skip


@pytest.mark.parametrize("figure", QUICK, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_figure_is_drawn(figure, tmp_path):
    pytest.importorskip("matplotlib")
    figure.draw(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]


@pytest.mark.slow
def test_the_whole_table_is_as_the_page_shows_it():
    from rich.console import Console

    validate.simulate_all(Console(quiet=True))
    rows = validate.all_rows()
    for row in rows:
        require_declared(row.inputs)
        assert row.why or row.verdict is not Verdict.MISSED, row.claim
    assert validate.page(rows) == validate.PAGE.read_text(encoding="utf-8")
    assert len({row.claim for row in rows}) == len(rows)
