"""An optimizer whose states are on the worker's own disks has the bits of one place, and outlives its process."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import coarse.torch as ct
from coarse.errors import CapacityError, ConfigError, StorageError, UnsupportedError
from tests.mpi.luwu.models import Net, loss_of
from tests.support.paged_reference import Reference

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1}
SMALL = {"chunk_elements": 1024, "memory": 8 << 20}


def offloaded(model: nn.Module, storage: Path | None, **options: object) -> ct.OffloadedOptimizer:
    folders = None if storage is None else [storage / "one", storage / "two"]
    return ct.OffloadedOptimizer(
        model.parameters(), torch.optim.AdamW, storage=folders, **{**SETTINGS, **SMALL, **options}
    )


def train(model: nn.Module, optimizer: ct.OffloadedOptimizer, first: int, last: int) -> None:
    for step in range(first, last + 1):
        loss_of(model, 0, step, 0).backward()
        optimizer.step()
        optimizer.zero_grad()


def reference_after(steps: int) -> Reference:
    reference = Reference(Net(), 1, settings=SETTINGS)
    for step in range(1, steps + 1):
        reference.step(loss_of, step)
    return reference


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_steps_have_the_bits_of_one_place(tmp_path: Path, is_on_disk: bool) -> None:
    model = Net()
    optimizer = offloaded(model, tmp_path if is_on_disk else None)
    train(model, optimizer, 1, 8)
    assert not reference_after(8).differing(model.state_dict())
    optimizer.close()


def test_a_training_goes_on_from_its_last_step(tmp_path: Path) -> None:
    model = Net()
    optimizer = offloaded(model, tmp_path)
    train(model, optimizer, 1, 3)
    optimizer.param_groups[0]["lr"] = 5e-3
    train(model, optimizer, 4, 4)
    optimizer.close()
    model = Net()
    optimizer = offloaded(model, tmp_path, resume=True)
    assert optimizer.steps == 4
    assert optimizer.param_groups[0]["lr"] == 5e-3
    optimizer.param_groups[0]["lr"] = SETTINGS["lr"]
    train(model, optimizer, 5, 6)
    optimizer.close()
    undisturbed = Net()
    optimizer = offloaded(undisturbed, None)
    train(undisturbed, optimizer, 1, 3)
    optimizer.param_groups[0]["lr"] = 5e-3
    train(undisturbed, optimizer, 4, 4)
    optimizer.param_groups[0]["lr"] = SETTINGS["lr"]
    train(undisturbed, optimizer, 5, 6)
    optimizer.close()
    for one, other in zip(model.parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_parameters_without_gradients_stay_and_so_does_their_step_count() -> None:
    weight, unused = nn.Parameter(torch.ones(70)), nn.Parameter(torch.ones(5))
    twin = nn.Parameter(torch.ones(70))
    optimizer = ct.OffloadedOptimizer([weight, unused], torch.optim.SGD, storage=None, memory=8 << 20, lr=0.1)
    plain = torch.optim.SGD([twin], lr=0.1)
    for _ in range(3):
        weight.grad = twin.grad = torch.full((70,), 0.5)
        optimizer.step()
        plain.step()
    assert torch.equal(weight, twin)
    assert torch.equal(unused, torch.ones(5))
    optimizer.close()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="AdamW, Adam, SGD"):
        ct.OffloadedOptimizer(Net().parameters(), torch.optim.Adagrad, storage=None)
    with pytest.raises(UnsupportedError, match="float16"):
        ct.OffloadedOptimizer(Net().half().parameters(), torch.optim.AdamW, storage=None)
    with pytest.raises(CapacityError, match="raise memory"):
        offloaded(Net(), tmp_path, memory=10_000)
    optimizer = offloaded(Net(), tmp_path / "a")
    with pytest.raises(StorageError):
        offloaded(Net(), tmp_path / "a")  # it is locked
    with pytest.raises(UnsupportedError, match="closure"):
        optimizer.step(lambda: 0.0)
    optimizer.close()
    with pytest.raises(StorageError, match="resume=True"):
        offloaded(Net(), tmp_path / "a")  # it holds a training
    with pytest.raises(StorageError):
        offloaded(Net(num_blocks=1), tmp_path / "a", resume=True)


def test_its_states_are_torchs_and_go_back_and_forth() -> None:
    model, twin = Net(), Net()
    optimizer = offloaded(model, None)
    train(model, optimizer, 1, 3)
    plain = torch.optim.AdamW(twin.parameters(), **SETTINGS)
    twin.load_state_dict(model.state_dict())
    plain.load_state_dict(optimizer.state_dict())
    other = Net()
    other.load_state_dict(model.state_dict())
    again = offloaded(other, None)
    again.load_state_dict(plain.state_dict())
    for step in (4, 5):
        loss_of(twin, 0, step, 0).backward()
        plain.step()
        plain.zero_grad()
    train(other, again, 4, 5)
    train(model, optimizer, 4, 5)
    for one, two, three in zip(model.parameters(), other.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, three, rtol=1e-4, atol=1e-5)
    optimizer.close()
    again.close()



def clamp(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.01, 0.01)


def halve(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(0.5)


def replace(model: nn.Module) -> None:
    model.head.weight.data = torch.full_like(model.head.weight, 0.25)


def load(model: nn.Module) -> None:
    model.load_state_dict(Net().state_dict())


def clip_within_forward(model: nn.Module) -> None:
    model.words.max_norm = 0.5


@pytest.mark.parametrize("edit", [clamp, halve, replace, load, clip_within_forward])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_goes_on_from_what_a_script_has_written_to_parameters(
    edit: Callable[[nn.Module], None], momentum: float
) -> None:
    model, twin = Net(), Net()
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.1}
    ours = ct.OffloadedOptimizer(model.parameters(), torch.optim.SGD, storage=None, **SMALL, **settings)
    plain = torch.optim.SGD(twin.parameters(), **settings)
    edit(model)  # before the first step, too
    edit(twin)
    for step in range(1, 5):
        for one, optimizer in ((model, ours), (twin, plain)):
            loss_of(one, 0, step, 0).backward()
            if step == 2:  # between backward and step
                edit(one)
            optimizer.step()
            if step == 3:
                edit(one)
            optimizer.zero_grad()
    for name, values in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], values, msg=name)
    ours.close()


@pytest.mark.parametrize("is_stepped", [True, False])
def test_what_was_written_outlives_the_process_with_the_next_step(tmp_path: Path, is_stepped: bool) -> None:
    weight, other = nn.Parameter(torch.ones(3000)), nn.Parameter(torch.ones(70))
    settings = {"storage": [tmp_path], "lr": 0.1, "resume": False, **SMALL}
    optimizer = ct.OffloadedOptimizer([weight, other], torch.optim.SGD, **settings)
    for step in range(2):
        weight.data.fill_(2.0 + step)
        other.grad = torch.ones(70) if is_stepped else None
        optimizer.step()
    optimizer.close()
    again = [nn.Parameter(torch.zeros(3000)), nn.Parameter(torch.zeros(70))]
    optimizer = ct.OffloadedOptimizer(again, torch.optim.SGD, **{**settings, "resume": True})
    assert torch.equal(again[0], torch.full((3000,), 3.0))
    assert torch.equal(again[1], other)
    optimizer.close()


def test_a_parameter_that_cannot_be_stepped_any_more_is_named() -> None:
    weight, other = nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(70))
    optimizer = ct.OffloadedOptimizer([weight, other], torch.optim.SGD, storage=None, memory=8 << 20, lr=0.1)
    for values, words in (
        (torch.ones(6, 4), r"had the shape \[4, 6\] on this worker and has \[6, 4\]"),
        (torch.ones(6, 4).t(), r"with strides \[1, 4\]"),
        (torch.ones(4, 6).double(), "float64"),
    ):
        weight.data = values
        other.grad = torch.ones(70)
        with pytest.raises(UnsupportedError, match=f"parameter 0 of group 0 .*{words}"):
            optimizer.step()
    assert torch.equal(other, torch.ones(70))
    weight.data = torch.ones(4, 6)
    optimizer.step()
    assert torch.equal(other, torch.full((70,), 0.9))
    optimizer.close()


def two_weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(7)
    return [nn.Parameter(torch.randn(count, generator=generator)) for count in (3000, 70)]


def pull_to_zero(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """A step by gradients that are the weights."""
    for weight in weights:
        weight.grad = weight.detach().clone() if weight.requires_grad else None
    optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_parameters_that_are_added_or_unfrozen_later_are_stepped(kind: type[torch.optim.Optimizer]) -> None:
    ours, plain, others = two_weights(), two_weights(), two_weights()
    third = [nn.Parameter(torch.ones(40), requires_grad=False) for _ in range(3)]
    optimizers = (
        ct.OffloadedOptimizer([ours[0], third[0]], kind, storage=None, **SMALL, lr=0.1),
        kind([plain[0], third[1]], lr=0.1),
        ct.OffloadedOptimizer([others[0], third[2]], kind, storage=None, **SMALL, lr=0.1),
    )
    optimizers[2].add_param_group({"params": [others[1]], "lr": 0.3})
    for step in range(6):
        for weights, late, optimizer in zip((ours, plain), third, optimizers, strict=False):
            if step == 2:
                optimizer.add_param_group({"params": [weights[1]], "lr": 0.3})
            late.requires_grad_(step >= 3)
            pull_to_zero([*weights[: 1 if step < 2 else 2], late], optimizer)
        if step == 4:  # states go from one optimizer to another
            with torch.no_grad():
                for one, other in zip([*others, third[2]], [*ours, third[0]], strict=True):
                    one.copy_(other)
            optimizers[2].load_state_dict(optimizers[0].state_dict())
            third[2].requires_grad_()
    pull_to_zero([*others, third[2]], optimizers[2])
    for one, other, wanted in zip([*ours, third[0]], [*others, third[2]], [*plain, third[1]], strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)
        assert torch.equal(one, other)
    torchs = optimizers[1].state_dict()
    assert optimizers[0].state_dict()["state"].keys() == torchs["state"].keys()
    assert [group["lr"] for group in optimizers[0].state_dict()["param_groups"]] == [0.1, 0.3]
    optimizers[0].close()
    optimizers[2].close()


def test_a_group_that_cannot_be_kept_is_none_of_the_optimizers() -> None:
    weights = two_weights()
    optimizer = ct.OffloadedOptimizer([weights[0]], torch.optim.SGD, storage=None, **SMALL, lr=0.1)
    with pytest.raises(UnsupportedError, match=r"parameter 0 of group 1 is torch\.float64"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3).double())]})
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [weights[0]]})
    optimizer.add_param_group({"params": [weights[1]]})
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
    optimizer.close()
    with pytest.raises(ConfigError, match="a list of folders"):
        ct.OffloadedOptimizer([weights[0]], torch.optim.SGD, storage="here", lr=0.1)


def in_two_groups(storage: Path, *, resume: bool) -> tuple[list[nn.Parameter], ct.OffloadedOptimizer]:
    weights = two_weights()
    folders = [storage / "a", storage / "b"]
    optimizer = ct.OffloadedOptimizer([weights[0]], torch.optim.AdamW, storage=folders, resume=resume, lr=0.1, **SMALL)
    optimizer.add_param_group({"params": [weights[1]], "lr": 0.3})
    return weights, optimizer


def put_back(storage: Path, group: str, earlier: Path) -> None:
    """Have a group's folders be as they were in a copy of all."""
    for disk in ("a", "b"):
        shutil.rmtree(storage / disk / "worker-0" / group)
        shutil.copytree(earlier / disk / "worker-0" / group, storage / disk / "worker-0" / group)


