"""Who sums which bucket, for any order of gradients, joins and cancellations."""

from hypothesis import given
from hypothesis import strategies as st

from coarse.strategy.rounds import By, Round, SetOut, WorkerRounds, first_to_devices


def begun(num_buckets, split, *, hold_back=True):
    rounds = WorkerRounds()
    rounds.begin(first_to_devices(split, num_buckets, hold_back=hold_back))
    return rounds


def test_the_first_go_to_the_devices_at_once_and_the_others_to_the_workers_when_backward_has_ended():
    rounds = begun(4, 2)
    assert [rounds.on_ready(bucket) for bucket in (0, 1)] == [[SetOut(0, By.DEVICES)], [SetOut(1, By.DEVICES)]]
    assert [rounds.on_ready(bucket) for bucket in (3, 2)] == [[], []]
    assert rounds.on_backward_end() == [SetOut(2, By.WORKERS), SetOut(3, By.WORKERS)]
    assert rounds.on_backward_end() == []


def test_without_a_worker_the_devices_sum_everything():
    rounds = begun(2, 1)
    rounds.on_ready(1)
    assert rounds.on_backward_end(are_all_here=False) == [SetOut(1, By.DEVICES)]


def test_a_held_bucket_can_be_cancelled_and_no_other():
    rounds = begun(2, 1)
    assert rounds.on_ready(0)
    assert not rounds.cancel(0)
    rounds.on_ready(1)
    assert rounds.cancel(1)
    assert not rounds.cancel(1)
    assert not rounds.is_holding
    assert rounds.on_backward_end() == []


def test_what_is_not_held_back_sets_out_as_it_comes():
    rounds = begun(2, 0, hold_back=False)
    assert rounds.on_ready(0) == [SetOut(0, By.WORKERS)]
    assert rounds.on_backward_end() == []


def test_after_a_join_nothing_more_is_shared():
    rounds = begun(2, 0)
    assert rounds.shares
    rounds.share_nothing()
    assert not rounds.shares
    assert rounds.on_ready(1) == [SetOut(1, By.DEVICES)]


def test_a_bucket_that_came_after_the_round_began_goes_to_the_devices():
    rounds = begun(2, 1)
    assert rounds.on_ready(2) == [SetOut(2, By.DEVICES)]
    assert rounds.on_ready(1) == []
    assert rounds.on_backward_end() == [SetOut(1, By.WORKERS)]


def test_before_the_first_round_everything_goes_to_the_devices():
    assert WorkerRounds().on_ready(3) == [SetOut(3, By.DEVICES)]


@given(st.data())
def test_every_bucket_sets_out_once_and_the_workers_sum_in_one_order(data):
    num_buckets = data.draw(st.integers(1, 12))
    split = data.draw(st.integers(0, num_buckets))
    rounds = begun(num_buckets, split)
    out = []
    for bucket in data.draw(st.permutations(range(num_buckets))):
        out += rounds.on_ready(bucket)
        if data.draw(st.booleans()) and rounds.cancel(bucket):
            out += rounds.on_ready(bucket)
    last = rounds.on_backward_end()
    assert sorted(one.bucket for one in out + last) == list(range(num_buckets))
    assert [one.bucket for one in last] == list(range(split, num_buckets))
    assert {one.by for one in out} <= {By.DEVICES}


def test_any_buckets_go_to_the_devices():
    rounds = WorkerRounds()
    rounds.begin(Round(by=(By.WORKERS, By.DEVICES, By.WORKERS)))
    assert [rounds.on_ready(bucket) for bucket in (2, 1, 0)] == [[], [SetOut(1, By.DEVICES)], []]
    assert rounds.on_backward_end() == [SetOut(0, By.WORKERS), SetOut(2, By.WORKERS)]
