"""Claims of gradients that a switch adds, on several hosts: FOLDER.

The table: workers 0 and 1 and device 0 on one host, worker 2 and device 1 on another, devices 2 and 3 alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.errors import ConfigError, MismatchError, StallError
from coarse.luwu.store.fixed_point import adder_of
from tests.mpi.luwu.models import Net, loss_of
from tests.support.claims import Claim, raises, report_claims, waiting_at_most

FOLDER = Path(sys.argv[1])
SWITCH, OTHER = 2, 3
TREES: tuple[dict[str, Any], ...] = (
    {}, {"device": 0}, {"device": 1, "network": "udp"}, {"device": SWITCH, "below": {OTHER: [0, 1]}, "network": "udp"},
    {"device": OTHER, "below": {1: [0], SWITCH: [1]}, "network": "udp", "loss": 0.05},
)  # fmt: skip
HEADER_SHARE = 0.02


def gradients_of(
    make: Callable[[], nn.Module], loss: Callable[..., torch.Tensor], model: nn.Module, step: int
) -> Iterator[tuple[nn.Parameter, list[np.ndarray]]]:
    """Each parameter of a model, and what its gradient is by worker, in float32."""
    by_worker = []
    for worker in range(coarse.size()):
        twin = make()
        twin.load_state_dict(model.state_dict())
        loss(twin, worker, step, 0).backward()
        by_worker.append([parameter.grad for parameter in twin.parameters()])
    for parameter, gradients in zip(model.parameters(), zip(*by_worker, strict=True), strict=True):
        yield parameter, [one.float().numpy().reshape(-1) for one in gradients if one is not None]


def added(how: str, gradients: list[np.ndarray]) -> np.ndarray:
    """Their mean, added in order."""
    if how != "float32":
        total = np.empty_like(gradients[0])
        adder_of(how, coarse.size())(gradients, total)
        return total / np.float32(coarse.size())
    total = gradients[0].copy()
    for one in gradients[1:]:
        total += one
    return total / np.float32(coarse.size())


class Even(nn.Module):
    """One tensor of so many whole blocks of exponents that a bucket of it is cut as it is."""

    def __init__(self, rows: int = 96, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(rows, 1024).to(dtype))


def even_loss(model: nn.Module, worker: int, step: int, number: int) -> torch.Tensor:
    """Gradients whose sizes differ by row."""
    weight: Any = model.weight
    generator = torch.Generator().manual_seed(100 * step + worker)
    scales = torch.logspace(-6, 6, len(weight))
    drawn = torch.randn(weight.shape, generator=generator) * scales[:, None]
    return (weight * drawn.to(weight.dtype)).sum()


# --- the same bits


def sums_have_the_bits_of_one_place() -> None:
    for how in ("float32", "int64", "int32-switchml"):
        for tree in TREES:
            model = Even()
            optimizer = ct.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters(),
                switch=ct.Switch(sum=how, **tree),
            )  # fmt: skip
            for step in (1, 2, 3):
                wanted = [added(how, gradients) for _, gradients in gradients_of(Even, even_loss, model, step)]
                even_loss(model, coarse.rank(), step, 0).backward()
                optimizer.synchronize()
                for parameter, right in zip(model.parameters(), wanted, strict=True):
                    assert parameter.grad is not None
                    found = parameter.grad.numpy().reshape(-1)
                    assert found.tobytes() == right.tobytes(), (how, tree, step, np.abs(found - right).max())
                with optimizer.skip_sync():
                    optimizer.step()
                optimizer.zero_grad()
            optimizer.close()


def many_tensors_train_as_in_one_place() -> None:
    for how in ("float32", "int64"):
        model, twin = Net(), Net()
        own = torch.optim.AdamW(twin.parameters(), lr=1e-2)
        optimizer = ct.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=1e-2), model.named_parameters(), switch=ct.Switch(sum=how)
        )
        for step in (1, 2, 3, 4):
            for parameter, gradients in gradients_of(Net, loss_of, twin, step):
                total = np.sum(gradients, axis=0, dtype=np.float64) / coarse.size()
                parameter.grad = torch.from_numpy(total).float().view(parameter.shape)
            own.step()
            loss_of(model, coarse.rank(), step, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=2e-4, atol=2e-5)
        optimizer.close()


def half_types_are_added_in_float32() -> None:
    model = Even(16, torch.bfloat16)
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), switch=ct.Switch(sum="int64")
    )
    ((_, gradients),) = gradients_of(lambda: Even(16, torch.bfloat16), even_loss, model, 1)
    even_loss(model, coarse.rank(), 1, 0).backward()
    optimizer.synchronize()
    right = torch.from_numpy(added("int64", gradients)).bfloat16().view(model.weight.shape)
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, right)
    optimizer.close()


def what_is_no_number_is_no_number_on_all_workers() -> None:
    for how in ("int64", "int32-switchml", "float32"):
        model = Even(2)
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), switch=ct.Switch(sum=how),
            op=coarse.Sum,
        )  # fmt: skip
        gradient = torch.ones(2, 1024)
        if coarse.rank() == 1:
            gradient[0, 0], gradient[0, 1], gradient[0, 2] = float("nan"), float("inf"), float("inf")
        if coarse.rank() == 2:
            gradient[0, 2] = -float("inf")
        (model.weight * gradient).sum().backward()
        optimizer.synchronize()
        assert model.weight.grad is not None
        found = model.weight.grad.flatten().tolist()
        assert str(found[0]) == str(found[2]) == "nan", found[:4]
        assert str(found[1]) == "inf", found[:4]
        assert set(found[3:]) == {3.0}, (how, set(found[3:]))
        optimizer.close()


def parameters_that_come_later_are_added_too() -> None:
    model = Net()
    named = list(model.named_parameters())
    first, later = [p for _, p in named[:4]], [p for _, p in named[4:]]
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(first, lr=1.0), named, switch=ct.Switch(sum="int64"))
    for step in (1, 2):
        if step == 2:
            optimizer.add_param_group({"params": later})
        wanted = [total for _, total in gradients_of(Net, loss_of, model, step)]
        loss_of(model, coarse.rank(), step, 0).backward()
        optimizer.synchronize()
        for (name, parameter), gradients in zip(named, wanted, strict=True):
            if step == 2 or any(parameter is one for one in first):
                assert parameter.grad is not None
                right = sum(gradients) / coarse.size()
                found = parameter.grad.numpy().reshape(-1)
                np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6, err_msg=name)
        optimizer.zero_grad()
        for parameter in later:
            parameter.grad = None
    optimizer.close()


def a_gradient_that_some_lack_is_everybodys_beside_large_ones() -> None:
    for how in ("int32-switchml", "int64"):
        weights = {name: nn.Parameter(torch.zeros(4)) for name in ("large", "rare", "unused")}
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(weights.values(), lr=1.0), list(weights.items()), switch=ct.Switch(sum=how), op=coarse.Sum
        )
        loss = (weights["large"] * 1e30).sum()
        if coarse.rank() == 1:
            loss = loss + (weights["rare"] * 1e30).sum()
        loss.backward()
        optimizer.synchronize()
        assert weights["unused"].grad is None
        assert weights["rare"].grad is not None, how
        np.testing.assert_allclose(weights["rare"].grad.numpy(), 1e30, rtol=1e-6)
        optimizer.close()


# --- bytes


def a_switch_halves_what_a_ring_moves() -> None:
    """A host sends S and receives S, where a ring of N sends and receives 2 (N-1)/N S each."""
    size = 4 * 256 * 1024
    for how, network in (("float32", "udp"), ("int32-switchml", "mpi")):
        model = Even(256)
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters(),
            switch=ct.Switch(sum=how, network=network, device=SWITCH),
        )  # fmt: skip
        before: dict[int, tuple[int, int]] = {}
        for step in (1, 2):
            even_loss(model, coarse.rank(), step, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
            after = traffic()
            moved = {device: np.subtract(after[device], before[device]) for device in before}
            before = after
        for device, (sent, received) in {0: (1, 1), 1: (1, 1), SWITCH: (2, 2)}.items():
            for found, share in zip(moved[device], (sent, received), strict=True):
                assert abs(found - share * size) <= HEADER_SHARE * share * size, (how, device, moved, size)
        optimizer.close()


def traffic() -> dict[int, tuple[int, int]]:
    """By device, bytes to other hosts and from them, once nobody sends any more."""
    coarse.workers_comm().Barrier()
    devices = coarse.statistics(all_devices=True)["devices"]
    coarse.workers_comm().Barrier()
    names = ("between_nodes_sent_bytes", "between_nodes_received_bytes")
    return {device: (int(counts[names[0]]), int(counts[names[1]])) for device, counts in devices.items()}


# --- what is refused


def switches_that_cannot_be_are_refused() -> None:
    parameters = [nn.Parameter(torch.zeros(4))]
    for options, text in (
        ({"sum": "int16"}, "sum must be one of"), ({"network": "rdma"}, "network must be one of"),
        ({"device": 9}, "there are 4"), ({"below": {7: [0]}}, "memory devices [7]"),
        ({"loss": 0.5}, "of network='udp'"),
    ):  # fmt: skip
        with raises(ConfigError, text):
            optimizer = torch.optim.SGD(parameters, lr=1.0)
            ct.DistributedOptimizer(optimizer, [("w", parameters[0])], switch=ct.Switch(**options))


def types_that_float32_does_not_hold_are_refused() -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = ct.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], switch=ct.Switch())
    with raises(ConfigError, "adds float32"):
        weight.sum().backward()
        optimizer.step()
    optimizer.close()


def workers_that_differ_in_their_switch_are_told() -> None:
    weight = nn.Parameter(torch.zeros(4))
    with raises(MismatchError, "switch"):
        switch = ct.Switch(sum="int64" if coarse.rank() else "float32")
        ct.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], switch=switch)
    with raises(MismatchError, "switch"):
        late = None if coarse.rank() == 2 else ct.Switch()
        ct.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], switch=late)


def a_late_worker_is_named_and_the_step_goes_on() -> None:
    weight = nn.Parameter(torch.zeros(1024))
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), [("w", weight)], switch=ct.Switch(sum="int64"), op=coarse.Sum
    )
    for step in (1, 2):
        if step == 2 and coarse.rank() == 1:
            ct.push_pull(torch.zeros(1), "others have stalled")
        (weight * (coarse.rank() + step)).sum().backward()
        if step == 2 and coarse.rank() != 1:
            with waiting_at_most(0.3), raises(StallError, "ranks [1]"):
                optimizer.synchronize()
            ct.push_pull(torch.zeros(1), "others have stalled")
        optimizer.synchronize()
        assert weight.grad is not None
        assert set(weight.grad.tolist()) == {3.0 + 3 * step}, weight.grad
        optimizer.zero_grad()
    optimizer.close()


CLAIMS: tuple[Claim, ...] = (
    sums_have_the_bits_of_one_place,
    many_tensors_train_as_in_one_place,
    half_types_are_added_in_float32,
    what_is_no_number_is_no_number_on_all_workers,
    parameters_that_come_later_are_added_too,
    a_gradient_that_some_lack_is_everybodys_beside_large_ones,
    a_switch_halves_what_a_ring_moves,
    switches_that_cannot_be_are_refused,
    types_that_float32_does_not_hold_are_refused,
    workers_that_differ_in_their_switch_are_told,
    a_late_worker_is_named_and_the_step_goes_on,
)


def main() -> None:
    ct.init()
    torch.set_num_threads(1)
    report_claims(CLAIMS, FOLDER)


if __name__ == "__main__":
    main()
