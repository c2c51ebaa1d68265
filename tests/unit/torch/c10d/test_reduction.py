"""Reductions in the types that MPI adds, against the same in float64."""

import numpy as np
import pytest

from coarse.torch.c10d.reduction import Operation, Reduction

COMBINE = {Operation.SUM: np.add, Operation.PRODUCT: np.multiply, Operation.MIN: np.minimum, Operation.MAX: np.maximum}


def reduced(reduction, arrays):
    """What ranks with these arrays end with, MPI's part done by numpy."""
    wide = [reduction.to_wire(array) for array in arrays]
    total = wide[0].copy()
    for array in wide[1:]:
        total = COMBINE[reduction.wire_operation](total, array)
    out = np.empty_like(arrays[0])
    reduction.from_wire(total, out, len(arrays))
    return out


def test_half_types_add_in_float32_and_are_rounded_once():
    small = np.full(4, 1 / 2048, np.float16)
    arrays = [np.ones(4, np.float16), *[small] * 8]
    assert (reduced(Reduction("float16", Operation.SUM), arrays) == np.float16(1 + 8 / 2048)).all()


def test_an_average_is_divided_at_its_end():
    arrays = [np.full(3, value, np.float64) for value in (1, 2, 6)]
    assert (reduced(Reduction("float64", Operation.AVERAGE), arrays) == 3).all()


@pytest.mark.parametrize("element", ["int8", "int64", "uint8"])
def test_an_average_of_integers_is_rounded_toward_zero(element):
    rows = [(1, 2, 4), (0, 0, 1), (100, 20, 7)]
    rows += [(-1, -2, -4), (-1, 0, -1), (-3, 2, -1)] if element.startswith("i") else []
    arrays = [np.array(column, element) for column in zip(*rows, strict=True)]
    wanted = [int(sum(row) / 3) for row in rows]
    assert reduced(Reduction(element, Operation.AVERAGE), arrays).tolist() == wanted


@pytest.mark.parametrize(("operation", "combined"), [(Operation.SUM, np.any), (Operation.PRODUCT, np.all)])
def test_sums_and_products_of_truth_values_are_or_and_and(operation, combined):
    arrays = [np.array(row, np.uint8) for row in ([0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1])]
    assert (reduced(Reduction("bool", operation), arrays) == combined(arrays, axis=0)).all()


@pytest.mark.parametrize(
    ("element", "operation", "words"),
    [
        ("float32", Operation.BIT_XOR, "needs integers"),
        ("bool", Operation.AVERAGE, "no average"),
        ("complex64", Operation.SUM, "convert to one of"),
        ("float8_e4m3fn", Operation.SUM, "convert to one of"),
    ],
)
def test_what_cannot_be_combined_is_refused(element, operation, words):
    with pytest.raises(TypeError, match=words):
        Reduction(element, operation)
