"""What wires make of values, and what of that is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coarse.errors import ConfigError
from coarse.protocol.dtypes import DType, Op, narrowed, widen
from coarse.protocol.records import Descriptor
from coarse.strategy import Cast, Coarse, Feedback, Rows, TopK, Wire
from coarse.strategy.sent import SentBucket, sent_nbytes, sent_of, wire_of

VALUES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32))


def bucket(size, op=Op.AVERAGE, dtype=DType.FLOAT32):
    return Descriptor("bucket", int(dtype), int(op), (size,), 0)


def strategy_with(wire):
    class Mine(Coarse):
        def wire(self, tensor):
            return wire

    return Mine()


@given(VALUES, st.floats(0.001, 1.0))
def test_the_largest_values_travel_and_no_others(values, share):
    wire = TopK(share=share)
    encoded, _ = wire.encode(values, 0, 1, None)
    found = wire.decode(encoded, len(values), 1)
    count = wire.num_kept(len(values))
    assert len(encoded) == wire.num_elements(len(values), 1)
    kept = found != 0
    assert np.array_equal(found[kept], values[kept])
    assert kept.sum() <= count
    held_back = np.abs(values[~kept])
    assert not held_back.any() or held_back.max() <= np.sort(np.abs(values))[-count]


@given(st.lists(VALUES, min_size=3, max_size=3).map(lambda each: [v[: min(map(len, each))] for v in each]))
def test_a_sum_of_rows_is_that_of_what_each_worker_kept(each):
    wire, size = TopK(share=0.3), len(each[0])
    total = sum(wire.encode(values, worker, 3, None)[0] for worker, values in enumerate(each))
    wanted = np.zeros(size, np.float32)
    for values in each:
        wanted += wire.decode(wire.encode(values, 0, 1, None)[0], size, 1)
    assert np.array_equal(wire.decode(total, size, 3), wanted)


def test_a_worker_that_gave_nothing_adds_nothing():
    wire = TopK(share=0.5)
    alone = wire.encode(np.array([3.0, 1.0], np.float32), 1, 3, None)[0]
    assert wire.decode(alone, 2, 3).tolist() == [3.0, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_travels_first(bad):
    wire = TopK(share=0.1)
    encoded, _ = wire.encode(np.array([bad, *range(1, 10)], np.float32), 0, 1, None)
    assert not np.isfinite(wire.decode(encoded, 10, 1)[0])


@given(st.lists(arrays(np.float32, 20, elements=st.floats(-100, 100, width=32)), min_size=1, max_size=8))
def test_feedback_loses_nothing_over_rounds(rounds):
    wire, state, sent = Feedback(inner=TopK(share=0.1)), None, np.zeros(20, np.float64)
    for values in rounds:
        encoded, state = wire.encode(values, 0, 1, state)
        sent += wire.decode(encoded, 20, 1)
    np.testing.assert_allclose(sent + state[0], sum(values.astype(np.float64) for values in rounds), atol=1e-3)


@pytest.mark.parametrize("wire", [Feedback(inner=TopK(share=0.5)), Feedback(inner=Cast())])
def test_feedback_forgets_what_is_no_number(wire):
    _, state = wire.encode(np.array([np.inf, 1e6, np.nan, 0.25], np.float32), 0, 1, None)
    encoded, state = wire.encode(np.ones(4, np.float32), 0, 1, state)
    assert np.isfinite(wire.decode(encoded, 4, 1)).all()
    assert np.isfinite(state[0]).all()


def test_casts_round_to_nearest_and_keep_what_is_no_number():
    values = np.array([1.0, 1.0 + 2**-12, 1e6, np.nan], np.float32)
    for element, wanted in (("float16", [1.0, 1.0, np.inf, np.nan]), ("bfloat16", [1.0, 1.0, 999424.0, np.nan])):
        wire = Cast(element=element)
        encoded, _ = wire.encode(values, 0, 2, None)
        np.testing.assert_array_equal(wire.decode(encoded, 4, 2), np.array(wanted, np.float32))


@pytest.mark.parametrize(("make", "said"), [(lambda: TopK(share=0), "above 0"), (lambda: Cast(element="int8"), "cast")])
def test_options_out_of_range_are_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


# --- buckets


def summed(buckets, given):
    """What devices make of what all workers encode."""
    sent = buckets[0].sent
    dtype = DType(sent.dtype)
    total = np.zeros(sent.shape, dtype.accumulator)
    for one, values in zip(buckets, given, strict=True):
        encoded = np.empty(sent.shape, dtype.storage)
        one.encode(values, encoded)
        total += widen(encoded, dtype)
    if sent.op == Op.AVERAGE:
        total /= len(buckets)
    return narrowed(total, dtype)


@pytest.mark.parametrize("op", [Op.SUM, Op.AVERAGE])
@pytest.mark.parametrize("wire", [Cast(), Cast(element="bfloat16"), TopK(share=1.0), Cast(element="float64")])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 64, 65, 300])
def test_counts_of_all_workers_are_exact(op, wire, num_workers):
    descriptor = bucket(4 + 3, op)
    buckets = [SentBucket(descriptor, wire, worker, num_workers, 3) for worker in range(num_workers)]
    given = []
    for worker in range(num_workers):
        given.append(np.array([1.0, 0.5, 0.0, -2.0, 1.0, worker % 3 == 0, 1.0], np.float32))
    found = np.empty(7, np.float32)
    buckets[-1].decode(summed(buckets, given), found)
    scale = num_workers if op is Op.AVERAGE else 1
    some = len(range(0, num_workers, 3))
    assert np.round(found[4:] * scale).tolist() == [num_workers, some, num_workers]
    wanted = np.array([1.0, 0.5, 0.0, -2.0]) * (num_workers if op is Op.SUM else 1)
    np.testing.assert_allclose(found[:4], wanted, rtol=0.01)
    if some == num_workers:
        assert found[4] == found[5]


@pytest.mark.parametrize("wire", [Cast(), Cast(element="bfloat16"), TopK(share=0.5)])
def test_a_count_that_is_no_number_stays_one(wire):
    buckets = [SentBucket(bucket(3), wire, worker, 2, 1) for worker in range(2)]
    found = np.empty(3, np.float32)
    buckets[0].decode(summed(buckets, [np.ones(3, np.float32), np.array([1, 1, np.nan], np.float32)]), found)
    assert np.isnan(found[2])
    assert np.isfinite(found[:2]).all()


def test_what_is_taken_back_is_not_counted_as_sent():
    one = SentBucket(bucket(4), Feedback(inner=TopK(share=0.25)), 0, 1)
    first, again = (np.empty(one.sent.shape, np.int32) for _ in range(2))
    one.encode(np.array([4.0, 3.0, 0.0, 0.0], np.float32), first)
    one.take_back()
    one.encode(np.array([4.0, 3.0, 0.0, 0.0], np.float32), again)
    assert np.array_equal(first, again)


def test_a_bucket_of_another_type_or_operation_travels_as_it_is():
    with_wire = strategy_with(TopK())
    assert isinstance(wire_of(with_wire, bucket(9)), TopK)
    for descriptor in (bucket(9, dtype=DType.FLOAT16), bucket(9, dtype=DType.INT64), bucket(9, op=Op.MAX)):
        assert wire_of(with_wire, descriptor) is None
        assert sent_nbytes(with_wire, descriptor, 2) == descriptor.nbytes
    assert wire_of(with_wire, bucket(9), 9) is None
    assert wire_of(Coarse(), bucket(9)) is None


class Odd(Wire):
    element = "int32"

    def __init__(self, count=3, encoded=None, decoded=None):
        self.count, self.encoded, self.decoded = count, encoded, decoded

    def num_elements(self, num_values, num_workers):
        return self.count

    def encode(self, values, worker, num_workers, state):
        return self.encoded, None

    def decode(self, total, num_values, num_workers):
        return self.decoded


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (Odd(count=0), "num_elements must return a whole number from 1, got 0"),
        (Odd(count=2.5), "num_elements must return"),
        (Odd(encoded=[1, 2, 3]), r"encode must return int32\[3\], got \[1, 2, 3\]"),
        (Odd(encoded=np.zeros(3)), r"encode must return int32\[3\], got float64\[3\]"),
        (Odd(encoded=np.zeros(4, np.int32)), r"encode must return int32\[3\], got int32\[4\]"),
        (Odd(encoded=np.zeros(3, np.int32), decoded=np.zeros(2)), r"return 5 values of float32 .* got float64\[2\]"),
        (Odd(encoded=np.zeros(3, np.int32), decoded=np.zeros(5, np.float16)), r"got float16\[5\]"),
    ],
)
def test_a_wire_that_returns_something_else_is_refused_in_a_sentence(wire, said):
    def there_and_back():
        one = SentBucket(bucket(5), wire, 0, 2)
        total = np.zeros(one.sent.shape, np.int32)
        one.encode(np.zeros(5, np.float32), total)
        one.decode(total, np.zeros(5, np.float32))

    with pytest.raises(ConfigError, match=said):
        there_and_back()


class Marked(Wire):
    """Its one more element counts who gave; floats that are no linear function are summed, not averaged."""

    def num_elements(self, num_values, num_workers):
        return num_values + 1

    def encode(self, values, worker, num_workers, state):
        assert not values.flags.writeable
        return np.append(values, np.float32(1)), None

    def decode(self, total, num_values, num_workers):
        assert total[-1] in (1, 3)
        return total[:-1]


@pytest.mark.parametrize("wire", [Marked(), Feedback(inner=Marked())])
def test_decode_has_the_sum_whatever_travels_and_its_result_is_averaged(wire):
    buckets = [SentBucket(bucket(2 + 1), wire, worker, 3, 1) for worker in range(3)]
    found, given = np.empty(3, np.float32), [np.array([worker, 3, 1], np.float32) for worker in range(3)]
    buckets[0].decode(summed(buckets, given), found)
    assert found.tolist() == [1, 3, 1]
    assert given[0].flags.writeable


@pytest.mark.parametrize("wrong", [3, TopK, type("W", (Wire,), {"element": "uint8"})()])
def test_what_is_no_wire_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"Mine\.wire must return a Wire whose element is one of float16"):
        wire_of(strategy_with(wrong), bucket(5))


class Signs(Rows):
    """A bit for each value, as a stranger writes it."""

    def row_elements(self, num_values):
        return -(-num_values // 32)

    def pack(self, values):
        bits = np.packbits(values > 0)
        return np.resize(np.append(bits, np.zeros(-len(bits) % 4, np.uint8)), 4 * self.row_elements(len(values))).view(
            np.int32
        )

    def add(self, row, total):
        total += np.where(np.unpackbits(row.view(np.uint8))[: len(total)], np.float32(1), np.float32(-1))


def test_rows_hold_any_compression():
    buckets = [SentBucket(bucket(70, Op.SUM), Signs(), worker, 2) for worker in range(2)]
    values = [np.linspace(-1, 1, 70, dtype=np.float32), np.full(70, 3, np.float32)]
    found = np.empty(70, np.float32)
    buckets[0].decode(summed(buckets, values), found)
    assert np.array_equal(found, np.where(values[0] > 0, 2, 0))
    assert sent_of(bucket(70), Signs(), 2).nbytes == 2 * (1 + 3) * 4
