"""What travels of a group of arrays, and a group whose wait stalls."""

import numpy as np
import pytest

from coarse.client.grouped import GroupHandle, packs_of
from coarse.client.handle import Handle
from coarse.errors import InFlightError, StallError
from coarse.protocol.dtypes import DType, Op

KINDS = ((DType.FLOAT32, (2, 3)), (DType.INT64, (4,)), (DType.FLOAT32, ()), (DType.FLOAT32, (0, 7)))


def test_there_is_a_pack_for_each_type_with_its_arrays_end_to_end():
    floats, integers = packs_of("g", KINDS, Op.SUM, 3)
    assert (floats.places, floats.bounds) == ((0, 2, 3), (0, 6, 7, 7))
    assert (integers.places, integers.bounds) == ((1,), (0, 4))
    assert floats.descriptor[:5] == ("g/group 0", DType.FLOAT32, Op.SUM, (7,), 3)
    assert integers.descriptor[:5] == ("g/group 1", DType.INT64, Op.SUM, (4,), 3)
    assert packs_of("g", (), Op.SUM, 0) == ()


@pytest.mark.parametrize(
    "other",
    [
        KINDS[::-1],  # another order
        (*KINDS[:2], (DType.FLOAT32, (1,)), KINDS[3]),  # as many elements
        (KINDS[0], (DType.INT32, (4,)), *KINDS[2:]),  # another type, of another pack
        KINDS[:3],
    ],
)
def test_ranks_whose_groups_differ_anywhere_differ_in_every_pack(other):
    mine, theirs = (packs_of("g", kinds, Op.SUM, 0) for kinds in (KINDS, other))
    assert mine[0].descriptor.name == theirs[0].descriptor.name
    assert not mine[0].descriptor.is_alike(theirs[0].descriptor)
    assert f"of {len(other)} arrays #" in str(theirs[0].descriptor)


def test_what_is_no_group_is_as_it_was():
    (pack,) = packs_of("g", KINDS[:1], Op.SUM, 0)
    assert not pack.descriptor.is_alike(pack.descriptor._replace(parts=""))
    assert "of " not in str(pack.descriptor._replace(parts=""))


class Client:
    """A client whose results are what was pushed, once they have come."""

    def __init__(self) -> None:
        self.pushed: dict[str, int] = {}
        self.stalls: list[int] = []
        self.taken: list[int] = []
        self.has_come = False
        self.refused: list[tuple[str, list]] = []

    def push_pull(self, descriptor, array, out):
        key = self.pushed.setdefault(descriptor.name, len(self.pushed))
        out[...] = array
        return Handle(self, key, out, 7)

    def require_resumable(self, pushes):
        for descriptor, array in pushes:
            if (descriptor.name, array.tolist()) in self.refused:
                raise InFlightError(descriptor.name)

    def push_pull_again(self, descriptor, array, out):
        handle = self.push_pull(descriptor, array, out)
        handle.again = array
        return handle

    def await_all(self, keys, timeout_s):
        if not self.has_come:
            raise StallError("nobody")

    def is_complete(self, key):
        return self.has_come

    def take(self, key, out, timeout_s):
        self.taken.append(key)
        return out, True

    def stall(self, key, flight, array):
        self.stalls.append(key)

    def abandon(self, key, flight):
        pass


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(4),
    np.array(5, np.float32),
    np.empty((0, 7), np.float32),
]


@pytest.mark.parametrize("is_waited", [True, False])
def test_results_come_in_the_arrays_order_and_shapes(is_waited):
    client = Client()
    handle = GroupHandle(client, ARRAYS, packs_of("g", KINDS, Op.SUM, 0), is_waited=is_waited)
    assert not handle.done()
    client.has_come = True
    assert handle.done()
    for result, array in zip(handle.wait(), ARRAYS, strict=True):
        assert (result.dtype, result.shape) == (array.dtype, array.shape)
        assert np.array_equal(result, array)


@pytest.mark.parametrize("is_waited", [True, False])
def test_a_group_that_stalls_takes_no_result_so_that_the_same_call_can_go_on_with_all(is_waited):
    client = Client()
    handle = GroupHandle(client, ARRAYS, packs_of("g", KINDS, Op.SUM, 0), is_waited=is_waited)
    with pytest.raises(StallError):
        handle.wait()
    assert client.taken == []
    assert client.stalls == ([0, 1] if is_waited else [])


def test_a_group_that_would_go_on_with_other_values_resumes_nothing():
    client = Client()
    packs = packs_of("g", ((DType.FLOAT32, (2,)), (DType.INT64, (1,))), Op.SUM, 0)
    client.refused = [("g/group 1", [5])]
    with pytest.raises(InFlightError, match="g/group 1"):
        GroupHandle(client, [np.ones(2, np.float32), np.array([5])], packs, is_waited=True)
    assert not client.pushed
