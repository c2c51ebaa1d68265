"""What DistributedOptimizer promises together with the rest of torch, against one process."""

import copy
import os
import signal
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import coarse
import coarse.torch as ct
from coarse.session import current
from tests.mpi.torch.training import (
    Mlp,
    batch,
    both_places,
    loss_of,
    pushes,
    require_equal,
    sgd,
    twins,
    twins_in_both_places,
)


class Tied(nn.Module):
    """One matrix at both ends."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.encode, self.decode = nn.Linear(8, 6, bias=False), nn.Linear(8, 6, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, 8) -> (n, 8)."""
        return torch.tanh(self.encode(rows)) @ self.decode.weight


def tied_weights_are_pushed_once() -> None:
    for in_device in both_places():
        ours, alone = Tied(), Tied()
        names = list(ours.named_parameters(remove_duplicate=False))
        assert len(names) == 2
        optimizer = ct.DistributedOptimizer(sgd(list(ours.parameters())), names, gradients_in_device_memory=in_device)
        reference = sgd(list(alone.parameters()))
        for step in range(3):
            optimizer.zero_grad()
            reference.zero_grad()
            loss_of(ours, batch(step, ct.rank())).backward()
            loss_of(alone, batch(step)).backward()
            optimizer.step()
            reference.step()
            require_equal(ours, alone)
        optimizer.close()


def two_optimizers_of_a_gan_stay_apart() -> None:
    def train(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], rank: int | None) -> None:
        (maker, judge), (of_maker, of_judge) = models, optimizers
        for step in range(3):
            rows = batch(step, rank)
            of_judge.zero_grad()
            loss = (judge(rows) - 1).square().mean() + judge(maker(rows).detach()).square().mean()
            loss.backward()
            of_judge.step()
            of_maker.zero_grad()
            (judge(maker(rows)) - 1).square().mean().backward()  # also leaves gradients in the judge
            of_maker.step()

    def models() -> list[nn.Module]:
        torch.manual_seed(6)
        return [nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1))]

    for in_device in both_places():
        ours, alone = models(), models()
        optimizers = [
            ct.DistributedOptimizer(
                sgd(list(m.parameters())), m.named_parameters(), gradients_in_device_memory=in_device
            )
            for m in ours
        ]
        train(ours, optimizers, ct.rank())
        train(alone, [sgd(list(m.parameters())) for m in alone], None)
        for mine, other in zip(ours, alone, strict=True):
            require_equal(mine, other)
        for optimizer in optimizers:
            optimizer.close()


class Checkpointed(nn.Module):
    """A layer that runs twice, each time recomputed in its own backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.before, self.shared, self.after = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.is_reentrant = True

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, 8) -> (n, 4)."""
        hidden = self.before(rows)
        for _ in range(2):
            hidden = torch.tanh(checkpoint(self.shared, hidden, use_reentrant=self.is_reentrant))
        return self.after(hidden)


def activation_checkpointing_may_run_a_layer_twice() -> None:
    for is_reentrant in (True, False):
        for pair in twins_in_both_places(Checkpointed):
            ours, _, alone, _ = pair
            ours.is_reentrant = alone.is_reentrant = is_reentrant
            for step in range(3):
                pair.train(step)


def all_reduce_in_order_refuses_what_it_cannot_reduce() -> None:
    if current().config.mode != "allreduce":
        return
    ours = Checkpointed()
    ours.before = ours._modules.pop("before")  # named last, so that its bucket is expected first
    optimizer = ct.DistributedOptimizer(sgd(list(ours.parameters())), ours.named_parameters())
    with pytest.raises(coarse.InFlightError, match='mode "allreduce" reduces buckets in order'):
        loss_of(ours, batch(0, ct.rank())).backward()
    optimizer.step()
    optimizer.close()


def a_grad_scaler_unscales_gradients_of_all_ranks() -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int | None, unscales: bool) -> list[float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step, rank))
            if step == 2 and rank in (None, 0):  # one rank alone overflows
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    def fused(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01, fused=True)

    for in_device in both_places():
        for make in (sgd, fused):
            for unscales in (True, False):
                ours, optimizer, alone, reference = twins(make_optimizer=make, gradients_in_device_memory=in_device)
                scales = train(ours, optimizer, ct.rank(), unscales)
                assert scales == train(alone, reference, None, unscales)
                assert min(scales) < 16.0
                require_equal(ours, alone)
                optimizer.close()


