"""COARSE's prototype: the run that its command line asks for."""

import pytest

from coarse.emulation.launch import EmulatedResult
from coarse.errors import ConfigError
from coarse.protocol.place import Anywhere, GpuMemory
from coarse.simulation.report import WorkerIteration
from experiments.coarse_prototype import lines_of, order_of, parse_arguments


@pytest.mark.parametrize(
    ("num_gpus", "workers", "devices"), [(1, (0, 0), (0, 0)), (3, (0, 1), (2, 0)), (8, (0, 1), (2, 3))]
)
def test_half_of_the_ranks_work_and_gpus_are_dealt_in_turn(num_gpus, workers, devices):
    order = order_of(parse_arguments([]), 4, num_gpus)
    partition = order.partition(order.job())
    assert [order.gpu_of(worker) for worker in range(2)] == list(workers)
    assert [partition.places[rank].memory for rank in (0, 1)] == [Anywhere()] * 2
    assert [partition.places[rank].memory for rank in (2, 3)] == [GpuMemory(number) for number in devices]
    assert order.num_to_devices == len(order.job().gradients)


@pytest.mark.parametrize("num_ranks", [1, 3, 5])
def test_an_odd_number_of_ranks_is_refused(num_ranks):
    with pytest.raises(ConfigError, match=f"even number, got {num_ranks}; start it by mpirun -n 4"):
        order_of(parse_arguments([]), num_ranks, 1)


def test_an_unknown_machine_is_refused_by_name():
    with pytest.raises(ConfigError, match="no-such-machine"):
        order_of(parse_arguments(["--machine", "no-such-machine"]), 4, 1)


@pytest.mark.parametrize("arguments", [["--batch", "0"], ["--iterations", "1"]])
def test_wrong_options_end_with_2(arguments):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)
    assert ended.value.code == 2


def test_what_comes_out_names_its_kind_and_its_gpus():
    order = order_of(parse_arguments([]), 4, 1)
    row = WorkerIteration(
        worker=0, iteration=1, begin_s=0.0, forward_end_s=0.1, backward_end_s=0.2, end_s=0.25, idle_s=0.0
    )
    result = EmulatedResult(order=order, iterations=(row,), num_transfers=200, num_late=1, worst_late_s=0.0)
    text = "\n".join(lines_of(result, ["H100"], 0.24))
    assert "gradients and sums on GPU 0 (H100)" in text
    assert "iteration 250.00 ms, exposed communication 50.00 ms (emulated; simulated 240.00 ms)" in text
    assert "200 transfers, 1 late" in text
