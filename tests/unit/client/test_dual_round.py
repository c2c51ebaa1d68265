"""Who sums which bucket, for any order of gradients, joins and cancellations."""

from hypothesis import given
from hypothesis import strategies as st

from coarse.client.dual_round import DualRound, SetOut, Way


def begun(num_buckets, split, **options):
    dual = DualRound(**options)
    dual.begin(num_buckets, split)
    return dual


def test_the_first_go_to_the_devices_at_once_and_the_others_to_the_workers_when_backward_has_ended():
    dual = begun(4, 2)
    assert [dual.on_ready(bucket) for bucket in (0, 1)] == [[SetOut(0, Way.DEVICES)], [SetOut(1, Way.DEVICES)]]
    assert [dual.on_ready(bucket) for bucket in (3, 2)] == [[], []]
    assert dual.on_backward_end() == [SetOut(2, Way.WORKERS), SetOut(3, Way.WORKERS)]
    assert dual.on_backward_end() == []


def test_without_a_worker_the_devices_sum_everything():
    dual = begun(2, 1)
    dual.on_ready(1)
    assert dual.on_backward_end(are_all_here=False) == [SetOut(1, Way.DEVICES)]


def test_a_held_bucket_can_be_cancelled_and_no_other():
    dual = begun(2, 1)
    assert dual.on_ready(0)
    assert not dual.cancel(0)
    dual.on_ready(1)
    assert dual.cancel(1)
    assert not dual.cancel(1)
    assert not dual.is_holding
    assert dual.on_backward_end() == []


def test_what_is_not_held_back_sets_out_as_it_comes():
    dual = begun(2, 0, holds_back=False)
    assert dual.on_ready(0) == [SetOut(0, Way.WORKERS)]
    assert dual.on_backward_end() == []


def test_after_a_join_nothing_more_is_shared():
    dual = begun(2, 0)
    assert dual.shares
    dual.share_nothing()
    assert not dual.shares
    assert dual.on_ready(1) == [SetOut(1, Way.DEVICES)]


def test_before_the_first_round_everything_goes_to_the_devices():
    assert DualRound().on_ready(3) == [SetOut(3, Way.DEVICES)]


@given(st.data())
def test_every_bucket_sets_out_once_and_the_workers_sum_in_one_order(data):
    num_buckets = data.draw(st.integers(1, 12))
    split = data.draw(st.integers(0, num_buckets))
    dual = begun(num_buckets, split)
    out = []
    for bucket in data.draw(st.permutations(range(num_buckets))):
        out += dual.on_ready(bucket)
        if data.draw(st.booleans()) and dual.cancel(bucket):
            out += dual.on_ready(bucket)
    last = dual.on_backward_end()
    assert sorted(one.bucket for one in out + last) == list(range(num_buckets))
    assert [one.bucket for one in last] == list(range(split, num_buckets))
    assert {one.way for one in out} <= {Way.DEVICES}
