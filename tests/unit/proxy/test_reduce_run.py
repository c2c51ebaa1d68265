"""A sum over several devices: fetch, add, write back, in any order of arrivals."""

from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.dtypes import DType, Op
from coarse.proxy.instructions import Reduce, Region
from coarse.proxy.reduce_run import Add, ReduceRun, Transfer


def reduce_of(sources, targets, num_elements=10):
    regions = [tuple(Region(device, 64) for device in devices) for devices in (sources, targets)]
    return Reduce(1, 1, 0, 1, int(DType.FLOAT32), int(Op.SUM), 1, num_elements, *regions, 0)


def test_what_lies_elsewhere_is_fetched_then_all_is_added_then_the_sum_goes_back():
    run = ReduceRun(0, reduce_of((0, 1, 2), (0, 1, 2)))
    assert run.begin() == [Transfer(1, 0, 40, True), Transfer(2, 0, 40, True)]
    assert run.on_moved() == []
    assert run.on_moved() == [Add(120)]
    assert run.on_added() == [Transfer(0, 1, 40, False), Transfer(0, 2, 40, False)]
    assert run.on_moved() == []
    assert not run.is_done
    assert run.on_moved() == []
    assert run.is_done


def test_what_lies_here_alone_is_only_added():
    run = ReduceRun(3, reduce_of((3, 3), (3, 3)))
    assert run.begin() == [Add(80)]
    assert not run.is_done
    assert run.on_added() == []
    assert run.is_done


@given(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_every_byte_moves_once_each_way_and_is_added_once(sources, targets):
    run = ReduceRun(0, reduce_of(sources, targets))
    steps, moves, num_added = list(run.begin()), [], 0
    while steps:
        step = steps.pop(0)
        if isinstance(step, Add):
            num_added += 1
            assert step.nbytes == 40 * len(sources)
            steps += run.on_added()
        else:
            assert not run.is_done
            moves.append(step)
            steps += run.on_moved()
    assert run.is_done
    assert num_added == 1
    assert sorted(move.source for move in moves if move.is_fetch) == sorted(device for device in sources if device)
    assert sorted(move.target for move in moves if not move.is_fetch) == sorted(device for device in targets if device)
