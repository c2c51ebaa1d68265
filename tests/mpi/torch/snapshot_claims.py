"""Snapshots of models and optimizers, checked on every worker; the argument is a folder."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import coarse
import coarse.torch as ct
from coarse.snapshots.files.restore import read_checkpoint
from tests.support.claims import raises, report_claims

folder: Path
"""Of this run."""
Optimizers = Callable[..., torch.optim.Optimizer]


class Net(torch.nn.Module):
    """Several types, tied weights, running statistics, a mask, and a layer in bfloat16."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(64, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.narrow = torch.nn.Linear(16, 16).to(torch.bfloat16)
        self.head = torch.nn.Linear(16, 64, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.rand(16) > 0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embedding(tokens)) * self.mask
        return self.head(self.narrow(hidden.to(torch.bfloat16)).float())


def train(model: Net, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step * coarse.size() + coarse.rank())
        tokens = torch.randint(64, (8,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        ct.broadcast_parameters(
            {name: value for name, value in model.state_dict().items() if "running" in name}
        )


def make(kind: Optimizers, seed: int = 0, **options: object) -> tuple[Net, ct.DistributedOptimizer]:
    model = Net(seed)
    inner = kind(model.parameters(), lr=0.01)
    return model, ct.DistributedOptimizer(inner, model.named_parameters(), **options)  # type: ignore[arg-type]


def frozen(model: Net, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
    return copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())


def same(found: object, wanted: object) -> None:
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        assert isinstance(found, dict)
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            same(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert isinstance(found, list | tuple)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert found == wanted


KINDS: dict[str, Optimizers] = {
    "sgd": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "foreach": lambda params, lr: torch.optim.Adam(params, lr, foreach=True, amsgrad=True),
    "tensor": lambda params, lr: torch.optim.AdamW(params, torch.tensor(lr), foreach=False),
}


def check_a_round_trip(name: str, kind: Optimizers, *, in_device: bool) -> None:
    path = folder / f"{name}{in_device}"
    model, optimizer = make(kind, parameters_in_device_memory=in_device)
    train(model, optimizer, range(3))
    wanted = frozen(model, optimizer)
    handle = ct.snapshot(path, model=model, optimizer=optimizer, step=3, metadata={"epoch": 1})
    train(model, optimizer, range(3, 8))
    finished = frozen(model, optimizer)
    handle.wait()
    coarse.barrier()
    other_model, other_optimizer = make(kind, seed=9, parameters_in_device_memory=in_device)
    checkpoint = ct.restore(path, model=other_model, optimizer=other_optimizer)
    assert (checkpoint.step, checkpoint.metadata) == (3, {"epoch": 1})
    same(frozen(other_model, other_optimizer), wanted)
    train(other_model, other_optimizer, range(3, 8))
    same(frozen(other_model, other_optimizer), finished)
    assert other_model.head.weight is other_model.embedding.weight
    optimizer.close()
    other_optimizer.close()
    coarse.barrier()


def a_training_goes_on_from_a_snapshot_as_if_it_had_never_stopped() -> None:
    for name, kind in KINDS.items():
        check_a_round_trip(name, kind, in_device=False)


def so_it_does_with_parameters_and_state_in_device_memory() -> None:
    for name, kind in KINDS.items():
        check_a_round_trip(name, kind, in_device=True)


def in_device_memory_training_gives_the_same_values() -> None:
    results = []
    for in_device in (False, True):
        model, optimizer = make(torch.optim.AdamW, parameters_in_device_memory=in_device)
        train(model, optimizer, range(5))
        results.append(frozen(model, optimizer))
        optimizer.close()
    same(results[1], results[0])


def state_in_device_memory_is_not_copied_by_the_call() -> None:
    model = torch.nn.Linear(300, 300)
    ct.broadcast_parameters(model.named_parameters())
    inner = torch.optim.AdamW(model.parameters())
    optimizer = ct.DistributedOptimizer(
        inner,
        ((f"alone.{name}", p) for name, p in model.named_parameters()),
        parameters_in_device_memory=True,
    )
    model(torch.ones(300)).sum().backward()
    optimizer.step()
    states = coarse.session.current().require_client().states
    for parameter in model.parameters():
        assert states.at(parameter.data_ptr()) is not None
        for value in inner.state[parameter].values():
            assert states.at(value.data_ptr()) is not None
    ct.snapshot(folder / "alone", optimizer=optimizer, step=1).wait()
    coarse.barrier()
    found = coarse.restore(folder / "alone").tensors
    assert "optimizer/alone.weight/exp_avg" in found
    assert "model/alone.weight" in found
    optimizer.close()
    coarse.barrier()


def models_with_equal_names_are_kept_apart() -> None:
    models, optimizers = [], []
    for in_device in (True, True, False):
        model = torch.nn.Linear(7, 7)
        ct.broadcast_parameters(model.named_parameters())
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        models.append(model)
        optimizers.append(
            ct.DistributedOptimizer(
                inner, model.named_parameters(), parameters_in_device_memory=in_device
            )
        )
    wanted = [copy.deepcopy(model.state_dict()) for model in models]
    for number, model in enumerate(models):
        ct.snapshot(folder / f"equal{number}", model=model, optimizer=optimizers[number], step=0)
    with torch.no_grad():
        for model in models:
            coarse.before_overwrite()
            model.weight.zero_()
    ct.snapshot(folder / "later", model=models[0], step=1).wait()
    coarse.barrier()
    for number, model in enumerate(models):
        ct.restore(folder / f"equal{number}", model=model, optimizer=optimizers[number])
    same([model.state_dict() for model in models], wanted)
    for optimizer in optimizers:
        optimizer.close()
    coarse.barrier()


def another_model_is_refused_and_nothing_is_changed() -> None:
    small = torch.nn.Linear(3, 2)
    ct.broadcast_parameters(small.named_parameters())
    ct.snapshot(folder / "small", model=small, step=0).wait()
    coarse.barrier()
    large = torch.nn.Linear(3, 4)
    before = large.weight.clone()
    with raises(coarse.CheckpointError, "model/weight", "float32[4, 3]", "float32[2, 3]"):
        ct.restore(folder / "small", model=large)
    assert torch.equal(large.weight, before)
    with raises(coarse.CheckpointError, "no optimizer"):
        ct.restore(
            folder / "small", model=small, optimizer=torch.optim.SGD(small.parameters(), lr=1.0)
        )
    coarse.barrier()


def a_plain_optimizer_is_kept_too() -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 5)).square().sum() + model.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    wanted = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    ct.snapshot(folder / "plain", model=model, optimizer=optimizer, step=1).wait()
    coarse.barrier()
    optimizer.step(closure)
    ct.restore(folder / "plain", model=model, optimizer=optimizer)
    same((model.state_dict(), optimizer.state_dict()), wanted)
    coarse.barrier()


def writes_of_others_than_the_optimizer_wait_until_a_snapshot_has_copied() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1500, 1500, bias=False) for _ in range(coarse.size())))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = ct.DistributedOptimizer(inner, model.named_parameters(), parameters_in_device_memory=True)
    others = {name: torch.full_like(value, 2.0) for name, value in model.state_dict().items()}
    weights = list(model.parameters())

    def load_parts() -> None:
        for part in model:
            part.load_state_dict({"weight": others["0.weight"]})

    writes: dict[str, Callable[[], object]] = {
        "load": lambda: model.load_state_dict(others),
        "load parts": load_parts,
        "broadcast all": lambda: ct.broadcast_parameters(model.state_dict(), root_rank=0),
        "broadcast": lambda: [ct.broadcast_(w.data, 0, f"broadcast {i}") for i, w in enumerate(weights)],
        "push_pull": lambda: [ct.push_pull_(w.data.view(-1), f"sum {i}", ct.Sum) for i, w in enumerate(weights)],
    }
    for name, write in writes.items():
        with torch.no_grad():
            for weight in weights:
                weight.fill_(1.0)
        handle = ct.snapshot(folder / name, model=model, optimizer=optimizer, step=1)
        if "broadcast" in name and ct.rank() == 0:  # the root writes nothing, and the others hold what it held
            coarse.before_overwrite()
            for weight in weights:
                weight.data.fill_(2.0)
        write()
        handle.wait()
        tensors = read_checkpoint(folder / name).tensors
        for stored in others:
            assert (tensors[f"model/{stored}"].array == 1.0).all(), (name, stored)
        coarse.barrier()
    optimizer.close()


