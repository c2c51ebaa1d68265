"""Which cells the benchmark of the simulator runs, and which it need not run again."""

import json

import pytest

from benchmarks.simulator import ON_TWO_NODES, cell_in, cell_of, known_rows, orders, parse_options


def cells(*arguments: str) -> list[tuple[object, ...]]:
    return [cell_of(order) for order in orders(parse_options(["--built-in-only", *arguments]))]


def test_no_cell_is_asked_for_twice_and_all_of_a_choice_are_among_those_of_the_whole():
    everything = cells("--models", "resnet50")
    assert len(set(everything)) == len(everything)
    chosen = cells("--models", "resnet50", "--machines", "aws-p3", "--modes", "coarse,allreduce", "--workers", "2")
    assert set(chosen) < set(everything)
    assert {(machine, workers) for machine, _, _, workers, _ in chosen} == {("aws-p3", 2)}
    assert {mode for *_, mode in chosen} == {"coarse", "allreduce"}


def test_two_nodes_have_no_dense_and_a_machine_without_room_is_left_out(capsys):
    for machine, model in ON_TWO_NODES:
        found = cells("--machines", machine, "--models", model)
        assert {mode for _, _, nodes, _, mode in found if nodes == 2} == {"allreduce", "coarse"}
    assert cells("--machines", "coarse-fpga", "--modes", "allreduce") == []
    assert "left out: ('coarse-fpga'" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--modes", "coarse,dence"], "unknown modes dence; there are: dense, allreduce, coarse"),
    (["--models", "vgg"], "unknown models vgg"), (["--iterations", "1"], "at least 2"),
])  # fmt: skip
def test_a_bad_option_is_refused_with_what_is_allowed(arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert complaint in capsys.readouterr().err


def test_strategies_of_files_run_beside_the_built_in_modes():
    chosen = parse_options(["--models", "resnet50", "--machines", "aws-p3", "--modes", "dense", "--workers", "2"])
    names = {cell_of(order)[-1] for order in orders(chosen)}
    assert names == {"dense", "HierarchicalServer", "LoadAware", "DiLoCo", "TopKGradients"}


def test_what_is_of_an_older_kind_or_had_other_iterations_runs_again(tmp_path):
    row = {"machine": "aws-p3", "model": "resnet50", "workers": 2, "mode": "dense", "iterations": 2, "late": 0}
    old = {key: value for key, value in row.items() if key != "late"}
    rows = [row, old | {"workers": 4}, row | {"mode": "coarse", "nodes": 2, "iterations": 3}]
    path = tmp_path / "simulator.json"
    path.write_text(json.dumps({"rows": rows}))
    assert [cell_in(known) for known in known_rows(path, 2)] == [("aws-p3", "resnet50", 1, 2, "dense")]
    assert [cell_in(known) for known in known_rows(path, 3)] == [("aws-p3", "resnet50", 2, 2, "coarse")]
    assert known_rows(tmp_path / "none.json", 2) == []
