"""Workers that shard, call or register equally large parts of a model in other orders: an error on all of them."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import coarse.torch as ct
from coarse.errors import MismatchError
from tests.support.claims import Claim, raises

WIDTH = 16
MODES = ("fsdp", "hybrid", "zeropp", "fcdp")


class Pair(nn.Module):
    """Two layers of one size, each with values of its own."""

    def __init__(self, names: tuple[str, str] = ("first", "second")) -> None:
        super().__init__()
        for name in names:
            torch.manual_seed(len(name))
            self.add_module(name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, WIDTH) -> the same shape."""
        return self.second(self.first(inputs))


class Branches(Pair):
    """Two layers of one size, of which the workers of the second node use another one."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, WIDTH) -> the same shape."""
        return (self.first if is_on_first_node() else self.second)(inputs)


def is_on_first_node() -> bool:
    return ct.rank() < 2


def in_order(modules: list[nn.Module]) -> list[nn.Module]:
    """As they are on the first node, reversed on the second."""
    return modules if is_on_first_node() else modules[::-1]


def inputs() -> Tensor:
    return torch.ones(2, WIDTH)


def shard_in_order(mode: str) -> Pair:
    model = Pair()
    for layer in in_order([model.first, model.second]):
        ct.fully_shard(layer, mode)
    return ct.fully_shard(model, mode)


def buffers_taken_in_another_order_are_an_error_on_all() -> None:
    model = shard_in_order("fcdp")
    for _ in range(2):  # a forward that is tried again is refused again
        with raises(MismatchError, "first, made by call", "rank 0", "rank 2"):
            model(inputs())


def layers_sharded_in_another_order_are_gathered_by_name() -> None:
    for mode in ("fsdp", "zeropp", "hybrid"):
        torch.testing.assert_close(shard_in_order(mode)(inputs()), Pair()(inputs()))


def roots_called_in_another_order_are_an_error_on_all(mode: str) -> None:
    roots = [ct.fully_shard(nn.Linear(WIDTH, WIDTH), mode) for _ in range(2)]
    with raises(MismatchError):
        for root in in_order(roots):
            root(inputs()).sum().backward()


def roots_called_in_another_order_later_are_an_error_on_all(mode: str) -> None:
    roots = [ct.fully_shard(nn.Linear(WIDTH, WIDTH), mode) for _ in range(2)]
    for root in roots:
        root(inputs()).sum().backward()
    with raises(MismatchError):
        for root in in_order(roots):
            root(inputs()).sum().backward()


def a_forward_that_was_refused_may_be_tried_again(mode: str) -> None:
    plain = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    for seed, layer in enumerate(plain):
        torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(seed))
        torch.nn.init.zeros_(layer.bias)
    roots = [ct.fully_shard(copy.deepcopy(layer), mode) for layer in plain]
    with raises(MismatchError):
        for root in in_order(roots):
            root(inputs()).sum().backward()
    for _ in range(2):
        for root, layer in zip(roots, plain, strict=True):
            torch.testing.assert_close(root(inputs()), layer(inputs()))


def models_without_parameters_of_their_own_are_told_apart(mode: str) -> None:
    models = [Pair(), Pair()]
    for model in models:
        for layer in (model.first, model.second):
            ct.fully_shard(layer, mode)
        ct.fully_shard(model, mode)
    with raises(MismatchError):
        for model in in_order(models):
            model(inputs()).sum().backward()


def parameters_registered_in_another_order_are_an_error_on_all(mode: str) -> None:
    names = ("first", "second") if is_on_first_node() else ("second", "first")
    with raises(MismatchError, "first", "second", "rank 2"):
        ct.fully_shard(Pair(names), mode, units=[])


def gradients_of_other_branches_are_an_error_on_all(mode: str) -> None:
    model = ct.fully_shard(Branches(), mode, units=[])
    loss = model(inputs()).sum()
    with raises(MismatchError):
        loss.backward()


def options_that_differ_are_an_error_on_all() -> None:
    policy = torch.distributed.fsdp.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if is_on_first_node() else torch.float16
    )
    with raises(MismatchError, "bfloat16", "float16"):
        ct.fully_shard(Pair(), mp_policy=policy)


def of(check: Callable[[str], None], mode: str) -> Claim:
    claim = partial(check, mode)
    claim.__name__ = f"{check.__name__} {mode}"  # type: ignore[attr-defined]
    return claim


def claims() -> Iterator[Claim]:
    """Every claim."""
    yield buffers_taken_in_another_order_are_an_error_on_all
    yield layers_sharded_in_another_order_are_gathered_by_name
    yield options_that_differ_are_an_error_on_all
    for mode in MODES:
        yield of(roots_called_in_another_order_are_an_error_on_all, mode)
        yield of(roots_called_in_another_order_later_are_an_error_on_all, mode)
        yield of(a_forward_that_was_refused_may_be_tried_again, mode)
        yield of(models_without_parameters_of_their_own_are_told_apart, mode)
        yield of(parameters_registered_in_another_order_are_an_error_on_all, mode)
        yield of(gradients_of_other_branches_are_an_error_on_all, mode)