def test_folders_that_a_crash_left_a_step_apart_go_on_from_the_step_that_both_have(tmp_path: Path) -> None:
    storage, earlier = tmp_path / "storage", tmp_path / "earlier"
    weights, optimizer = in_two_groups(storage, resume=False)
    for step in range(1, 6):
        pull_to_zero(weights, optimizer)
        if step == 4:
            shutil.copytree(storage, earlier)
    wanted = [weight.detach().clone() for weight in weights]
    pull_to_zero(weights, optimizer)
    optimizer.close()
    put_back(storage, "group-1", earlier)
    with pytest.raises(StorageError, match="worker-0 holds no committed step"):
        in_two_groups(storage, resume=True)  # two steps apart, as no crash leaves them
    shutil.rmtree(storage)
    shutil.copytree(earlier, storage)
    weights, optimizer = in_two_groups(storage, resume=True)
    pull_to_zero(weights, optimizer)
    optimizer.close()
    put_back(storage, "group-1", earlier)
    weights, optimizer = in_two_groups(storage, resume=True)
    assert optimizer.steps == 4
    optimizer.close()
    weights, optimizer = in_two_groups(storage, resume=True)
    assert optimizer.steps == 4  # the fifth step of one folder, whose slots may be written to by now, is void
    pull_to_zero(weights, optimizer)
    optimizer.close()
    weights, optimizer = in_two_groups(storage, resume=True)
    assert optimizer.steps == 5
    assert all(torch.equal(one, other) for one, other in zip(weights, wanted, strict=True))
    optimizer.close()


