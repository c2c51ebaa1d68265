import numpy as np

from benchmarks.contenders.protocol import fill_pattern, wrong_tensors


def tensors():
    return [np.zeros((3, 500), dtype=np.float32), np.zeros(7, dtype=np.float32)]


def filled(worker):
    given = tensors()
    fill_pattern(given, worker)
    return given


def test_the_sum_of_what_workers_gave_is_right():
    sums = [sum(parts) for parts in zip(*(filled(worker) for worker in range(4)), strict=True)]
    assert wrong_tensors(sums, 4) == []


def test_a_lost_contribution_is_noticed_in_every_tensor():
    assert wrong_tensors(filled(0), 2) == [0, 1]


def test_one_exchanged_element_is_noticed():
    sums = [sum(parts) for parts in zip(*(filled(worker) for worker in range(2)), strict=True)]
    sums[0][0, [1, 2]] = sums[0][0, [2, 1]]
    assert wrong_tensors(sums, 2) == [0]
