"""What DistributedOptimizer promises in a training loop, against one process on the global batch."""

import warnings

import pytest
import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.parallel.data.allreduce_stream import AllreduceStream
from coarse.session import current
from tests.mpi.torch.forced_split import forced
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
from tests.support.claims import raises, waiting_at_most


def is_allreduce() -> bool:
    return current().config.mode == "allreduce"


def holds_all_back() -> bool:
    """Whether the workers sum all buckets, once backward has ended."""
    return is_allreduce() or forced() == "none"


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def training_equals_one_process_on_the_global_batch() -> None:
    for in_device in both_places():
        for make in (sgd, adamw):
            pair = twins(make_optimizer=make, gradients_in_device_memory=in_device)
            ours, optimizer, alone, reference = pair
            for step in range(6):
                pair.zero_grad()
                loss = loss_of(ours, batch(step, ct.rank()))
                loss.backward()
                wanted = loss_of(alone, batch(step))
                wanted.backward()
                optimizer.step()
                reference.step()
                mean = ct.push_pull(loss.detach(), "loss")
                torch.testing.assert_close(mean, wanted.detach(), rtol=1e-5, atol=1e-6)
                require_equal(ours, alone)
            optimizer.close()


def a_sum_is_the_average_times_the_number_of_workers() -> None:
    for pair in twins_in_both_places(op=ct.Sum):
        ours, optimizer, alone, _ = pair
        pair.backward(0, ct.size())
        optimizer.synchronize()
        for mine, other in zip(ours.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-6)


def gradients_stay_views_and_a_step_moves_no_bytes() -> None:
    ours, optimizer, _, _ = twins()
    last_places, last_links = [], {}
    for step in range(4):
        optimizer.zero_grad()
        loss_of(ours, batch(step, ct.rank())).backward()
        optimizer.step()
        places = [parameter.grad.data_ptr() for parameter in ours.parameters()]
        links = ct.statistics()["links"]
        if step:
            assert places == last_places
            assert links == last_links
        last_places, last_links = places, links
    optimizer.close()


def a_gradient_that_was_none_is_copied_once_and_is_a_view_again() -> None:
    pair = twins()
    ours, _, alone, _ = pair
    places = None
    for step in range(4):
        ours.zero_grad(set_to_none=True)  # the model's own zero_grad lets go of the views
        alone.zero_grad()
        pair.backward(step)
        pair.step()
        last_places, places = places, [parameter.grad.data_ptr() for parameter in ours.parameters()]
        assert last_places in (None, places)
    pair.optimizer.close()


def pushes_begin_while_backward_still_runs() -> None:
    if holds_all_back():
        return
    ours, optimizer, _, _ = twins()
    seen = []
    ours.first.weight.register_hook(lambda _: seen.append(pushes()))
    before = pushes()
    loss_of(ours, batch(0, ct.rank())).backward()
    assert before < seen[0]
    optimizer.step()
    assert seen[0] < pushes()
    optimizer.close()


def a_second_backward_adds_to_what_was_pushed() -> None:
    for in_device in both_places():
        for op in (ct.Average, ct.Sum):
            pair = twins(op=op, gradients_in_device_memory=in_device)
            factor = ct.size() if op == ct.Sum else 1
            for step in range(3):
                pair.zero_grad()
                for part in (0, 10, 20):
                    pair.backward(step + part, factor)
                pair.step()
            pair.optimizer.close()


def a_second_backward_may_reach_a_part_of_the_model() -> None:
    for pair in twins_in_both_places():
        ours, _, alone, _ = pair
        for step in range(3):
            pair.zero_grad()
            pair.backward(step)
            loss_of(ours.first, batch(step + 5, ct.rank())).backward()
            loss_of(alone.first, batch(step + 5)).backward()
            pair.step()


def gradients_that_one_worker_alone_asks_for_push_nothing() -> None:
    for pair in twins_in_both_places():
        ours = pair[0]
        for step in range(4):
            pair.zero_grad()
            pair.backward(step)
            for when in (0, 1):
                if ct.rank() == step % ct.size():
                    torch.autograd.grad(loss_of(ours, batch(step)), list(ours.parameters()))
                if when == 0:
                    pair.step()


def gradients_accumulate_over_steps_where_nobody_zeroes_them() -> None:
    for in_device in both_places():
        for op in (ct.Average, ct.Sum):
            factor = ct.size() if op == ct.Sum else 1
            pair = twins(op=op, gradients_in_device_memory=in_device)
            for step in range(3):
                pair.backward(step, factor)
                pair.step()
            pair.step()
            pair.optimizer.close()


