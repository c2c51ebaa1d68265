"""Trainings in mode odc, with what it refuses (refused_claims.py); the folder takes digests, for other layouts."""

import copy
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import coarse
import coarse.torch as ct
from coarse.errors import DeadRankError
from tests.mpi.odc import checkpoints, training, two_models
from tests.mpi.odc.refused_claims import (
    CACHE,
    gathering_locally_is_overridden_and_said_once,
    gradients_that_are_dropped_too_early_are_missed,
    hooks_and_divisors_are_refused_by_name,
    misfits_may_be_kept_for_a_scaler,
    no_room_on_a_device_is_told_before_training,
    other_modes_and_settings_are_refused_by_name,
    parameters_that_change_within_a_minibatch_are_told,
    so_are_those_that_change_by_data_which_no_counter_shows,
    they_are_told_under_a_root_without_parameters_too,
    tokens_are_checked,
    unequal_microbatches_in_the_order_of_workers_are_told,
    values_above_the_window_are_named_and_nothing_is_written,
    what_the_error_advises_holds,
    what_wants_a_gradient_too_early_is_told_of_the_end,
)
from tests.mpi.odc.training import (
    NUM_STEPS,
    Net,
    Skipping,
    backward,
    dealt_to_the_last,
    digest,
    gradients,
    minibatch,
    samples,
    sharded,
    train,
    trained_alone,
    whole,
)
from tests.support.claims import Claim, raises, report_claims

FOLDER = Path(sys.argv[1])


def a_training_is_that_of_one_process() -> None:
    model, alone = sharded(cache=CACHE), trained_alone(NUM_STEPS)
    train(model, NUM_STEPS)
    for found, wanted in zip(whole(model), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-9, atol=1e-9)
    (FOLDER / f"digest{coarse.rank()}.json").write_text(json.dumps(digest(whole(model))))


def whoever_computes_what_the_bits_are_the_same() -> None:
    one, other = sharded(torch.float32, cache=CACHE), sharded(torch.float32, cache=CACHE)
    train(one, 4)
    train(other, 4, dealt_to_the_last)
    assert digest(whole(one)) == digest(whole(other))


def gradients_are_none_where_nobody_pushed_and_written_where_anybody_did() -> None:
    model = sharded(cache=CACHE)
    minibatch(model, 0, dealt_to_the_last)
    assert model.unused.grad is None
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if name != "unused")
    ct.end_minibatch(model, num_tokens=0)
    assert model.head.weight.grad is not None  # as it was: nobody called zero_grad


def gradients_that_stay_are_added_to() -> None:
    once, twice = sharded(cache=CACHE), sharded(cache=CACHE)
    minibatch(once, 0)
    minibatch(twice, 0)
    minibatch(twice, 0)
    for single, double in zip(gradients(once), gradients(twice), strict=True):
        assert (single is None and double is None) or torch.equal(2 * single, double)