def gradients_may_be_clipped_between_synchronize_and_step() -> None:
    for pair in twins_in_both_places():
        ours, optimizer, alone, reference = pair
        for step in range(4):
            pair.zero_grad()
            pair.backward(step)
            optimizer.synchronize()
            norm = nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
            torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), 0.1))
            before = pushes()
            if step % 2:
                with optimizer.skip_sync():
                    optimizer.step()
            else:
                optimizer.step()  # knows that nothing has come since
            assert pushes() == before
            reference.step()
            require_equal(ours, alone)
        loss_of(ours, batch(9, ct.rank())).backward()
        with optimizer.skip_sync(), pytest.raises(coarse.InFlightError, match=r"call synchronize\(\) first"):
            optimizer.step()
        optimizer.step()


def learning_rate_schedulers_take_either_optimizer() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> list[torch.optim.lr_scheduler.LRScheduler]:
        return [
            torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
            torch.optim.lr_scheduler.StepLR(optimizer, step_size=2),
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for before_wrapping in (False, True):
            ours, alone = Mlp(), Mlp()
            inner, reference = sgd(list(ours.parameters())), sgd(list(alone.parameters()))
            schedulers = schedule(inner) if before_wrapping else []
            optimizer = ct.DistributedOptimizer(inner, ours.named_parameters())
            assert isinstance(optimizer, torch.optim.Optimizer)
            schedulers = schedulers or schedule(optimizer)
            references = schedule(reference)
            for step in range(6):
                optimizer.zero_grad()
                reference.zero_grad()
                loss_of(ours, batch(step, ct.rank())).backward()
                loss_of(alone, batch(step)).backward()
                optimizer.step()
                reference.step()
                for scheduler in schedulers + references:
                    scheduler.step()
                assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"]
                require_equal(ours, alone)
            optimizer.close()


def closures_and_lbfgs_see_gradients_of_all_ranks() -> None:
    def lbfgs(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, tolerance_change=0.0)

    def evaluate(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, rows)
        loss.backward()
        return loss

    def searching(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=1.0, max_iter=4, line_search_fn="strong_wolfe")

    for make in (sgd, lbfgs, searching):
        ours, optimizer, alone, reference = twins(make_optimizer=make)
        for step in range(3):
            loss = optimizer.step(partial(evaluate, ours, optimizer, batch(step, ct.rank())))
            wanted = reference.step(partial(evaluate, alone, reference, batch(step)))
            torch.testing.assert_close(loss, wanted)
            require_equal(ours, alone)
        optimizer.close()


def a_closure_may_return_a_number_something_else_or_nothing() -> None:
    mine = ("mine", ct.rank())
    for returned, wanted in ((2.0 * ct.rank(), ct.size() - 1.0), (mine, mine), (None, None)):
        _, optimizer, *_ = twins()
        assert optimizer.step(lambda returned=returned: returned) == wanted
        optimizer.close()
    if ct.size() > 1:
        _, optimizer, *_ = twins()
        with pytest.raises(coarse.MismatchError, match="return the loss from the closure on every rank"):
            optimizer.step(lambda: 1.0 if ct.rank() == 0 else None)
        optimizer.close()


def state_dicts_are_those_of_the_wrapped_optimizer() -> None:
    pair = twins()
    ours, optimizer, _, reference = pair
    for step in range(2):
        pair.zero_grad()
        pair.backward(step)
        optimizer.step()
        reference.step()
    saved, wanted = optimizer.state_dict(), reference.state_dict()
    assert saved["param_groups"] == wanted["param_groups"]
    optimizer.load_state_dict(copy.deepcopy(wanted))
    ct.broadcast_optimizer_state(optimizer, root_rank=ct.size() - 1)
    assert optimizer.state[ours.first.weight].keys() == {"momentum_buffer"}
    assert optimizer.defaults["momentum"] == 0.9
    for step in range(2):
        pair.zero_grad(set_to_none=False)
        pair.backward(step)
        pair.step()
    optimizer.close()


def layers_that_thaw_are_added_or_refused() -> None:
    ours, alone = Mlp(), Mlp()
    for model in (ours, alone):
        model.first.requires_grad_(False)
        model.middle.requires_grad_(False)
    reference = sgd(list(alone.last.parameters()))
    inner = sgd([*ours.middle.parameters(), *ours.last.parameters()])
    frozen = ct.DistributedOptimizer(inner, ours.named_parameters(), prefix="frozen/")
    ours.middle.requires_grad_(True)
    with pytest.raises(ValueError, match=r"'middle\.weight' was frozen"):
        frozen.step()
    frozen.close()
    optimizer = ct.DistributedOptimizer(sgd(list(ours.last.parameters())), ours.named_parameters())
    for step in range(4):
        if step == 2:
            for model, adds in ((ours, optimizer), (alone, reference)):
                model.first.requires_grad_(True)
                adds.add_param_group({"params": list(model.first.parameters()), "lr": 0.01})
        optimizer.zero_grad()
        reference.zero_grad()
        loss_of(ours, batch(step, ct.rank())).backward()
        loss_of(alone, batch(step)).backward()
        optimizer.step()
        reference.step()
        require_equal(ours, alone)
    optimizer.close()


class Mixed(nn.Module):
    """Several types and a memory format other than the usual."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.image = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.wide = nn.Linear(3, 4).double()
        self.brain = nn.Linear(4, 300).bfloat16()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, 8) -> (n, 300)."""
        images = self.image(rows.view(-1, 2, 2, 2).contiguous(memory_format=torch.channels_last))
        wide = self.wide(images.flatten(1).double())
        return self.brain(wide.bfloat16()).float() * self.scale


def types_and_memory_formats_may_be_mixed() -> None:
    for pair in twins_in_both_places(Mixed):
        ours, optimizer, alone, _ = pair
        for step in range(2):
            optimizer.zero_grad()
            loss_of(ours, batch(step, ct.rank())).backward()
            optimizer.synchronize()
            parts = []
            for rank in range(ct.size()):
                alone.zero_grad()
                loss_of(alone, batch(step, rank)).backward()
                parts.append([parameter.grad.clone() for parameter in alone.parameters()])
            for mine, *theirs in zip(ours.parameters(), *parts, strict=True):
                wide = torch.stack([part.float() if part.dtype == torch.bfloat16 else part for part in theirs])
                torch.testing.assert_close(mine.grad, wide.mean(0).to(mine.dtype), rtol=1e-6, atol=1e-6)
                assert mine.grad.stride() == mine.stride()


def a_forked_child_cannot_use_device_memory() -> None:
    ours, optimizer, _, _ = twins()
    loss_of(ours, batch(0, ct.rank())).backward()
    optimizer.synchronize()
    child = os.fork()
    if not child:
        try:
            ct.push_pull(torch.ones(1), "from a child")
        except coarse.NotInitializedError:
            os._exit(17)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    if current().config.mode != "allreduce":
        child = os.fork()
        if not child:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            ours.first.weight.grad.sum()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    optimizer.close()


def data_loaders_may_fork_beside_an_optimizer() -> None:
    ours, optimizer, _, _ = twins()
    rows = torch.utils.data.TensorDataset(batch(0))
    for _ in range(2):
        for (part,) in torch.utils.data.DataLoader(rows, batch_size=4, num_workers=2):
            optimizer.zero_grad()
            loss_of(ours, part).backward()
            optimizer.step()
    optimizer.close()


def gradients_outlive_the_optimizer_and_the_job() -> None:
    pair = twins()
    ours, optimizer, alone, _ = pair
    pair.backward(0)
    optimizer.synchronize()
    optimizer.close()
    del optimizer
    ct.shutdown()
    for mine, other in zip(ours.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-6)
        mine.grad.add_(1.0)
    with pytest.raises(coarse.NotInitializedError, match="shutdown"):
        ct.push_pull(torch.ones(1), "too late")


def closed_optimizers_give_their_memory_back() -> None:
    def used_bytes() -> float:
        coarse.barrier()
        return sum(device["memory_used_bytes"] for device in coarse.statistics()["devices"].values())

    model = nn.Linear(256, 256)
    used = []
    for _ in range(4):
        optimizer = ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()
        gradient = model.weight.grad.clone()
        optimizer.close()
        torch.testing.assert_close(model.weight.grad, gradient)
        used.append(used_bytes())
    one_set = coarse.size() * 4.1 * sum(parameter.numel() for parameter in model.parameters())
    assert used[-1] - used[0] <= one_set  # the last close may still be on its way to the devices


CLAIMS = [
    closed_optimizers_give_their_memory_back,
    tied_weights_are_pushed_once,
    two_optimizers_of_a_gan_stay_apart,
    activation_checkpointing_may_run_a_layer_twice,
    all_reduce_in_order_refuses_what_it_cannot_reduce,
    a_grad_scaler_unscales_gradients_of_all_ranks,
    gradients_may_be_clipped_between_synchronize_and_step,
    learning_rate_schedulers_take_either_optimizer,
    closures_and_lbfgs_see_gradients_of_all_ranks,
    a_closure_may_return_a_number_something_else_or_nothing,
    state_dicts_are_those_of_the_wrapped_optimizer,
    layers_that_thaw_are_added_or_refused,
    types_and_memory_formats_may_be_mixed,
    a_forked_child_cannot_use_device_memory,
    data_loaders_may_fork_beside_an_optimizer,
]
