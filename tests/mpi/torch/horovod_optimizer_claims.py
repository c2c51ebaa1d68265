"""Horovod's options of an optimizer and BytePS' CrossBarrier: claims that each rank checks."""

import warnings

import torch
from torch import nn

import coarse
import coarse.torch as ct
from tests.mpi.torch.drawn import RANK, SIZE, require_equal
from tests.support.claims import raises

# --- the optimizer

def trained(steps: int = 4, **options: object) -> list[torch.Tensor]:
    """A small model's parameters after some steps on this rank's part of a batch."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    options.setdefault("named_parameters", model.named_parameters())
    passes = options.get("backward_passes_per_step", 1)
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), **options)
    made = torch.Generator().manual_seed(3)
    batches = torch.randn(steps * passes, SIZE, 5, 6, generator=made)
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(passes):
            (model(batches[step * passes + number, RANK]).square().mean() / passes).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.close()
    return [parameter.detach().clone() for parameter in model.parameters()]


def require_close(found: list[torch.Tensor], wanted: list[torch.Tensor], tolerance: float) -> None:
    """Near, and the same bits on all ranks."""
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert torch.equal(ct.broadcast(one, 0), one)


class Embedded(nn.Module):
    """A table whose gradients are sparse, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(words)).square().mean()


def embedded_training(ranks: list[int], **options: object) -> list[torch.Tensor]:
    """Parameters after some steps on the batches of `ranks`; with options, each member's on its own."""
    torch.manual_seed(7)
    model = Embedded()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    if options:
        optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    words = torch.randint(10, (3, SIZE, 6), generator=torch.Generator().manual_seed(2))
    for batch in words:
        optimizer.zero_grad()
        losses = [model(batch[rank]) for rank in ([RANK] if options else ranks)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    if options:
        optimizer.close()
    return [parameter.detach().clone() for parameter in model.parameters()]


def an_optimizer_of_a_process_set_combines_its_members_gradients() -> None:
    if SIZE == 1:
        return
    rest = ct.add_process_set(range(1, SIZE))
    everyone = ct.add_process_set(range(SIZE))
    alone = ct.ProcessSet([0])
    ct.add_process_set(alone)
    mine, ranks = (rest, list(range(1, SIZE))) if RANK else (alone, [0])
    before = {name for name in coarse.statistics()["keys"] if "optimizer" in name}
    wanted = embedded_training(ranks)
    for one, other in zip(embedded_training(ranks, process_set=mine), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    for one, other in zip(embedded_training([RANK], process_set=rest), wanted, strict=True):  # of which rank 0 is none
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert {name for name in coarse.statistics()["keys"] if "optimizer" in name} == before
    whole = trained()
    require_close(trained(process_set=everyone), whole, 1e-6)
    require_close(trained(process_set=everyone, gradient_predivide_factor=3.0), whole, 1e-6)
    require_close(trained(process_set=everyone, compression=ct.Compression.bf16), whole, 2e-2)
    if RANK:  # members alone may make one, and optimizers of all are numbered as before
        trained(process_set=rest)
    require_close(trained(), whole, 0.0)

    parameter = nn.Parameter(torch.full((3,), float(RANK)))
    ct.broadcast_parameters({"parameter": parameter}, SIZE - 1 if RANK else 0, mine)
    require_equal(parameter.detach(), torch.full((3,), float(SIZE - 1 if RANK else 0)))
    optimizer = ct.DistributedOptimizer(torch.optim.SGD([parameter], 1.0), process_set=rest)
    for passes in (2, 1):  # a second gradient is added once
        optimizer.zero_grad()
        for _ in range(passes):
            (parameter.sum() * (RANK + 1)).backward()
        optimizer.synchronize()
        mean = passes * sum(rank + 1 for rank in range(1, SIZE)) / (SIZE - 1) if RANK else passes
        torch.testing.assert_close(parameter.grad, torch.full((3,), float(mean)))
    loss = optimizer.step(lambda: RANK)
    assert loss == (sum(range(1, SIZE)) / (SIZE - 1) if RANK else 0)
    optimizer.close()

    if SIZE > 2 and RANK:
        with raises(coarse.MismatchError, "among the members of ProcessSet([1, 2", "[4]", "[3]"):
            odd = nn.Parameter(torch.ones(4 if RANK == 1 else 3))
            ct.DistributedOptimizer(torch.optim.SGD([odd], 0.1), process_set=rest)
    with raises(coarse.ConfigError, "parameters_in_device_memory"):
        ct.DistributedOptimizer(
            torch.optim.SGD([parameter], 0.1), process_set=mine, parameters_in_device_memory=True
        )
    with raises(coarse.ConfigError, "CrossBarrier"):
        model = nn.Linear(2, 2)
        ct.CrossBarrier(model, torch.optim.SGD(model.parameters(), 0.1), process_set=mine)
    for known in (rest, everyone, alone):
        ct.remove_process_set(known)


def horovods_options_of_the_optimizer_train_alike() -> None:
    wanted = trained()
    require_close(trained(named_parameters=None), wanted, 0.0)
    require_close(trained(num_groups=2, groups=None, sparse_as_dense=True), wanted, 0.0)
    require_close(trained(compression=ct.Compression.none, op=ct.Average), wanted, 0.0)
    require_close(trained(gradient_predivide_factor=4.0), wanted, 1e-6)
    require_close(trained(gradient_predivide_factor=3.0, gradients_in_device_memory=False), wanted, 1e-6)
    require_close(trained(compression=ct.Compression.fp16), wanted, 2e-3)
    require_close(trained(compression=ct.Compression.bf16, gradient_predivide_factor=2.0), wanted, 2e-2)
    require_close(trained(backward_passes_per_step=2), trained(backward_passes_per_step=2), 0.0)


def compressed_gradients_are_half_as_many_bytes() -> None:
    def pushed(prefix: str) -> float:
        keys = coarse.statistics()["keys"]
        return float(sum(counts["bytes"] for name, counts in keys.items() if name.startswith(prefix)))

    for prefix, compression in (("whole/", ct.Compression.none), ("halves/", ct.Compression.fp16)):
        model = nn.Linear(60, 60)
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), compression, prefix=prefix
        )
        model(torch.ones(1, 60)).sum().backward()
        optimizer.step()
        optimizer.close()
    assert pushed("whole/") > 0
    assert pushed("halves/") < 0.6 * pushed("whole/")


