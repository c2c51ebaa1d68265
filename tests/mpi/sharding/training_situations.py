"""Situations that come from how a training loop runs: what is done with forwards, backwards and steps."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tests.mpi.sharding.situation import BLOCK, situation
from tests.support.references import Net, Run, adapted, frozen_base

SCALE = 2.0**10
"""Of the loss, by a gradient scaler; a power of two changes no bit."""


@situation()
def optimizer_steps(run: Run) -> None:
    for step in range(3):
        run.train(step)


def with_compiled_blocks() -> Net:
    """A frozen model with adapters; torch.compile's wrappers are its blocks."""
    net = adapted()
    for place, block in enumerate(net.blocks):
        net.blocks[place] = torch.compile(block, backend="eager")
    return net


def with_checkpointed_blocks() -> Net:
    net = Net()
    for place, block in enumerate(net.blocks):
        net.blocks[place] = checkpoint_wrapper(block)
    return net


def compiled_in_place() -> Net:
    net = Net()
    net.compile(backend="eager")
    return net


@situation(make=with_compiled_blocks)
def blocks_that_are_compiled(run: Run) -> None:
    for step in range(3):
        run.train(step)


@situation(make=with_checkpointed_blocks)
def blocks_in_checkpoint_wrappers(run: Run) -> None:
    for step in range(3):
        run.train(step)


@situation(make=compiled_in_place)
def a_model_compiled_in_place(run: Run) -> None:
    for step in range(3):
        run.train(step)


@situation()
def gradient_accumulation(run: Run) -> None:
    for step in range(0, 6, 3):
        for micro in range(3):
            (run.loss(step + micro) / 3).backward()
        run.step()


@situation()
def gradient_accumulation_without_synchronisation(run: Run) -> None:
    for step in range(0, 6, 3):
        with run.unsynchronised():
            for micro in range(2):
                (run.loss(step + micro) / 3).backward()
        (run.loss(step + 2) / 3).backward()
        run.step()


@situation()
def a_step_that_a_gradient_scaler_skips(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, backoff_factor=0.5, growth_interval=2)
    for step in range(4):
        loss = run.loss(step) * (torch.inf if step == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()


@situation()
def activation_checkpointing(run: Run) -> None:
    for step in range(3):
        run.train(step, recompute=True)


@situation()
def evaluation_between_steps(run: Run) -> None:
    run.evaluate(7)
    for step in range(3):
        run.train(step)
        run.evaluate(8)
        run.evaluate(9)


@situation()
def evaluation_between_steps_in_inference_mode(run: Run) -> None:
    run.train(0)
    for step in range(1, 3):
        run.evaluate(8, torch.inference_mode)
        run.evaluate(9, torch.inference_mode)
        run.train(step)


@situation()
def evaluation_between_forward_and_backward(run: Run) -> None:
    for step in range(2):
        loss = run.loss(step)
        run.evaluate(8)
        loss.backward()
        run.step()


@situation()
def evaluation_between_backward_and_step(run: Run) -> None:
    for step in range(3):
        run.loss(step).backward()
        run.evaluate(8)
        run.step()
        run.evaluate(8)


@situation()
def an_optimizer_step_within_backward(run: Run) -> None:
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in run.model.parameters()}

    def step_of(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step_of)
    for step in range(3):
        run.loss(step).backward()


@situation()
def two_backwards_of_one_forward(run: Run) -> None:
    for step in range(2):
        loss = run.loss(step)
        loss.backward(retain_graph=True)
        loss.backward()
        run.step()


@situation(make=lambda: Net(tied=True))
def tied_weights(run: Run) -> None:
    for step in range(3):
        run.train(step)


@situation()
def a_unit_that_some_steps_do_not_use(run: Run) -> None:
    for step, without in enumerate([(), (1,), (0, 2), (), (2,), ()]):
        run.train(step, without=without)


@situation()
def a_unit_used_twice_in_a_forward(run: Run) -> None:
    for step in range(3):
        run.train(step, repeats=2)


@situation()
def two_forwards_before_their_backwards(run: Run) -> None:
    for step in range(0, 6, 2):
        (run.loss(step) + run.loss(step + 1)).backward()
        run.step()


@situation()
def a_forward_without_a_backward(run: Run) -> None:
    run.loss(8)
    for step in range(2):
        run.train(step)
        run.loss(8)
        run.loss(9, without=(1,))


@situation()
def a_forward_that_fails_half_way(run: Run) -> None:
    for step in range(3):
        run.train(step)
        with pytest.raises(ArithmeticError):
            run.loss(8, fail_at=2)


@situation()
def a_forward_that_fails_half_way_and_other_parameters_afterwards(run: Run) -> None:
    run.train(0)
    kept = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.train(1)
    with pytest.raises(ArithmeticError):
        run.loss(8, fail_at=2)
    if not run.is_alone:
        run.model.reset_iter_state()
    run.model.load_state_dict(kept)
    run.train(2)
    run.train(3)


@situation(make=frozen_base)
def a_forward_that_fails_half_way_and_an_edit_afterwards(run: Run) -> None:
    for step in range(2):
        run.train(step)
        with pytest.raises(ArithmeticError):
            run.loss(8, fail_at=2)
        run.edit(BLOCK, lambda whole: whole * 2)
        run.edit("blocks.2.first.weight", lambda whole: whole * 2)
    run.train(2)


@situation()
def an_evaluation_that_leaves_out_a_unit_before_a_step(run: Run) -> None:
    for step in range(3):
        run.train(step)
        run.evaluate(8, without=(2,))
        run.edit("blocks.2.first.weight", lambda whole: whole * 1.5)
        run.evaluate(8)
        run.evaluate(8, without=(1,))


@situation(others=(frozen_base, lambda: Net(seed=5)))
def three_models_in_one_process(run: Run, *others: Run) -> None:
    runs = (run, *others)
    for step in range(2):
        for one in runs:
            one.train(step)
        runs[1].edit(BLOCK, lambda whole: whole * 2)
        losses = [one.loss(step + 2) for one in runs]
        for loss in losses:
            loss.backward()
        for one in runs:
            one.step()


@situation(options=(("reshard_after_forward", False),))
def units_that_stay_whole_after_forward(run: Run) -> None:
    for step in range(3):
        run.train(step)
        run.evaluate(8)