def several_backward_passes_are_pushed_once() -> None:
    for pair in twins_in_both_places(backward_passes_per_step=3):
        before = pushes()
        for step in range(2):
            pair.zero_grad()
            for part in range(3):
                assert pushes() == before
                pair.backward(10 * step + part)
            pair.step()
            assert pushes() == before + len(pair.optimizer._exchange.buckets)
            before = pushes()


def no_sync_accumulates_without_communication() -> None:
    for pair in twins_in_both_places():
        _, optimizer, _, _ = pair
        for step in range(3):
            pair.zero_grad()
            before = pushes()
            for part in range(2):
                with optimizer.no_sync():
                    pair.backward(10 * step + part)
            assert pushes() == before
            pair.backward(10 * step + 2)
            pair.step()


def a_step_may_be_left_out() -> None:
    for pair in twins_in_both_places():
        for step in range(4):
            pair.zero_grad()
            pair.backward(step)
            if step % 2:
                pair.step()


class Branches(nn.Module):
    """`left` and `right` take turns, `unused` never has one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.left, self.right, self.unused = nn.Linear(8, 5), nn.Linear(8, 5), nn.Linear(8, 5)
        self.goes_left = True

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, 8) -> (n, 5)."""
        return (self.left if self.goes_left else self.right)(rows)


def a_gradient_absent_on_all_ranks_is_none_and_changes_nothing() -> None:
    for pair in twins_in_both_places(Branches):
        ours, optimizer, alone, _ = pair
        for step in range(4):
            ours.goes_left = alone.goes_left = step % 2 == 0
            pair.train(step)
            for mine, other in zip(ours.parameters(), alone.parameters(), strict=True):
                assert (mine.grad is None) == (other.grad is None)
            assert optimizer.last_absent == {}


def a_gradient_absent_on_some_ranks_counts_as_zero_and_is_named() -> None:
    if ct.size() == 1:
        return
    for pair in twins_in_both_places(Branches):
        ours, optimizer, alone, _ = pair
        for step in range(3):
            ours.goes_left = (ct.rank() + step) % 2 == 0
            pair.zero_grad()
            loss_of(ours, batch(step, ct.rank())).backward()
            for rank in range(ct.size()):
                alone.goes_left = (rank + step) % 2 == 0
                (loss_of(alone, batch(step, rank)) / ct.size()).backward()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pair.step()
            lefts = sum((rank + step) % 2 == 0 for rank in range(ct.size()))
            assert optimizer.last_absent == {
                "left.weight": ct.size() - lefts,
                "left.bias": ct.size() - lefts,
                "right.weight": lefts,
                "right.bias": lefts,
            }
            assert len(caught) == (1 if step == 0 else 0)
            assert not caught or "'left.weight'" in str(caught[0].message)


def a_rank_without_any_gradient_takes_part_in_the_step() -> None:
    if ct.size() == 1:
        return
    pair = twins()
    ours, optimizer, alone, _ = pair
    if ct.rank():
        loss_of(ours, batch(0, ct.rank())).backward()
    for rank in range(1, ct.size()):
        (loss_of(alone, batch(0, rank)) / ct.size()).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair.step()
    assert set(optimizer.last_absent.values()) == {1}
    optimizer.close()


def a_rank_that_has_joined_counts_as_zero_and_is_not_absent() -> None:
    if is_allreduce():
        return
    ours, optimizer, alone, reference = twins()
    num_steps = 2 + ct.rank()
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(ours, batch(step, ct.rank())).backward()
        optimizer.step()
        assert optimizer.last_absent == {}
    last = ct.join()
    assert last == ct.size() - 1
    ct.broadcast_parameters(ours.named_parameters(), root_rank=last)
    for step in range(1 + ct.size()):
        reference.zero_grad()
        for rank in range(ct.size()):
            if step < 2 + rank:
                (loss_of(alone, batch(step, rank)) / ct.size()).backward()
        reference.step()
    require_equal(ours, alone)
    optimizer.close()


def ranks_whose_parameters_differ_all_hear_which() -> None:
    if ct.size() == 1:
        return
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2 + ct.rank()))
    with pytest.raises(coarse.MismatchError, match=r"parameter '1\.weight' differs .*float32\[2, 4\] on ranks \[0\]"):
        ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), prefix="again/")
    model = nn.Linear(4, 4)
    ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), prefix="again/").close()
    model = nn.Sequential(nn.Linear(4, 4), *([nn.Linear(4, 2)] if ct.rank() else []))
    with pytest.raises(coarse.MismatchError, match=r"'1\.weight' .*missing on ranks \[0\]"):
        ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())


