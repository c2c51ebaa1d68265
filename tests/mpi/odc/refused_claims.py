"""Refusals and warnings of mode odc, in words; CACHE says what nodes keep, by the job's second argument."""

import sys
import warnings

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

import coarse
import coarse.torch as ct
from coarse.errors import CapacityError, ConfigError, GradientRangeError, MismatchError
from tests.mpi.odc import training
from tests.mpi.odc.training import Net, backward, digest, gradients, minibatch, samples, sharded, train, whole
from tests.support.claims import raises

CACHE = {"none": None, "all": True, "some": 20_000}[sys.argv[2]]


def what_wants_a_gradient_too_early_is_told_of_the_end() -> None:
    model = sharded(cache=CACHE)
    backward(model, samples(0)[0])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with raises(ConfigError, "end_minibatch"):
        scaler.unscale_(torch.optim.SGD(model.parameters()))
    with raises(ConfigError, "end_minibatch"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with raises(ConfigError, "end_minibatch"):
        print(model.head.weight.grad.norm())
    for look, word in (
        (lambda grad: grad.full_tensor(), "full_tensor"), (lambda grad: grad._local_tensor, "_local_tensor"),
        (lambda grad: grad.data, "data wants"), (lambda grad: getattr(grad, "to_local", None), "to_local"),
    ):  # fmt: skip
        with raises(ConfigError, word, "end_minibatch"):
            look(model.head.weight.grad)
    assert not hasattr(model.head.weight.grad, "unheard_of")
    assert model.head.weight.grad.shape == model.head.weight.shape
    ct.end_minibatch(model, num_tokens=1)
    assert float(nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()) > 0


def gradients_that_are_dropped_too_early_are_missed() -> None:
    model = sharded(cache=CACHE)
    backward(model, samples(0)[0])
    model.zero_grad()
    with raises(ConfigError, "were set", "zero_grad"):
        ct.end_minibatch(model, num_tokens=1)


def parameters_that_change_within_a_minibatch_are_told() -> None:
    model = sharded(cache=CACHE)
    backward(model, samples(0)[0])
    with torch.no_grad():
        model.head.bias.mul_(2).add_(1)
    if model.head.bias.to_local().numel():
        with raises(ConfigError, "were changed within minibatch 0", "end_minibatch"):
            model(samples(0)[0][0])


def so_are_those_that_change_by_data_which_no_counter_shows() -> None:
    model = sharded(cache=CACHE)
    backward(model, samples(0)[0])
    for parameter in model.parameters():
        parameter.data.mul_(2)
    with raises(ConfigError, "were changed within minibatch 0", "optimizer.register_step_post_hook"):
        model(samples(0)[0][0])


def what_the_error_advises_holds() -> None:
    """Weights are clipped by the optimizer's own hook, or between an end and the next forward."""

    def clip(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.data.clamp_(-0.05, 0.05)

    alone, hooked, ended = Net(), sharded(cache=CACHE), sharded(cache=CACHE)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (alone, hooked, ended)]
    optimizers[1].register_step_post_hook(lambda *_: clip(list(hooked.parameters())))
    for step in range(3):
        every = samples(step)
        for microbatch in every:
            backward(alone, microbatch, 1 / sum(len(inputs) for inputs, _ in every))
        for model, optimizer in zip((alone, hooked, ended), optimizers, strict=True):
            if model is not alone:
                minibatch(model, step)
            optimizer.step()
            optimizer.zero_grad()
            if model is ended:
                ct.end_minibatch(ended)
            if model is not hooked:
                clip(list(model.parameters()))
    for one, other, wanted in zip(whole(hooked), whole(ended), alone.parameters(), strict=True):
        torch.testing.assert_close(one, wanted.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(other, wanted.detach(), rtol=1e-9, atol=1e-9)


def they_are_told_under_a_root_without_parameters_too() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(5, 4)), nn.Sequential(nn.Linear(4, 3)))
    ct.fully_shard(model, mode="odc", cache=CACHE, units=[nn.Sequential])
    model(torch.ones(2, 5)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    with raises(ConfigError, "were changed within minibatch 0"):
        model(torch.ones(2, 5))


def values_above_the_window_are_named_and_nothing_is_written() -> None:
    for value, words in ((float("nan"), "NaN"), (1e7, "2**18 or more")):
        model = sharded(cache=CACHE)
        if coarse.rank() == 0:
            (model(samples(0)[0][0])[0, 0] * value).backward()
        with raises(GradientRangeError, words, "no gradient was written", "of worker ", "weight"):
            ct.end_minibatch(model, num_tokens=1)
        assert all(parameter.grad is None for parameter in model.parameters())
        minibatch(model, 1)
        assert model.head.weight.grad is not None


def misfits_may_be_kept_for_a_scaler() -> None:
    model = sharded(cache=CACHE)
    if coarse.rank() == 0:
        (model(samples(0)[0][0])[0, 0] * float("nan")).backward()
    ct.end_minibatch(model, num_tokens=1, misfits="keep")
    assert model.head.weight.grad.full_tensor().isnan().any()


def tokens_are_checked() -> None:
    model = sharded(cache=CACHE)
    for wrong in (-1, float("nan"), "many"):
        with raises(ConfigError, "num_tokens"):
            ct.end_minibatch(model, num_tokens=wrong)
    backward(model, samples(0)[0])
    with raises(ConfigError, "num_tokens=0", "pushed gradients"):
        ct.end_minibatch(model, num_tokens=0)
    model = sharded(cache=CACHE)
    with raises(MismatchError, "num_tokens", "on all workers"):
        ct.end_minibatch(model, num_tokens=1 if coarse.rank() == 0 else None)


def other_modes_and_settings_are_refused_by_name() -> None:
    for options, words in (
        ({"sum": "int32"}, "worker-order"), ({"sum_top": 1000}, "sum_top"), ({"cache": -1}, "cache"),
        ({"cache": True, "sum": "worker-order"}, "without cache"),
        ({"reshard_after_forward": 2}, "reshard_after_forward"),
        ({"offload_policy": CPUOffloadPolicy()}, "CPUOffloadPolicy"), ({"quantised": True}, "zeropp"),
    ):  # fmt: skip
        with raises(ConfigError, words):
            sharded(**options)
    with raises(ConfigError, "belong to mode 'odc'"):
        ct.fully_shard(Net(), sum="float32")
    with raises(ConfigError, "mode='odc'"):
        ct.end_minibatch(Net())
    model = Net()
    ct.fully_shard(model.blocks[0], mode="odc")
    with raises(ConfigError, "one for the whole model"):
        ct.fully_shard(model)


def hooks_and_divisors_are_refused_by_name() -> None:
    model = sharded(cache=CACHE)
    model.set_gradient_divide_factor(4.0)
    with raises(ConfigError, "set_gradient_divide_factor"):
        model(samples(0)[0][0])
    model = sharded(cache=CACHE)
    model.head.weight.register_post_accumulate_grad_hook(lambda _: None)
    with raises(ConfigError, "register_post_accumulate_grad_hook"):
        model(samples(0)[0][0])


def gathering_locally_is_overridden_and_said_once() -> None:
    one, other = sharded(cache=CACHE), sharded(cache=CACHE)
    minibatch(one, 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        other.set_requires_gradient_sync(False)
        minibatch(other, 0)
    assert digest(gradients(one)) == digest(gradients(other))
    has_work = bool(training.dealt(0)[coarse.rank()])
    assert [w for w in said if "set_requires_gradient_sync" in str(w.message)] or not has_work


def no_room_on_a_device_is_told_before_training() -> None:
    with raises(CapacityError, "mode 'odc'", "for int64 sums", "pieces under way"):
        ct.fully_shard(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]), mode="odc", cache=CACHE)
    train(sharded(cache=CACHE), 1)


def unequal_microbatches_in_the_order_of_workers_are_told() -> None:
    if CACHE:
        return
    model = sharded(sum="worker-order")
    for _ in range(1 + (coarse.rank() == 0)):
        backward(model, samples(0)[0])
    with raises(MismatchError, "equally many"):
        ct.end_minibatch(model, num_tokens=1)
