"""What is kept of a script comes back with its types and bits, into what fits alone."""

import numpy as np
import pytest
import torch

from coarse.errors import CheckpointError, ConfigError
from coarse.faults.parts import Part, values_part
from coarse.faults.torch.parts import part_of, shared_by_all
from coarse.torch.groups.objects import TENSORS


def part(what: object, name: str = "it") -> Part:
    return part_of(name, what, set(), set())


def carried(before: object, after: object) -> None:
    """Put what is kept of `before` into `after`, by way of bytes."""
    taken = part(before).take()
    target = part(after)
    tensors = target.wanted(taken.tree)
    for item, tensor in zip(taken.items, tensors, strict=True):
        assert item.tensor.dtype == tensor.dtype
        tensor.copy_(item.tensor)
    target.put(taken.tree, tensors)


def stepped(optimizer: torch.optim.Optimizer, times: int = 3) -> None:
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = sum((p.float() ** 2).sum() for group in optimizer.param_groups for p in group["params"])
        total.backward()
        return total

    for _ in range(times):
        optimizer.step(loss)


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.LBFGS]
)
def test_an_optimizer_goes_on_as_it_would_have(kind):
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    values = torch.linspace(-1, 1, 12).view(3, 4)
    first, second = (torch.nn.Parameter(values.clone()) for _ in range(2))
    own, other = kind([first], lr=0.01, **options), kind([second], lr=0.5, **options)
    stepped(own)
    carried(own, other)
    with torch.no_grad():
        second.copy_(first)
    for optimizer in (own, other):
        stepped(optimizer)
    assert torch.equal(first, second)


def test_states_keep_their_types_where_torch_would_cast_them():
    first, second = (torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16)) for _ in range(2))
    own, other = torch.optim.Adam([first]), torch.optim.Adam([second])
    stepped(own)
    own.state[first]["exp_avg"] = torch.full((5,), 1.0 + 2**-20)  # as of an optimizer with float32 states
    carried(own, other)
    assert other.state[second]["exp_avg"].dtype == torch.float32
    assert torch.equal(other.state[second]["exp_avg"], own.state[first]["exp_avg"])


def test_a_module_s_layout_in_memory_stays():
    def made() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    own, other = made(), made()
    with torch.no_grad():
        own.weight.mul_(3)
    carried(own, other)
    assert torch.equal(own.weight, other.weight)
    assert other.weight.stride() == own.weight.stride()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (torch.nn.Linear(3, 5), r"it/weight of float32\[5, 3\] was wanted, it/weight of float32\[4, 3\] came"),
        (torch.nn.Linear(3, 4, bias=False), r"nothing more was wanted, it/bias of float32\[4\] came"),
        (torch.nn.Linear(3, 4).double(), r"it/weight of float64\[4, 3\] was wanted"),
        (torch.nn.Sequential(torch.nn.Linear(3, 4)), r"it/0.weight of float32\[4, 3\] was wanted"),
    ],
)
def test_another_model_is_refused_with_the_first_difference(other, words):
    with pytest.raises(CheckpointError, match=words):
        carried(torch.nn.Linear(3, 4), other)


def test_an_optimizer_of_other_parameters_is_refused():
    def made(count: int) -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1)) for _ in range(count)])

    with pytest.raises(CheckpointError, match="it of 3 parameters was wanted, one of 2 came"):
        carried(made(2), made(3))


@pytest.mark.parametrize("make", [lambda: torch.Generator().manual_seed(3), lambda: np.random.default_rng(3)])
def test_generators_of_the_script_go_on(make):
    def drawn(generator) -> float:
        is_torch = isinstance(generator, torch.Generator)
        return float(torch.rand((), generator=generator) if is_torch else generator.random())

    own, other = make(), make()
    drawn(own)
    carried(own, other)
    assert drawn(own) == drawn(other)


def test_values_are_plain_and_named_where_they_are_not():
    values = {"loss": [1.5, None, "text"], "rows": np.arange(3), "seen": {2, 3}}
    own, other = values_part(values, TENSORS), values_part(found := {}, TENSORS)
    taken = own.take()
    tensors = other.wanted(taken.tree)
    for item, tensor in zip(taken.items, tensors, strict=True):
        tensor.copy_(item.tensor)
    other.put(taken.tree, tensors)
    assert found["loss"] == values["loss"]
    assert found["seen"] == {2, 3}
    assert found["rows"].tolist() == [0, 1, 2]
    values["loss"].append(object())
    with pytest.raises(TypeError, match=r"values\['loss'\]\[3\] is a object"):
        own.take()


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(TypeError, match="'it' is a list; give a module, an optimizer"):
        part([1])
    with pytest.raises(ConfigError, match=r"it.weight is on the meta device"):
        part(torch.nn.Linear(1, 1, device="meta")).take()


def test_parameters_of_torch_s_ddp_are_all_workers():
    model = torch.nn.Linear(2, 2)
    frozen = model.bias.requires_grad_(False)
    wrapped = object.__new__(torch.nn.parallel.DistributedDataParallel)
    torch.nn.Module.__init__(wrapped)
    wrapped.module = model
    optimizer, other = torch.optim.SGD([model.weight]), torch.optim.SGD([frozen])
    alike, shared = shared_by_all({"model": wrapped, "optimizer": optimizer, "other": other})
    assert alike == {model.weight}
    assert shared == {id(optimizer)}
