"""Exponents of integer sums, on which workers agree before they push."""

from dataclasses import replace

from coarse.luwu.client.exponents import exponents_of_model
from coarse.luwu.store.declaration import ALL_REDUCE
from coarse.luwu.store.fixed_point import EXPONENT_BLOCK
from coarse.protocol.dtypes import DType
from tests.unit.luwu.device.test_served import declared


def test_each_block_of_a_chunk_has_one_exponent_whose_largest_goes_down_the_models_own_trees():
    given = replace(declared(3), nodes=(2,), switches=((4, (0, 1)),), network="udp", loss=0.25)
    model = given.model
    exponents = exponents_of_model(given)
    assert (exponents.optimizer, exponents.sum, exponents.gradients) == (ALL_REDUCE, "max", DType.INT32)
    assert (exponents.model.pulled, exponents.model.num_states, exponents.storage) == (DType.INT32, 0, None)
    for name in ("nodes", "switches", "network", "loss", "num_workers", "owner", "run"):
        assert getattr(exponents, name) == getattr(given, name)
    for unit, of_unit in zip(model.units, exponents.model.units, strict=True):
        whole, rest = divmod(unit.num_elements, model.chunk_elements)
        chunks = [model.chunk_elements] * whole + [rest] * bool(rest)
        assert of_unit.name == unit.name
        (tensor,) = of_unit.tensors
        assert tensor.shape == (sum(-(-chunk // EXPONENT_BLOCK) for chunk in chunks),)