def names_that_repeat_or_lack_are_refused() -> None:
    model = Mlp()
    twice = [("same", parameter) for parameter in model.parameters()]
    with pytest.raises(ValueError, match="'same' comes twice"):
        ct.DistributedOptimizer(sgd(list(model.parameters())), twice)
    with pytest.raises(ValueError, match=r"4 parameters .* not among named_parameters"):
        ct.DistributedOptimizer(sgd(list(model.parameters())), model.last.named_parameters())
    first = ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), prefix="mine/")
    with pytest.raises(ValueError, match="another DistributedOptimizer uses the prefix 'mine/'"):
        ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), prefix="mine/")
    first.close()
    ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), prefix="mine/").close()
    with pytest.raises(ValueError, match=r"Average or coarse\.Sum"):
        ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), op=ct.Max)


def parameters_have_one_optimizer_at_a_time() -> None:
    model = Mlp()
    first = ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), prefix="one/")
    for names in (model.named_parameters(), [(f"again.{name}", p) for name, p in model.named_parameters()]):
        with pytest.raises(ValueError, match=r"have a DistributedOptimizer already, with the prefix 'one/'; close\(\)"):
            ct.DistributedOptimizer(sgd(list(model.parameters())), names)
    with pytest.raises(ValueError, match="1 parameters, such as 'bias'"):
        ct.DistributedOptimizer(sgd([model.last.bias]), model.last.named_parameters())
    loss_of(model, batch(0, ct.rank())).backward()
    first.step()  # it is none the worse
    first.close()
    ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters()).close()


def an_optimizer_that_one_rank_has_not_closed_is_an_error_on_all() -> None:
    model = Mlp()
    first = ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters(), prefix="left/")
    if ct.rank() == 0 and ct.size() > 1:
        first.close()
    kind = coarse.MismatchError if ct.size() > 1 else ValueError
    with pytest.raises(kind, match="'left/'"):
        ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    first.close()


def optimizers_of_one_model_take_over_the_arrays_of_closed_ones() -> None:
    model = Mlp()
    nums_arrays = []
    for step in range(3):
        inner = torch.optim.Adam(model.parameters())
        optimizer = ct.DistributedOptimizer(inner, model.named_parameters(), parameters_in_device_memory=True)
        loss_of(model, batch(step, ct.rank())).backward()
        optimizer.step()
        optimizer.close()
        nums_arrays.append(len(current().require_client().states.arrays))
    assert len(set(nums_arrays)) == 1, nums_arrays


def a_closed_optimizer_leaves_no_hook_and_no_tensor_in_device_memory() -> None:
    for in_device in (False, True):
        model = Mlp()
        inner = torch.optim.Adam(model.parameters())
        optimizer = ct.DistributedOptimizer(inner, model.named_parameters(), parameters_in_device_memory=in_device)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, batch(step, ct.rank())).backward()
            optimizer.step()
        places = {parameter.data_ptr() for parameter in model.parameters()}
        values = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.close()
        hooks = [inner._optimizer_step_pre_hooks, inner._optimizer_step_post_hooks]
        hooks += [inner._optimizer_load_state_dict_post_hooks]
        for parameter, value in zip(model.parameters(), values, strict=True):
            hooks += [parameter._backward_hooks, parameter._post_accumulate_grad_hooks]
            assert torch.equal(parameter, value)
        assert not any(hooks)
        assert places.isdisjoint(parameter.data_ptr() for parameter in model.parameters()) is in_device
        loss_of(model, batch(2, 0)).backward()
        inner.step()


def reading_parameter_groups_pushes_nothing() -> None:
    def fill_half_a_bucket(model: Mlp, rows: torch.Tensor) -> None:
        (nn.functional.linear(rows.repeat(1, 3)[:, :17], model.last.weight) ** 2).mean().backward()

    for pair in twins_in_both_places():
        ours, optimizer, alone, _ = pair
        for step in range(3):
            pair.zero_grad()
            before = pushes()
            fill_half_a_bucket(ours, batch(step, ct.rank()))
            fill_half_a_bucket(alone, batch(step))
            if ct.rank() == 0:
                assert optimizer.param_groups[0]["params"][0] is ours.first.weight
            assert pushes() == before
            pair.backward(step)
            pair.step()


def changing_a_gradient_in_flight_is_refused() -> None:
    for pair in twins_in_both_places():
        ours, optimizer, _, _ = pair
        for change in (clip_in_place, clip_into_new_tensors):
            optimizer.zero_grad()
            loss_of(ours, batch(0, ct.rank())).backward()
            change(ours)
            with pytest.raises(coarse.InFlightError, match="before clipping"):
                optimizer.step()


