"""Which arrays are a key's region, of real device memory in this process."""

import numpy as np
import pytest

from coarse.client.protocol import ClientKey, KeyPhase
from coarse.client.regions import KeyRegions
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import ShardPlan
from coarse.protocol.records import Descriptor
from coarse.storage.region import DeviceMemory, create_memory_file

CAPACITY_BYTES = 1 << 16
DESCRIPTOR = Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (4, 4), 0)


@pytest.fixture
def regions():
    memory = DeviceMemory(create_memory_file("test", CAPACITY_BYTES), CAPACITY_BYTES)
    yield KeyRegions({0: memory})
    memory.close()


def state() -> ClientKey:
    plan = ShardPlan(1, 16, ((0, 1, (0,)),), ((0,),), 1)
    return ClientKey(7, DESCRIPTOR, 1, plan, (), phase=KeyPhase.IDLE, device=0, offset=4096)


def test_the_region_is_known_in_any_shape_that_has_its_order_of_elements(regions):
    array = regions.array(state())
    assert regions.holds(state(), array)
    assert regions.holds(state(), array[:])
    assert regions.holds(state(), array.reshape(-1))
    assert regions.holds(state(), regions.view(state()))


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array.T,
        lambda array: array[:2],
        lambda array: array[:, ::2],
        lambda array: np.broadcast_to(array[0], (4, 4)),
        lambda array: array[1:],
        lambda array: array.copy(),
    ],
)
def test_an_array_that_only_begins_in_the_region_is_not_the_region(regions, view):
    assert not regions.holds(state(), view(regions.array(state())))


def test_a_region_is_zeroed_when_it_is_first_used_and_not_again(regions):
    known = state()
    regions.view(known)[:] = 5
    array = regions.array(known)
    assert not array.any()
    array[...] = 3
    assert (regions.array(known) == 3).all()