def sparse_gradients_may_be_made_dense() -> None:
    table = nn.Embedding(7, 3, sparse=True)
    ct.broadcast_parameters(table.state_dict())
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), 1.0), table.named_parameters(), op=ct.Sum, sparse_as_dense=True
    )
    before = table.weight.detach().clone()
    table(torch.tensor([RANK, RANK, 6])).sum().backward()
    optimizer.step()
    counts = torch.zeros(7, 1)
    for rank in range(SIZE):
        counts[rank] += 2
        counts[6] += 1
    torch.testing.assert_close(before - table.weight.detach(), counts.expand(7, 3))
    optimizer.close()


def the_number_of_backward_passes_may_change_between_steps() -> None:
    model = nn.Linear(2, 1)
    ct.broadcast_parameters(model.state_dict())
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    for passes in (1, 3, 2):
        optimizer.set_backward_passes_per_step(passes)
        for _ in range(passes):
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        require_equal(model.weight.grad, torch.full((1, 2), float(passes)))
        optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    with raises(coarse.InFlightError, "call step() first"):
        optimizer.set_backward_passes_per_step(1)
    with raises(ValueError, "at least 1"):
        optimizer.set_backward_passes_per_step(0)
    optimizer.step()
    optimizer.close()


def a_crossed_barrier_trains_to_the_same_bits() -> None:
    def run(kind: str, make: object, *, clip: bool = False, set_to_none: bool = True) -> list[torch.Tensor]:
        torch.manual_seed(11)
        model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 2))
        ct.broadcast_parameters(model.state_dict())
        inner = make(model.parameters())
        if kind == "crossed":
            optimizer = ct.CrossBarrier(model, inner, model.named_parameters(), num_steps=7)
        else:
            optimizer = ct.DistributedOptimizer(inner, model.named_parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        made = torch.Generator().manual_seed(3 + RANK)
        for step in range(7):
            optimizer.zero_grad(set_to_none)
            model(torch.randn(4, 30, generator=made)).square().mean().backward()
            if clip:
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            schedule.step()
            if step == 3:
                kept = [value.clone() for value in model.state_dict().values()]
                optimizer.state_dict()
        found = [*kept, *(parameter.detach().clone() for parameter in model.parameters())]
        optimizer.close()
        return found

    makers = (
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, 0.01),
        lambda parameters: torch.optim.RMSprop(parameters, 0.01),
    )
    for make in makers:
        for options in ({}, {"clip": True}, {"set_to_none": False}):
            found, wanted = run("crossed", make, **options), run("plain", make, **options)
            for one, other in zip(found, wanted, strict=True):
                if SIZE < 3:  # of more, the devices and the workers' all-reduce add in orders of their own
                    assert torch.equal(one, other)
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    model = nn.Linear(2, 1)
    with raises(coarse.ConfigError, "LBFGS"):
        ct.CrossBarrier(model, torch.optim.LBFGS(model.parameters()))
    in_place = nn.Sequential(nn.Linear(2, 1))
    in_place[0].compile(backend="eager")
    with raises(coarse.ConfigError, "'0' was compiled by Module.compile"):
        ct.CrossBarrier(in_place, torch.optim.SGD(in_place.parameters(), 0.1))
    optimizer = ct.CrossBarrier(model, torch.optim.SGD(model.parameters(), 0.1))
    with raises(coarse.ConfigError, "closure"):
        optimizer.step(lambda: 0.0)
    optimizer.close()