def buffers_that_workers_have_unlike_are_rank_0s() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), *(torch.nn.BatchNorm1d(40) for _ in range(5)))
    for name, buffer in model.named_buffers():
        buffer.fill_(10 * coarse.rank() + len(name))
    ct.snapshot(folder / "buffers", model=model, step=1).wait()
    coarse.barrier()
    for buffer in model.buffers():
        buffer.fill_(-1)
    ct.restore(folder / "buffers", model=model)
    for name, buffer in model.named_buffers():
        assert (buffer == len(name)).all(), (name, buffer)
    with raises(coarse.SnapshotError, "'none' was named as unlike"):
        coarse.snapshot(folder / "none", step=1, unlike=["none"])
    coarse.barrier()


CLAIMS = (
    buffers_that_workers_have_unlike_are_rank_0s,
    writes_of_others_than_the_optimizer_wait_until_a_snapshot_has_copied,
    a_training_goes_on_from_a_snapshot_as_if_it_had_never_stopped,
    so_it_does_with_parameters_and_state_in_device_memory,
    in_device_memory_training_gives_the_same_values,
    state_in_device_memory_is_not_copied_by_the_call,
    models_with_equal_names_are_kept_apart,
    another_model_is_refused_and_nothing_is_changed,
    a_plain_optimizer_is_kept_too,
)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    ct.init()
    report_claims(CLAIMS, sys.argv[2])
    ct.shutdown()
