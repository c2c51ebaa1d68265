import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.dtypes import DType, Op
from coarse.storage.reduce import (
    accumulate,
    identity,
    narrowed,
    reduce,
    reduce_local,
    scale,
    widen,
)

BLOCK_ELEMENTS = 128 * 1024
EXACT = {Op.SUM: np.sum, Op.AVERAGE: np.sum, Op.MIN: np.min, Op.MAX: np.max}
DTYPES_AND_OPS = [
    (dtype, op)
    for dtype in DType
    for op in Op
    if not (op is Op.AVERAGE and dtype.is_integer) and dtype is not DType.UINT8
]


def contributions(dtype, num_clients, num_elements, seed=0):
    """Storage arrays of numbers that every type holds exactly, and whose sums it holds too."""
    whole = np.random.default_rng(seed).integers(-16, 17, (num_clients, num_elements))
    if dtype is DType.BFLOAT16:
        return [narrowed(row.astype(np.float32), dtype) for row in whole]
    return [row.astype(dtype.storage) for row in whole]


def expected(sources, dtype, op, divisor):
    """What plain numpy says, in float64, rounded to the type once."""
    exact = EXACT[op]([widen(source, dtype).astype(np.float64) for source in sources], axis=0)
    return narrowed((exact / divisor).astype(dtype.accumulator), dtype)