def clip_in_place(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def clip_into_new_tensors(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad.clamp(-0.1, 0.1)


def until_rank_0_has_stalled(_: torch.Tensor) -> None:
    ct.push_pull(torch.ones(1), "stalled")


def a_step_that_stalled_may_be_tried_again() -> None:
    if is_allreduce() or ct.size() == 1:
        return
    for pair in twins_in_both_places():
        ours, optimizer, _, _ = pair
        if ct.rank():
            ours.first.weight.register_hook(until_rank_0_has_stalled)
        for step in range(3):
            pair.zero_grad()
            pair.backward(step)  # elsewhere it ends after rank 0 has stalled
            if ct.rank() == 0:
                with waiting_at_most(0.05), pytest.raises(coarse.StallError):
                    optimizer.step()
                until_rank_0_has_stalled(torch.ones(1))
            pair.step()


def an_optimizer_that_a_worker_makes_late_is_waited_for_and_the_worker_named() -> None:
    """For the workers' sums they open a communicator of their own, for which each may be asked again."""
    if not is_allreduce():
        return
    late = ct.size() - 1
    stream = AllreduceStream(current().worker_comm, current().require_client().link)
    if ct.rank() != late:
        words = (f"rank {ct.rank()}", "communicator", f"lacks ranks [{late}]")
        with waiting_at_most(0.1), raises(coarse.StallError, *words):
            stream.open()
    coarse.barrier()
    stream.open()
    stream.close()


def measures() -> bool:
    """Whether the first steps decide who synchronises which buckets."""
    return current().config.mode == "coarse" and not forced() and ct.size() > 1


def all_workers_come_to_the_same_split_and_train_as_one_process_does_meanwhile() -> None:
    pair = twins()
    assert pair.optimizer.dual_sync is None
    for step in range(12):
        pair.train(step)
    found = pair.optimizer.dual_sync
    assert (found is not None) == measures()
    if found is not None:
        assert (found.policy, found.kind) == (current().config.policy, "measured")
        assert found.nbytes >= sum(p.nbytes for p in pair.ours.parameters())
        text = repr(found).encode()
        numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        everybody = ct.allgather(numbers, "dual_sync").reshape(ct.size(), -1)
        assert all(bytes(row.tolist()) == text for row in everybody)
    pair.optimizer.close()


def measuring_counts_no_bytes() -> None:
    pair = twins()
    pair.train(0)
    before = ct.statistics()
    for step in range(1, 11):
        pair.train(step)
    after = ct.statistics()
    per_step = sum(b.plan.descriptor.nbytes for b in pair.optimizer._exchange._buckets)
    calls = sum(counts["bytes"] for name, counts in after["keys"].items() if name.endswith("/round"))
    calls -= sum(counts["bytes"] for name, counts in before["keys"].items() if name.endswith("/round"))
    assert after["bytes"] - before["bytes"] == 10 * per_step + calls
    assert calls <= 10 * 8 * ct.size()
    pair.optimizer.close()


CLAIMS = [
    all_workers_come_to_the_same_split_and_train_as_one_process_does_meanwhile,
    measuring_counts_no_bytes,
    training_equals_one_process_on_the_global_batch,
    a_sum_is_the_average_times_the_number_of_workers,
    gradients_stay_views_and_a_step_moves_no_bytes,
    a_gradient_that_was_none_is_copied_once_and_is_a_view_again,
    pushes_begin_while_backward_still_runs,
    a_second_backward_adds_to_what_was_pushed,
    a_second_backward_may_reach_a_part_of_the_model,
    gradients_that_one_worker_alone_asks_for_push_nothing,
    gradients_accumulate_over_steps_where_nobody_zeroes_them,
    several_backward_passes_are_pushed_once,
    no_sync_accumulates_without_communication,
    a_step_may_be_left_out,
    a_gradient_absent_on_all_ranks_is_none_and_changes_nothing,
    a_gradient_absent_on_some_ranks_counts_as_zero_and_is_named,
    a_rank_without_any_gradient_takes_part_in_the_step,
    a_rank_that_has_joined_counts_as_zero_and_is_not_absent,
    ranks_whose_parameters_differ_all_hear_which,
    names_that_repeat_or_lack_are_refused,
    parameters_have_one_optimizer_at_a_time,
    an_optimizer_that_one_rank_has_not_closed_is_an_error_on_all,
    optimizers_of_one_model_take_over_the_arrays_of_closed_ones,
    a_closed_optimizer_leaves_no_hook_and_no_tensor_in_device_memory,
    reading_parameter_groups_pushes_nothing,
    changing_a_gradient_in_flight_is_refused,
    a_step_that_stalled_may_be_tried_again,
    an_optimizer_that_a_worker_makes_late_is_waited_for_and_the_worker_named,
]