class Waves(nn.Module):
    """Complex parameters, one without dimensions and one in another order of elements, beside a real one."""

    def __init__(self) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(7)

        def parameter(*shape: int, dtype: torch.dtype = torch.complex64) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, dtype=dtype, generator=made))

        self.real, self.waves, self.scale = parameter(5, dtype=torch.float32), parameter(3, 5), parameter()
        self.turned = nn.Parameter(parameter(5, 2, dtype=torch.complex128).detach().t())

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the loss of rows (n, 3)."""
        heights = ((given.to(torch.complex64) @ self.waves) * self.scale * self.real).abs().square().mean()
        return heights + (self.turned.sum() * (2 + 1j)).abs().float() * given.mean()


def complex_parameters_train_as_in_one_process() -> None:
    made = torch.Generator().manual_seed(3)
    parts = [torch.randn(4, 3, generator=made) for _ in range(SIZE)]
    for options in ({}, {"gradients_in_device_memory": False}, {"compression": ct.Compression.fp16}):
        ours, alone = Waves(), Waves()
        reference = torch.optim.Adam(alone.parameters(), 0.01)
        optimizer = ct.DistributedOptimizer(
            torch.optim.Adam(ours.parameters(), 0.01), ours.named_parameters(), **options
        )
        for _ in range(3):
            optimizer.zero_grad()
            reference.zero_grad()
            ours(parts[RANK]).backward()
            (sum(alone(part) for part in parts) / SIZE).backward()
            optimizer.step()
            reference.step()
        optimizer.close()
        rtol = 1e-2 if options.get("compression") else 1e-4
        for one, other in zip(ours.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=1e-5)


class Branched(nn.Module):
    """Whatever a module may do with its parameters before its forward pass, or its children's."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.normed = nn.utils.weight_norm(nn.Linear(8, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.tied = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.tied.weight
        self.later = nn.Linear(8, 8)
        self.later.requires_grad_(False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """(n, 3, 8) -> (n, 3, 8)"""
        mixed = self.normed(self.compiled(given))
        mixed = mixed + self.attention(mixed, mixed, mixed, need_weights=False)[0]
        return self.later(self.last(torch.tanh(self.tied(mixed))))


def a_crossed_barrier_waits_wherever_parameters_are_used() -> None:
    def run(kind: str) -> list[torch.Tensor]:
        torch.manual_seed(13)
        model = Branched()
        ct.broadcast_parameters(model.state_dict())
        inner = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], 0.01)
        if kind == "crossed":
            optimizer = ct.CrossBarrier(model, inner, list(model.named_parameters()))
        else:
            optimizer = ct.DistributedOptimizer(inner, list(model.named_parameters()))
        made = torch.Generator().manual_seed(3 + RANK)
        seen = []

        def step() -> None:
            optimizer.zero_grad()
            model(torch.randn(4, 3, 8, generator=made)).square().mean().backward()
            optimizer.step()

        step()
        with torch.inference_mode():
            seen.append(model.eval()(torch.ones(1, 3, 8)).clone())
        model.train()
        first = {name: value.clone() for name, value in model.state_dict().items()}
        step()
        step()
        model.load_state_dict(first)
        with torch.no_grad():
            seen.append(model(torch.ones(1, 3, 8)))
        step()
        optimizer.zero_grad()
        model.later.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.later.parameters())})
        step()
        step()
        seen += [value.clone() for value in model.state_dict().values()]
        optimizer.close()
        return seen

    for one, other in zip(run("crossed"), run("plain"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def options_that_mean_nothing_are_refused() -> None:
    parameter = nn.Parameter(torch.ones(2))

    def made(**options: object) -> None:
        ct.DistributedOptimizer(torch.optim.SGD([parameter], 0.1), **options).close()

    with raises(ValueError, "op=coarse.Average alone"):
        made(op=ct.Sum, gradient_predivide_factor=2.0)
    with raises(ValueError, "above 0"):
        made(gradient_predivide_factor=0.0)
    with raises(TypeError, "Compression.none, fp16 or bf16"):
        made(compression="fp16")
    with raises(coarse.ConfigError, "add_process_set"):
        made(process_set=ct.ProcessSet([0]))
    with raises(TypeError, "ProcessSet"):
        made(process_set=[0])
    with raises(ValueError, "Adasum"):
        made(op=ct.Adasum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made()


CLAIMS = [
    an_optimizer_of_a_process_set_combines_its_members_gradients,
    horovods_options_of_the_optimizer_train_alike,
    compressed_gradients_are_half_as_many_bytes,
    sparse_gradients_may_be_made_dense,
    the_number_of_backward_passes_may_change_between_steps,
    a_crossed_barrier_trains_to_the_same_bits,
    complex_parameters_train_as_in_one_process,
    a_crossed_barrier_waits_wherever_parameters_are_used,
    options_that_mean_nothing_are_refused,
]
