"""Goldens of FCDP's and FSDP's evaluation: claims that come out alike until a model or an input changes on purpose."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from experiments.fcdp_paper import (
    fig2_networks,
    fig5_fig6_full,
    fig7_fig9_lora,
    fig10_volume,
    memory,
    variations,
)
from experiments.fcdp_paper.cells import Cell, System, gain, report_of, samples_per_s
from experiments.fcdp_paper.inputs import BORDER_STEP_S, CENTRAL, Network
from experiments.fsdp_paper import fig2_collectives, fig6_overlap
from experiments.validation.claims import Verdict

W_BYTES = 2 * 11.308e9
"""Of GPT-10B in fp16."""


@pytest.mark.parametrize("num_nodes", [2, 4])
@pytest.mark.parametrize("network", [Network.IPOIB, Network.ETHERNET_10])
def test_the_networks_bound_of_figure_2_comes_out_within_8_per_cent(num_nodes, network):
    stated = fig2_networks.STATED[num_nodes][network]
    assert samples_per_s(Cell(network=network, num_nodes=num_nodes)) == pytest.approx(stated, rel=0.08)


@pytest.mark.parametrize("num_nodes", [2, 4])
def test_network_bound_iterations_are_three_rings_and_a_little(num_nodes):
    free = replace(CENTRAL, border_step_s=0.0)
    report = report_of(Cell(network=Network.ETHERNET_10, num_nodes=num_nodes, inputs=free))
    num_gpus = 8 * num_nodes
    bound_s = 3 * (num_gpus - 1) / num_gpus * W_BYTES / 1.186e9
    assert bound_s < report.iteration_s < 1.02 * bound_s


def test_a_step_over_a_border_costs_what_was_fitted_to_one_row():
    """Of ZeRO-3 on two nodes: three collectives of each of 42 units, 15 turns each."""
    slow, fast = (
        report_of(Cell(network=Network.RDMA, inputs=replace(CENTRAL, border_step_s=step_s))).iteration_s
        for step_s in (BORDER_STEP_S, 0.0)
    )
    assert 0.5 < (slow - fast) / (3 * 42 * 15 * BORDER_STEP_S) <= 1.0
    fitted = fig2_networks.STATED[2][Network.RDMA]
    assert samples_per_s(Cell(network=Network.RDMA)) == pytest.approx(fitted, rel=0.01)
    rows = {row.claim: row.verdict for row in fig2_networks.rows()}
    assert rows["ZeRO-3, GPT-10B, batch 8, 2 nodes, rdma"] is Verdict.INPUT


def test_all_thirty_batches_of_tables_5_and_6_come_out():
    assert memory.num_equal(CENTRAL) == 30
    assert memory.num_equal(memory.by_formula()) == 27


def test_the_measured_memory_alone_gives_27_of_them():
    measured = replace(CENTRAL, sequence=memory.MEASURED_TOKENS)
    assert memory.used_gib(System.ZERO3, measured) == pytest.approx(34.06, abs=0.05)
    assert memory.num_equal(measured) == 27


def test_figure_9_keeps_what_the_paper_says_within_5_points():
    for system, stated in fig7_fig9_lora.KEPT.items():
        assert fig7_fig9_lora.kept(system) == pytest.approx(stated, abs=0.05), system


def test_fcdp_is_fifty_times_as_fast_as_zeropp_on_gigabit_ethernet():
    cell = fig7_fig9_lora.cell_of(System.FCDP, Network.ETHERNET_1)
    assert gain(cell, System.ZEROPP) == pytest.approx(51, rel=0.1)


def test_zero3_s_bytes_of_table_7_are_two_rings_of_30_billion_parameters():
    forward, backward = fig10_volume.crossing_gib(System.ZERO3)
    assert forward + backward == pytest.approx(213.73, rel=0.01)
    assert sum(fig10_volume.crossing_gib(System.COMM)) == pytest.approx(0.16, abs=0.055)


def test_a_faster_gpu_keeps_less_of_its_speed_on_a_slow_network():
    fast, slow = (
        replace(fig7_fig9_lora.cell_of(System.COMM, network), inputs=replace(CENTRAL, peak_share=0.44))
        for network in (Network.RDMA, Network.ETHERNET_1)
    )
    assert samples_per_s(slow) / samples_per_s(fast) < fig7_fig9_lora.kept(System.COMM)


def test_variations_are_of_one_input_or_named_together():
    assert len(set(variations.VARIATIONS.values())) == len(variations.VARIATIONS)


def test_small_and_uneven_all_gathers_are_slower():
    assert fig2_collectives.total_s(1 << 20) > 2 * fig2_collectives.total_s(1 << 28)
    assert fig2_collectives.uneven_s(1 << 24) > fig2_collectives.total_s(1 << 24) / (1 << 6)


def test_prefetch_gains_what_one_gather_per_block_would_cost():
    with_s = fig6_overlap.simulated(batch=1).iteration_s
    without_s = fig6_overlap.simulated(batch=1, prefetch=False).iteration_s
    block = fig6_overlap.blocks(1)[0].nbytes
    gather_s = block * 127 / 128 / 250e9
    blocks_waiting = (without_s - with_s) / gather_s / 2  # for a gather and a reduction
    assert fig6_overlap.NUM_BLOCKS - 1 < blocks_waiting < 1.2 * fig6_overlap.NUM_BLOCKS


def test_an_unknown_model_is_refused():
    with pytest.raises(ConfigError, match="gpt-10b"):
        Cell(model="gpt-1t").scenario().job()


def test_figure_5_is_drawn_on_the_network_of_its_rows_which_its_titles_name(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(fig5_fig6_full, "draw_bars", lambda panels, **how: drawn.extend(panels))
    monkeypatch.setattr(fig5_fig6_full, "MODELS", ("gpt-10b",))
    fig5_fig6_full.draw(tmp_path)
    assert [panel.title for panel in drawn] == [
        f"Fig. 5: batch 8, {nodes} nodes, ipoib; none where memory does not suffice" for nodes in (2, 4)
    ]
    expected = [
        samples_per_s(Cell(network=fig5_fig6_full.network_now(), num_nodes=nodes, system=System.FCDP))
        for nodes in (2, 4)
    ]
    assert [panel.bars[0].values["FCDP"] for panel in drawn] == expected