class Elsewhere:
    """Elements that can only be read and written by blocks."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def is_at(self, other):
        return isinstance(other, Elsewhere) and other.values is self.values

    def read(self, begin, end, into):
        into[: end - begin] = self.values[begin:end]
        return into[: end - begin]

    def write(self, begin, values):
        assert begin + len(values) <= len(self.values)
        self.values[begin : begin + len(values)] = values


def same(one, other):
    return one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.parametrize(("dtype", "op"), DTYPES_AND_OPS)
@pytest.mark.parametrize("num_clients", [1, 2, 3, 4])
@pytest.mark.parametrize("num_elements", [0, 1, 1000, BLOCK_ELEMENTS + 3])
def test_a_reduction_writes_what_numpy_says_into_all_targets(dtype, op, num_clients, num_elements):
    divisor = num_clients if op is Op.AVERAGE else 1
    sources = contributions(dtype, num_clients, num_elements)
    wanted = expected(sources, dtype, op, divisor)
    outside = np.ones(num_elements, dtype.storage)
    reduce(sources, [*sources, outside], dtype, op, divisor)
    assert all(same(target, wanted) for target in (*sources, outside))


@pytest.mark.parametrize(("dtype", "op"), DTYPES_AND_OPS)
@pytest.mark.parametrize("elsewhere", [{0}, {1}, {0, 1, 2}, {3}])
@pytest.mark.parametrize("num_elements", [0, 1, 2 * BLOCK_ELEMENTS + 3])
def test_what_lies_elsewhere_sums_to_the_same_bits(dtype, op, elsewhere, num_elements):
    """Sources 0, 1 and 2 are targets too, and 3 is a target alone."""
    divisor = 3 if op is Op.AVERAGE else 1
    here = [*contributions(dtype, 3, num_elements), np.ones(num_elements, dtype.storage)]
    there = [Elsewhere(values.copy()) if i in elsewhere else values.copy() for i, values in enumerate(here)]
    local = [reduce_local(sources[:3], num_elements, dtype, op) for sources in (here, there)]
    assert same(*local)
    for arrays in (here, there):
        reduce(arrays[:3], arrays, dtype, op, divisor)
    results = [one.values if isinstance(one, Elsewhere) else one for one in there]
    assert all(same(one, other) for one, other in zip(results, here, strict=True))


@pytest.mark.parametrize("sources", [[], [0]])
def test_nothing_and_one_contribution_reach_targets_elsewhere(sources):
    values = [Elsewhere(np.full(BLOCK_ELEMENTS * 3, i + 1.0, np.float32)) for i in range(2)]
    reduce([values[i] for i in sources], values, DType.FLOAT32, Op.SUM, 1)
    assert all((one.values == len(sources)).all() for one in values)


@pytest.mark.parametrize(("dtype", "op"), DTYPES_AND_OPS)
def test_a_target_that_contributes_nothing_gets_the_result_too(dtype, op):
    divisor = 4 if op is Op.AVERAGE else 1
    absent, *sources = contributions(dtype, 3, 100)
    wanted = expected(sources, dtype, op, divisor)
    reduce(sources, [absent, *sources], dtype, op, divisor)
    assert all(same(target, wanted) for target in (absent, *sources))


@pytest.mark.parametrize("dtype", list(DType))
def test_without_sources_the_result_is_zero(dtype):
    target = np.ones(5, dtype.storage)
    reduce([], [target], dtype, Op.MIN, 1)
    assert not target.any()


def test_a_reduction_without_targets_changes_nothing():
    source = np.ones(4, np.float32)
    reduce([source, source], [], DType.FLOAT32, Op.SUM, 1)
    assert source.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("dtype", "step"), [(DType.FLOAT16, 2**-11), (DType.BFLOAT16, 2**-8)])
def test_half_types_round_once_at_the_end(dtype, step):
    values = [np.float32(1), np.float32(step), np.float32(step)]
    sources = [narrowed(np.array([value]), dtype) for value in values]
    target = np.zeros(1, dtype.storage)
    reduce(sources, [target], dtype, Op.SUM, 1)
    assert widen(target, dtype)[0] == 1 + 2 * step
    one_by_one = narrowed(widen(sources[0], dtype) + widen(sources[1], dtype), dtype)
    assert widen(one_by_one, dtype)[0] == 1


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_an_average_of_halves_does_not_overflow_on_the_way(dtype):
    largest = np.float32(60000) if dtype is DType.FLOAT16 else np.float32(2.0**127)
    sources = [narrowed(np.array([largest]), dtype) for _ in range(4)]
    halves = [narrowed(widen(source, dtype) / 2, dtype) for source in sources[:2]]
    reduce(halves, halves, dtype, Op.AVERAGE, 2)
    assert np.isfinite(widen(halves[0], dtype)).all()
    if dtype is DType.FLOAT16:
        reduce(sources, sources, dtype, Op.AVERAGE, 4)
        assert widen(sources[0], dtype)[0] == widen(narrowed(np.array([largest]), dtype), dtype)[0]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_bfloat16_rounds_as_torch_does(bits):
    torch = pytest.importorskip("torch")
    values = np.array(bits, np.uint32).view(np.float32)
    ours = narrowed(values, DType.BFLOAT16)
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    is_nan = np.isnan(values)
    assert np.array_equal(ours[~is_nan], theirs[~is_nan])
    assert np.isnan(widen(ours[is_nan], DType.BFLOAT16)).all()


@pytest.mark.parametrize(
    "value", [0.0, -0.0, np.inf, -np.inf, 3.4028235e38, 1e-45, 1.00390625, 1.01171875]
)
def test_bfloat16_rounds_special_values_as_torch_does(value):
    torch = pytest.importorskip("torch")
    ours = narrowed(np.array([value], np.float32), DType.BFLOAT16)
    theirs = torch.tensor([value]).to(torch.bfloat16).view(torch.uint16).numpy()
    assert ours.tolist() == theirs.tolist()


@given(st.lists(st.integers(0, 2**16 - 1), max_size=50))
def test_widening_bfloat16_loses_nothing(bits):
    stored = np.array(bits, np.uint16)
    wide = widen(stored, DType.BFLOAT16)
    kept = ~np.isnan(wide)
    assert np.array_equal(narrowed(wide, DType.BFLOAT16)[kept], stored[kept])


@pytest.mark.parametrize(("dtype", "op"), DTYPES_AND_OPS)
def test_the_identity_changes_nothing(dtype, op):
    total = widen(contributions(dtype, 1, 20)[0], dtype)
    before = total.copy()
    accumulate(total, identity(20, dtype, op), op)
    assert same(total, before)


@pytest.mark.parametrize(("dtype", "op"), DTYPES_AND_OPS)
@pytest.mark.parametrize("num_sources", [0, 1, 3])
def test_a_local_buffer_is_the_combination_in_the_accumulator_type(dtype, op, num_sources):
    sources = contributions(dtype, num_sources, 50)
    local = reduce_local(sources, 50, dtype, op)
    assert local.dtype == dtype.accumulator
    if sources:
        assert same(narrowed(local, dtype), expected(sources, dtype, op, 1))
    else:
        assert same(local, identity(50, dtype, op))


def test_a_local_buffer_never_shares_memory_with_a_source():
    source = np.ones(8, np.float32)
    assert not np.shares_memory(reduce_local([source], 8, DType.FLOAT32, Op.SUM), source)


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_scaling_is_division_to_the_last_bit(divisor, kind):
    values = np.random.default_rng(divisor).normal(size=1000).astype(kind)
    out = np.empty_like(values)
    scale(values, divisor, out)
    assert same(out, values / kind(divisor))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_infinities_and_nans_are_results_not_faults(dtype):
    with np.errstate(all="ignore"):
        values = narrowed(np.array([3e38, np.inf, np.nan, 1.0], np.float32), dtype)
        others = narrowed(np.array([3e38, -np.inf, 1.0, 1.0], np.float32), dtype)
    target = np.zeros(4, dtype.storage)
    reduce([values, others], [target], dtype, Op.SUM, 1)
    wide = widen(target, dtype)
    assert wide[0] == np.inf
    assert np.isnan(wide[1:3]).all()
    assert wide[3] == 2
