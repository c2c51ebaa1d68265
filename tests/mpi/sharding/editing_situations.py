"""Situations in which parameters change other than by the optimizer, or are frozen and released."""

import copy

import torch
from torch import Tensor

from tests.mpi.sharding.situation import BLOCK, situation
from tests.support.references import Run, adapted, frozen_base


@situation()
def load_state_dict_in_mid_training(run: Run) -> None:
    run.train(0)
    kept = {name: value.clone() for name, value in run.model.state_dict().items()}
    kept_optimizer = copy.deepcopy(run.optimizer.state_dict())
    run.train(1)
    run.model.load_state_dict(kept)
    run.evaluate(2)
    run.optimizer.load_state_dict(kept_optimizer)
    run.train(3)
    run.train(4)


@situation()
def load_state_dict_into_a_frozen_model(run: Run) -> None:
    run.model.requires_grad_(False)
    kept = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.evaluate(0)
    run.model.load_state_dict({name: 1.5 * value for name, value in kept.items()})
    run.evaluate(0)
    run.model.load_state_dict(kept)
    run.evaluate(0)


@situation()
def an_edit_in_place_under_no_grad(run: Run) -> None:
    for step in range(2):
        run.train(step)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(1.25)
        run.evaluate(step)


@situation(make=frozen_base)
def an_edit_of_frozen_weights_under_no_grad(run: Run) -> None:
    for step in range(3):
        run.train(step)
        with torch.no_grad():
            run.model.get_parameter(BLOCK).mul_(-1.5)


@situation(make=frozen_base)
def an_edit_of_frozen_weights_through_data(run: Run) -> None:
    for step in range(3):
        run.train(step)
        run.model.get_parameter(BLOCK).data.mul_(-1.5)
        run.model.get_parameter(BLOCK).data.add_(0.1)


@situation(make=frozen_base)
def an_edit_through_data_of_one_element_on_one_worker(run: Run) -> None:
    for step, row in enumerate((0, -1, 3)):
        run.train(step)
        run.edit(BLOCK, lambda whole, row=row: _with(whole, (row, 0), 4.0))


@situation(make=frozen_base)
def an_edit_through_data_that_keeps_every_sum(run: Run) -> None:
    for step in range(2):
        run.train(step)
        run.edit(BLOCK, lambda whole: whole.flip(1))
        run.train(step)
        run.edit(BLOCK, lambda whole: -whole)
        run.edit("blocks.0.second.weight", lambda whole: whole.roll(1, 0))


@situation(make=frozen_base)
def an_edit_through_data_that_is_taken_back(run: Run) -> None:
    run.evaluate(0)
    kept = run.values()[BLOCK]
    run.edit(BLOCK, torch.zeros_like)
    run.evaluate(0)
    run.edit(BLOCK, lambda _: kept)
    run.train(0)


@situation(make=frozen_base)
def a_swap_of_two_frozen_weights_of_one_unit(run: Run) -> None:
    for name in ("blocks.0.norm.weight", "blocks.0.norm.bias"):
        run.edit(name, lambda whole: torch.arange(1.0, 1 + len(whole)).to(whole) / 7)
    run.train(0)
    run.edit("blocks.0.norm.weight", lambda whole: whole.roll(1))
    run.edit("blocks.0.norm.bias", lambda whole: whole.roll(2))
    run.train(1)


@situation(make=frozen_base)
def a_parameter_unfrozen_half_way(run: Run) -> None:
    run.train(0)
    run.train(1)
    run.model.get_parameter(BLOCK).requires_grad_(True)
    for step in range(2, 5):
        run.train(step)


@situation(make=frozen_base)
def a_unit_unfrozen_half_way(run: Run) -> None:
    run.train(0)
    run.model.blocks[2].requires_grad_(True)
    for step in range(1, 4):
        run.train(step)
    run.model.blocks.requires_grad_(True)
    for step in range(4, 6):
        run.train(step)


@situation()
def a_unit_frozen_half_way(run: Run) -> None:
    run.train(0)
    run.model.blocks[1].requires_grad_(False)
    run.train(1)
    run.train(2)
    run.edit(BLOCK, lambda whole: 2 * whole)
    run.train(3)
    run.model.blocks[1].requires_grad_(True)
    run.train(4)
    run.train(5)


@situation()
def all_but_one_unit_frozen_half_way(run: Run) -> None:
    run.train(0)
    run.model.requires_grad_(False)
    run.model.blocks[2].requires_grad_(True)
    for step in range(1, 4):
        run.train(step)


@situation()
def a_frozen_weight_beside_a_trainable_one_in_a_unit(run: Run) -> None:
    for block in run.model.blocks:
        block.first.weight.requires_grad_(False)
    run.train(0)
    run.edit(BLOCK, lambda whole: whole + 1)
    run.train(1)
    run.train(2)


@situation(make=frozen_base)
def weights_swapped_for_an_evaluation_between_forward_and_backward(run: Run) -> None:
    for step in range(2):
        loss = run.loss(step)
        kept = run.values()[BLOCK]
        run.edit(BLOCK, lambda whole: whole * 3)
        run.evaluate(8)
        run.edit(BLOCK, lambda _, kept=kept: kept)
        loss.backward()
        run.step()


@situation(make=lambda: frozen_base(tied=True))
def tied_weights_beside_frozen_units(run: Run) -> None:
    for step in range(3):
        run.train(step)
        run.edit(BLOCK, lambda whole: whole * 2)


@situation(make=frozen_base)
def a_frozen_unit_edited_while_no_step_uses_it(run: Run) -> None:
    run.train(0)
    run.edit(BLOCK, lambda whole: whole * 2)
    run.train(1, without=(1,))
    run.train(2, without=(1,))
    run.train(3)


@situation(make=adapted)
def adapters_beside_a_frozen_base(run: Run) -> None:
    for step in range(4):
        run.train(step)
        run.evaluate(8)


@situation(make=adapted)
def adapters_merged_into_their_base(run: Run) -> None:
    run.train(0)
    values = run.values()
    for name in [name for name in values if name.endswith("base.weight")]:
        lora_a, lora_b = (values[name.replace("base", f"lora_{side}")] for side in "ab")
        run.edit(name, lambda whole, added=2 * lora_b @ lora_a: whole + added)
        run.edit(name.replace("base", "lora_b"), torch.zeros_like)
    run.evaluate(8)
    run.train(1)


def _with(whole: Tensor, place: tuple[int, int], value: float) -> Tensor:
    whole[place] = value
    return whole
