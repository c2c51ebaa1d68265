"""The cells that the benchmark of the policies looks at, and what a row of it says."""

import pytest

from benchmarks.policies import (
    MOST_OVER_ALLREDUCE,
    MOST_OVER_BEST,
    Cell,
    cells,
    every_choice,
    least_nodes,
    simulated_row,
)
from coarse.hardware.presets import machine_named, preset_names


@pytest.mark.parametrize(("machine", "workers", "devices", "wanted"), [
    ("aws-p3", 4, 4, 1), ("sdsc-p100", 4, 4, 2), ("sdsc-p100", 2, 2, 1), ("coarse-fpga", 2, 2, 0), ("luwu", 2, 2, 0),
    ("cxl-cz120", 4, 4, 1),
])  # fmt: skip
def test_a_job_gets_as_few_nodes_as_have_room(machine, workers, devices, wanted):
    assert least_nodes(machine_named(machine), workers, devices) == wanted


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.test_all)])
def test_every_cell_has_room_and_none_is_there_twice(step):
    found = list(cells(preset_names()[::step], ["resnet50"], [2, 4]))
    assert len(set(found)) == len(found)
    for cell in found:
        placement = cell.order("coarse").scenario().job().placement
        assert (placement.num_clients, placement.num_devices) == (cell.num_workers, cell.num_devices)
        assert len(placement.nodes) == cell.num_nodes


def test_the_sweep_has_every_split_of_every_table_once():
    job = Cell(machine="aws-p3", model="resnet50", num_workers=4, num_devices=4, num_nodes=1).order("coarse")
    choices = list(every_choice(job.scenario().job()))
    found = {(choice.facts, choice.num_to_devices) for choice in choices}
    assert len(found) == len(choices)
    assert {split for _, split in found} == set(range(len(choices[0].gradients) + 1))


@pytest.mark.parametrize("machine", ["aws-p3", "sdsc-p100"])
def test_the_automatic_choice_is_near_the_best_and_not_slower_than_all_reduce(machine):
    row = simulated_row(Cell(machine=machine, model="resnet50", num_workers=2, num_devices=1, num_nodes=1))
    assert 1.0 <= row["auto_over_best"] <= MOST_OVER_BEST
    assert row["auto_over_allreduce"] <= MOST_OVER_ALLREDUCE
    assert row["best_s"] <= min(row["paper_s"], row["allreduce_s"])