def test_groups_that_were_added_before_a_resume_are_missed(tmp_path: Path) -> None:
    weights, optimizer = in_two_groups(tmp_path, resume=False)
    pull_to_zero(weights, optimizer)
    optimizer.close()
    optimizer = ct.OffloadedOptimizer(
        [weights[0]], torch.optim.AdamW, storage=[tmp_path / "a", tmp_path / "b"], resume=True, lr=0.1, **SMALL
    )
    with pytest.raises(ConfigError, match=r"had added parameter groups \[1\]; call add_param_group"):
        optimizer.step()
    optimizer.add_param_group({"params": [weights[1]], "lr": 0.2})
    assert optimizer.param_groups[1]["lr"] == 0.3  # as it was
    pull_to_zero(weights, optimizer)
    assert optimizer.steps == 2
    optimizer.close()


def test_a_resume_that_is_left_to_what_is_there_goes_on_or_begins(tmp_path: Path) -> None:
    for last in (0, 2, 4):  # in empty folders first
        model = Net()
        optimizer = offloaded(model, tmp_path, resume="auto")
        assert optimizer.steps == last
        train(model, optimizer, last + 1, last + 2)
        optimizer.close()
    assert not reference_after(6).differing(model.state_dict())
    with pytest.raises(StorageError, match="another model's states"):
        offloaded(Net(num_blocks=1), tmp_path, resume="auto")
    with pytest.raises(ConfigError, match="resume is True, False or 'auto', got 'always'"):
        offloaded(Net(), tmp_path, resume="always")
    optimizer = offloaded(Net(), None, resume="auto")
    assert optimizer.steps == 0
    optimizer.close()


@pytest.mark.parametrize("resume", [False, "auto"])
def test_folders_of_a_run_that_ended_before_its_first_commit_count_as_empty(tmp_path: Path, resume: object) -> None:
    offloaded(Net(), tmp_path).close()
    (tmp_path / "one" / "worker-0" / "node-0" / "commit-0").write_bytes(b"")
    with pytest.raises(StorageError, match="holds no committed step"):
        offloaded(Net(), tmp_path, resume=True)
    model = Net()
    optimizer = offloaded(model, tmp_path, resume=resume)
    train(model, optimizer, 1, 2)
    optimizer.close()
    assert not reference_after(2).differing(model.state_dict())
    with pytest.raises(StorageError, match="holds step 2 of a training"):
        offloaded(Net(), tmp_path)