def an_optimizer_ends_what_the_script_has_not() -> None:
    """The loss is divided by its tokens' total beforehand, then FSDP2's division by the workers is undone."""
    model, alone = sharded(cache=CACHE), trained_alone(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        every = samples(step)
        scale = ct.minibatch_scale(sum(len(inputs) for inputs, _ in every), model)
        for sample in training.dealt(step)[coarse.rank()]:
            backward(model, every[sample], scale)
        optimizer.step()
        optimizer.zero_grad()
    for found, wanted in zip(whole(model), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-9, atol=1e-9)


def two_optimizers_share_a_minibatch() -> None:
    model, alone = sharded(cache=CACHE), trained_alone(3)
    heads = [parameter for name, parameter in model.named_parameters() if name.startswith("head")]
    others = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    optimizers = [torch.optim.AdamW(some, lr=1e-2) for some in (heads, others)]
    for step in range(3):
        minibatch(model, step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for found, wanted in zip(whole(model), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-9, atol=1e-9)


def blocks_that_were_sharded_first_are_taken_over() -> None:
    model, alone = Net(), trained_alone(3)
    for block in model.blocks:
        ct.fully_shard(block, mode="odc", cache=CACHE)
    ct.fully_shard(model, mode="odc", cache=CACHE)
    train(model, 3)
    for found, wanted in zip(whole(model), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-9, atol=1e-9)


def mixed_precision_and_recomputation_go_with_it() -> None:
    from torch.utils.checkpoint import checkpoint

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    one, other = (sharded(torch.float32, cache=CACHE, mp_policy=policy) for _ in range(2))
    for block in other.blocks:
        inner = block.forward
        block.forward = lambda values, inner=inner: checkpoint(inner, values, use_reentrant=False)
    for model in (one, other):
        train(model, 3)
    assert digest(whole(one)) == digest(whole(other))


def only_some_parameters_train() -> None:
    models = [Net(), Net()]
    for model in models:
        for block in model.blocks:
            block.requires_grad_(False)
    ct.fully_shard(models[1], mode="odc", cache=CACHE)
    optimizers = [torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1) for model in models]
    for step in range(3):
        every = samples(step)
        total = sum(len(inputs) for inputs, _ in every)
        for microbatch in every:
            backward(models[0], microbatch, 1 / total)
        minibatch(models[1], step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for found, wanted in zip(whole(models[1]), models[0].parameters(), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-9, atol=1e-9)


def evaluation_and_loading_between_minibatches_publish() -> None:
    model, alone = sharded(cache=CACHE), trained_alone(2)
    train(model, 1)
    with torch.no_grad():
        model(samples(0)[0][0])  # by all: gathers the new values
    state = {name: value for name, value in trained_alone(2).state_dict().items()}
    ct.end_minibatch(model)  # nothing was pushed; what follows may change parameters
    for name, parameter in model.named_parameters():
        shard = torch.distributed.tensor.distribute_tensor(state[name], parameter.device_mesh, parameter.placements)
        parameter.detach().copy_(shard)
    with torch.no_grad():
        torch.testing.assert_close(model(samples(0)[0][0]), alone(samples(0)[0][0]).detach(), rtol=1e-12, atol=1e-12)


def a_checkpoint_loads_before_any_forward_and_training_goes_on() -> None:
    checkpoints.go_on_from_it(FOLDER, CACHE)


def a_plain_state_of_one_process_loads() -> None:
    checkpoints.load_a_plain_state(FOLDER, CACHE)


def no_collective_is_entered_within_a_minibatch() -> None:
    """Every collective of torch and of coarse's groups of workers raises between two ends."""
    from coarse.collectives.group import WorkerGroup

    model = sharded(cache=CACHE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    names = [
        name for name in dir(dist) if name.startswith(("all_", "reduce", "broadcast", "barrier", "gather", "scatter"))
    ]
    places = [(dist, name) for name in names if callable(getattr(dist, name))]
    places += [
        (WorkerGroup, name) for name in ("submit", "_submit_agreed", "all_gather", "reduce_scatter", "all_reduce")
    ]
    before = [(place, name, getattr(place, name)) for place, name in places]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a collective was entered")

    try:
        for place, name, _ in before:
            setattr(place, name, refuse)
        for step in range(2):
            with torch.no_grad():
                model(samples(step)[0][0])
            minibatch(model, step)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        for place, name, function in before:
            setattr(place, name, function)




def what_was_fetched_ahead_and_not_used_does_not_hold_the_next_minibatch() -> None:
    torch.manual_seed(0)
    alone = Skipping()
    model = ct.fully_shard(copy.deepcopy(alone), mode="odc", cache=CACHE, units=[nn.Linear])
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (alone, model)]
    for _ in range(3):
        (alone(torch.ones(2, 4)).sum() / 2).backward()
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            model(torch.ones(2, 4), skipped=1)
        ct.end_minibatch(model, num_tokens=2)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for found, wanted in zip(whole(model), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted.detach())


def a_worker_that_never_runs_a_model_keeps_nobody_who_does() -> None:
    """A frozen reference, which a worker without microbatches has no use for."""
    policy, reference = sharded(cache=CACHE), sharded(cache=CACHE)
    reference.requires_grad_(False)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for step in range(3):
        every = samples(step)
        if coarse.rank() == 0:
            for inputs, _ in every:
                with torch.no_grad():
                    reference(inputs)
            for sample in every:
                backward(policy, sample)
        total = sum(len(inputs) for inputs, _ in every)
        ct.end_minibatch(policy, num_tokens=total if coarse.rank() == 0 else 0)
        optimizer.step()
        optimizer.zero_grad()


def two_models_that_end_before_either_steps_train_as_each_by_itself() -> None:
    two_models.end_both_before_either_steps(CACHE)


def a_model_that_ends_and_does_not_step_is_published_to_those_who_run_it() -> None:
    two_models.one_ends_more_often_than_it_steps(CACHE)


def a_gan_trains_as_in_one_process() -> None:
    two_models.a_gan_is_that_of_one_process(CACHE)


def two_models_load_after_both_have_created_states() -> None:
    two_models.both_load_after_both_have_created_states(CACHE)


def one_worker_evaluates_before_the_others_begin() -> None:
    model = sharded(cache=CACHE)
    if coarse.rank() != 0:
        ct.publish(model)
    else:
        with torch.no_grad():
            model(samples(0)[0][0])
    coarse.barrier()
    train(model, 1)
















def a_scaler_skips_the_step_of_a_gradient_that_is_not_finite() -> None:
    model = sharded(torch.float32, cache=CACHE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = digest(whole(model))
    for step, value in ((0, float("nan")), (1, 1.0)):
        for sample in training.dealt_to_the_last(step)[coarse.rank()][:1]:
            scaler.scale(model(samples(step, torch.float32)[sample][0]).sum() * value).backward()
        scaler.scale(torch.ones(1))  # also where there was no microbatch
        ct.end_minibatch(model, num_tokens=1, misfits="keep")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert (digest(whole(model)) == before) == (step == 0)
    assert scaler.get_scale() == 2.0**7


def gathering_by_hand_comes_before_any_forward() -> None:
    one, other = sharded(cache=CACHE), sharded(cache=CACHE)
    other.blocks[0].set_modules_to_forward_prefetch([other.blocks[1], other.blocks[2]])
    for step in range(2):
        other.unshard()
        for model in (one, other):
            minibatch(model, step)
        assert digest(gradients(one)) == digest(gradients(other))


def a_wider_window_takes_larger_values() -> None:
    model = sharded(cache=CACHE, sum_top=40)
    if coarse.rank() == 0:
        (model(samples(0)[0][0])[0, 0] * 1e7).backward()
    ct.end_minibatch(model, num_tokens=1)
    assert float(model.head.bias.grad.full_tensor()[0]) == 1e7 / coarse.size()












def the_sums_of_floats_train_too() -> None:
    for kind in ("float32", "worker-order"):
        if kind == "worker-order" and CACHE:
            continue
        model = sharded(cache=CACHE, sum=kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(3):
            every = samples(step)
            for sample in range(2):
                backward(model, every[(2 * coarse.rank() + sample) % len(every)])
            ct.end_minibatch(model, num_tokens=10)
            optimizer.step()
            optimizer.zero_grad()
        assert all(bool(tensor.isfinite().all()) for tensor in whole(model))


def the_order_of_workers_gives_the_bits_of_fsdp() -> None:
    if CACHE or coarse.size() != 2:
        return
    models = [Net(torch.float32), Net(torch.float32)]
    ct.fully_shard(models[0], mode="odc", sum="worker-order")
    ct.fully_shard(models[1], mode="fsdp")
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
    for step in range(3):
        every = samples(step, torch.float32)
        for model, optimizer in zip(models, optimizers, strict=True):
            for sample in range(2):
                backward(model, every[2 * coarse.rank() + sample])
            optimizer.step()
            optimizer.zero_grad()
    assert digest(whole(models[0])) == digest(whole(models[1]))




def a_worker_that_leaves_is_named() -> None:
    """The last claim: the last worker ends one minibatch less."""
    model = sharded(cache=CACHE)
    minibatch(model, 0)
    if coarse.rank() < coarse.size() - 1:
        with raises(DeadRankError, "has shut down"):
            backward(model, samples(0)[0])
            ct.end_minibatch(model, num_tokens=1)


CLAIMS: tuple[Claim, ...] = (
    a_training_is_that_of_one_process,
    whoever_computes_what_the_bits_are_the_same,
    gradients_are_none_where_nobody_pushed_and_written_where_anybody_did,
    gradients_that_stay_are_added_to,
    an_optimizer_ends_what_the_script_has_not,
    two_optimizers_share_a_minibatch,
    blocks_that_were_sharded_first_are_taken_over,
    mixed_precision_and_recomputation_go_with_it,
    only_some_parameters_train,
    evaluation_and_loading_between_minibatches_publish,
    a_checkpoint_loads_before_any_forward_and_training_goes_on,
    a_plain_state_of_one_process_loads,
    no_collective_is_entered_within_a_minibatch,
    what_wants_a_gradient_too_early_is_told_of_the_end,
    gradients_that_are_dropped_too_early_are_missed,
    what_was_fetched_ahead_and_not_used_does_not_hold_the_next_minibatch,
    a_worker_that_never_runs_a_model_keeps_nobody_who_does,
    two_models_that_end_before_either_steps_train_as_each_by_itself,
    a_model_that_ends_and_does_not_step_is_published_to_those_who_run_it,
    a_gan_trains_as_in_one_process,
    two_models_load_after_both_have_created_states,
    one_worker_evaluates_before_the_others_begin,
    parameters_that_change_within_a_minibatch_are_told,
    so_are_those_that_change_by_data_which_no_counter_shows,
    what_the_error_advises_holds,
    they_are_told_under_a_root_without_parameters_too,
    values_above_the_window_are_named_and_nothing_is_written,
    misfits_may_be_kept_for_a_scaler,
    a_scaler_skips_the_step_of_a_gradient_that_is_not_finite,
    gathering_by_hand_comes_before_any_forward,
    a_wider_window_takes_larger_values,
    tokens_are_checked,
    other_modes_and_settings_are_refused_by_name,
    hooks_and_divisors_are_refused_by_name,
    gathering_locally_is_overridden_and_said_once,
    no_room_on_a_device_is_told_before_training,
    the_sums_of_floats_train_too,
    the_order_of_workers_gives_the_bits_of_fsdp,
    unequal_microbatches_in_the_order_of_workers_are_told,
    a_worker_that_leaves_is_named,
)

ABOUT_BITS = (a_training_is_that_of_one_process, whoever_computes_what_the_bits_are_the_same)
"""All that a job checks which a third argument "bits" asks for digests."""

if __name__ == "__main__":
    coarse.init()
    torch.set_num_threads(1)
    report_claims(ABOUT_BITS if sys.argv[3:] == ["bits"] else CLAIMS, FOLDER)
    coarse.shutdown()
