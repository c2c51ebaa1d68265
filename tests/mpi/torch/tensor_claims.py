"""What the interface on tensors promises, against plain sums."""

import math

import pytest
import torch

import coarse
import coarse.torch as ct

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (0,), (1,), (7,), (3, 0, 2), (5, 3, 2), (100_003,))
ROUNDING = 2 * 2.0**-18
"""How far orders of summing lie apart in float32: two units in the last place of partial sums, which are below 64."""


def value_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A rank's tensor, the same wherever it is asked for."""
    generator = torch.Generator().manual_seed(1000 * rank + len(shape))
    return (torch.randn(shape, generator=generator) * 8).to(dtype)


def combined(shape: tuple[int, ...], dtype: torch.dtype, op: coarse.Op) -> torch.Tensor:
    """What push_pull gives: half types add in float32 and are rounded once."""
    values = torch.stack([value_of(rank, shape, dtype) for rank in range(ct.size())])
    wide = values.float() if dtype in (torch.float16, torch.bfloat16) else values
    if op == ct.Average:
        return (wide.sum(0) / ct.size()).to(dtype)
    results = {ct.Sum: lambda: wide.sum(0), ct.Min: lambda: wide.amin(0), ct.Max: lambda: wide.amax(0)}
    return results[op]().to(dtype)


def every_type_shape_and_operation_gives_the_sum_over_ranks() -> None:
    for dtype in (*FLOATS, torch.int32, torch.int64):
        for op in (ct.Average, ct.Sum, ct.Min, ct.Max):
            if op == ct.Average and not dtype.is_floating_point:
                continue
            for shape in SHAPES:
                name = f"all/{dtype}/{op}/{shape}"
                result = ct.push_pull(value_of(ct.rank(), shape, dtype), name, op)
                assert result.dtype == dtype
                atol = ROUNDING if (dtype, op) == (torch.float32, ct.Sum) else 1e-6
                torch.testing.assert_close(result, combined(shape, dtype, op), rtol=1e-6, atol=atol)


def a_push_pull_in_place_writes_through_strides() -> None:
    whole = torch.zeros(6, 8)
    part = whole.t()[::2, 1:4]
    part.fill_(float(ct.rank()))
    result = ct.push_pull_async_(part, "in place", ct.Sum).wait()
    assert result is part
    total = sum(range(ct.size()))
    assert (part == total).all()
    assert whole.sum() == total * part.numel()


def hundreds_of_handles_pushed_in_different_orders_complete() -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(ct.rank())).tolist()
    for _ in range(2):
        handles = {i: ct.push_pull_async(torch.full((i,), float(i)), f"many/{i}") for i in order}
        for i in reversed(order):
            assert torch.equal(ct.synchronize(handles[i]), torch.full((i,), float(i)))
            assert ct.poll(handles[i])


def a_push_is_found_by_a_later_pull() -> None:
    for step in range(3):
        ct.push(torch.full((3,), ct.rank() + step, dtype=torch.bfloat16), "separate", ct.Sum).wait()
        pulled = ct.pull("separate").wait()
        assert pulled.dtype == torch.bfloat16
        assert (pulled == sum(range(ct.size())) + step * ct.size()).all()
        with pytest.raises(TypeError, match="leave out away"):
            ct.pull("separate", torch.empty(3))


def a_tensor_in_device_memory_is_summed_where_it_lies() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tensor = ct.device_array(f"in device/{dtype}", (50, 2), dtype, ct.Sum)
        assert (tensor == 0).all()
        tensor.fill_(ct.rank() + 1)
        result = ct.push_pull_async(tensor, f"in device/{dtype}", ct.Sum).wait()
        assert result.data_ptr() == tensor.data_ptr()
        assert (tensor == sum(range(1, ct.size() + 1))).all()


def what_autograd_has_saved_is_known_to_be_overwritten() -> None:
    ct.push(torch.ones(3), "overwritten/pulled", ct.Sum).wait()
    in_device = ct.device_array("overwritten/in device", (3,))
    is_root = ct.rank() == 0
    writes = {
        "push_pull_": (True, torch.zeros(3), lambda out: ct.push_pull_(out, "overwritten/in place", ct.Sum)),
        "strided": (True, torch.zeros(3, 2)[:, 0], lambda out: ct.push_pull_(out, "overwritten/strided", ct.Sum)),
        "in device memory": (True, in_device, lambda out: ct.push_pull(out, "overwritten/in device")),
        "pull": (True, torch.zeros(3), lambda out: ct.pull("overwritten/pulled", out).wait()),
        "broadcast_": (not is_root, torch.zeros(3), lambda out: ct.broadcast_(out, 0, "overwritten/broadcast")),
        "parameters": (not is_root, torch.zeros(3), lambda out: ct.broadcast_parameters({"weight": out})),
        "push": (False, torch.zeros(3), lambda out: ct.push(out, "overwritten/pushed").wait()),
        "push_pull": (False, torch.zeros(3), lambda out: ct.push_pull(out, "overwritten/apart")),
        "allgather": (False, torch.zeros(3), lambda out: ct.allgather(out, "overwritten/gathered")),
    }
    for name, (is_written, saved, write) in writes.items():
        product = (torch.ones(3, requires_grad=True) * saved).sum()
        write(saved)
        if is_written:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()
        else:
            product.backward()
        assert saved.sum() >= 0, name


def a_write_that_is_under_way_is_known_to_autograd_before_and_after() -> None:
    before = after = torch.zeros(3)
    weight = torch.ones(3, requires_grad=True)
    product = (weight * before).sum()
    handle = ct.push_pull_async_(before, "overwritten/under way", ct.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    product = (weight * after).sum()
    handle.wait()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def types_that_cannot_travel_are_refused_with_a_remedy() -> None:
    for tensor, remedy in (
        (torch.zeros(2, dtype=torch.complex64), "view_as_real"),
        (torch.zeros(2, dtype=torch.bool), "uint8"),
        (torch.zeros(2).to_sparse(), "to_dense"),
        (torch.zeros(2, device="meta"), "materialise"),
        ([1.0], "a torch tensor was wanted"),
    ):
        with pytest.raises(TypeError, match=remedy):
            ct.push_pull(tensor, "refused")
    with pytest.raises(TypeError, match=r"coarse\.Sum"):
        ct.push_pull(torch.zeros(2, dtype=torch.int64), "refused")


def a_broadcast_has_the_exact_bits_of_its_root() -> None:
    root = ct.size() - 1
    bits = torch.tensor([0, -(2**31), 0x7FC00123, 1], dtype=torch.int32)  # 0.0, -0.0, a NaN's payload, denormal
    for name, source in {
        "float": bits.view(torch.float32),
        "bool": torch.tensor([True, False, True]),
        "int8": torch.arange(-3, 4, dtype=torch.int8),
        "complex": torch.complex(torch.arange(4.0), -torch.arange(4.0)),
        "scalar": torch.tensor(3.5),
        "strided": torch.arange(12.0).view(3, 4).t(),
    }.items():
        own = source.clone() if ct.rank() == root else torch.zeros_like(source)
        received = ct.broadcast(own, root, f"bits/{name}")
        assert received is not own
        assert received.contiguous().view(-1).view(torch.uint8).equal(source.contiguous().view(-1).view(torch.uint8))
        if ct.rank() != root:
            assert not own.any()
        ct.broadcast_(own, root, f"bits/{name}")
        assert own.contiguous().view(-1).view(torch.uint8).equal(source.contiguous().view(-1).view(torch.uint8))
    with pytest.raises(ValueError, match="root_rank"):
        ct.broadcast(torch.zeros(1), ct.size(), "bits/none")


def parameters_of_any_size_and_type_come_from_the_root() -> None:
    for seed, count in ((1, 40), (2, 3)):  # two models through the same buffers
        torch.manual_seed(100 * seed + ct.rank())
        named = {f"p{i}": torch.randn(i, 3).to(FLOATS[i % 4]) for i in range(count)}
        named |= {"big": torch.randn(3_000_001), "flag": torch.rand(5) > 0.5, "steps": torch.tensor(ct.rank())}
        named["strided"] = torch.randn(4, 6).t()
        torch.manual_seed(100 * seed)
        wanted = {f"p{i}": torch.randn(i, 3).to(FLOATS[i % 4]) for i in range(count)}
        wanted["big"] = torch.randn(3_000_001)
        ct.broadcast_parameters(named, root_rank=0)
        for name, tensor in wanted.items():
            assert torch.equal(named[name], tensor), name
        assert named["steps"] == 0
    linear = torch.nn.Linear(3, 2)
    ct.broadcast_parameters(linear.named_parameters())
    total = ct.push_pull(linear.weight, "linear weight")
    torch.testing.assert_close(total, linear.weight.detach())


def parameters_that_differ_between_ranks_are_named() -> None:
    if ct.size() == 1:
        return
    width = 4 if ct.rank() == 0 else 5
    with pytest.raises(coarse.MismatchError, match=r"'second' differs .*float32\[4\] on ranks \[0\]"):
        ct.broadcast_parameters({"first": torch.zeros(2), "second": torch.zeros(width)})
    names = ["a", "b"] if ct.rank() == 0 else ["b", "a"]
    with pytest.raises(coarse.MismatchError, match="order"):
        ct.broadcast_parameters({name: torch.zeros(2) for name in names})
    with pytest.raises(TypeError, match="'extra'"):
        ct.broadcast_parameters({"extra": 3})


def optimizer_state_comes_from_the_root_also_where_there_is_none() -> None:
    torch.manual_seed(ct.rank())
    model = torch.nn.Linear(4, 3)
    lr = torch.tensor(0.5) if ct.rank() == 0 else torch.tensor(0.25)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight], "lr": 0.1 + ct.rank()}, {"params": [model.bias], "lr": lr}], foreach=False
    )
    if ct.rank() == 0:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    ct.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.1
    assert state["param_groups"][0]["betas"] == (0.9, 0.999)
    assert state["param_groups"][1]["lr"] == 0.5
    assert state["state"][0]["step"] == 3
    for name in ("exp_avg", "exp_avg_sq"):
        mine = state["state"][0][name]
        torch.testing.assert_close(ct.push_pull(mine, f"state/{name}"), mine)
    if ct.size() > 1:
        other = torch.optim.SGD(model.parameters() if ct.rank() == 0 else [model.weight], lr=0.1)
        with pytest.raises(coarse.MismatchError, match=r"group '0' differs .*2 parameters on ranks \[0\]; 1 p"):
            ct.broadcast_optimizer_state(other)


def allgather_joins_first_dimensions_that_differ() -> None:
    for step in range(3):
        own = torch.full((ct.rank() + step, 2), ct.rank(), dtype=torch.int16)
        gathered = ct.allgather(own, "rows")
        wanted = [torch.full((rank + step, 2), rank, dtype=torch.int16) for rank in range(ct.size())]
        assert torch.equal(gathered, torch.cat(wanted))
    assert ct.allgather(torch.tensor(float(ct.rank())), "scalars").tolist() == list(range(ct.size()))
    if ct.size() > 1:
        with pytest.raises(coarse.MismatchError, match=r"float32\[1, 3\]"):
            ct.allgather(torch.zeros(1, 2 if ct.rank() == 0 else 3), "other widths")


def workers_that_have_joined_count_as_zero() -> None:
    for _ in range(2):
        results = [ct.push_pull(torch.ones(3), "uneven", ct.Sum)[0].item() for _ in range(2 * (ct.rank() + 1))]
        last = ct.join()
        assert last == ct.size() - 1
        assert results == [ct.size() - step // 2 for step in range(2 * (ct.rank() + 1))]
    assert math.isclose(ct.push_pull(torch.ones(1), "after")[0].item(), 1.0)


def ranks_that_name_different_roots_all_hear_it() -> None:
    if ct.size() == 1:
        return
    mine = torch.full((3,), ct.rank() + 1.0)
    wanted = f"rank {ct.rank()}: .*'roots' has root {ct.rank()} here, but ranks name roots from 0 to {ct.size() - 1}"
    with pytest.raises(coarse.MismatchError, match=wanted):  # each its own, so that all contribute
        ct.broadcast_(mine, ct.rank(), "roots")
    with pytest.raises(coarse.MismatchError, match="root_rank"):  # each another's, so that nobody may
        ct.broadcast_(mine, (ct.rank() + 1) % ct.size(), "roots")
    with pytest.raises(coarse.MismatchError, match="root_rank"):
        ct.broadcast_parameters({"mine": mine}, ct.rank())
    with pytest.raises(coarse.MismatchError, match="root_rank"):
        ct.broadcast_optimizer_state(torch.optim.SGD([mine]), ct.rank())
    assert mine.tolist() == [ct.rank() + 1.0] * 3
    assert ct.broadcast(mine, ct.size() - 1, "roots").tolist() == [ct.size()] * 3  # the name is good for the next


def what_needs_a_worker_that_has_joined_says_so_and_writes_nothing() -> None:
    if ct.size() == 1:
        return
    mine = torch.full((3,), ct.rank() + 1.0)
    for _ in range(2):  # a name that was used before, too
        if ct.rank() > 0:
            for call in (
                lambda: ct.broadcast_(mine, 0, "from joined"),
                lambda: ct.broadcast_parameters({"mine": mine}, 0),
                lambda: ct.broadcast_optimizer_state(torch.optim.SGD([mine]), 0),
                lambda: ct.allgather(mine, "with joined"),
            ):
                with pytest.raises(coarse.JoinedError, match=r"rank 0 has called join\(\)") as caught:
                    call()
                assert caught.value.ranks == (0,)
            ct.broadcast_(mine[:1], 1, "from the living")
        ct.join()
        assert mine.tolist() == [2.0 if ct.rank() else 1.0, ct.rank() + 1.0, ct.rank() + 1.0]
        assert len(ct.allgather(mine, "with joined")) == 3 * ct.size()
        ct.broadcast_(torch.zeros(3), 0, "from joined")


def a_join_with_a_push_in_flight_is_refused_and_the_push_counts() -> None:
    if ct.size() == 1:
        return
    mine = torch.full((3,), ct.rank() + 1.0)
    if ct.rank() == 0:
        handle = ct.push_pull_async(mine, "before join", ct.Sum)
        with pytest.raises(coarse.InFlightError, match=r"rank 0: join\(\) .*'before join'.*wait\(\)"):
            ct.join()
        ct.push_pull(torch.zeros(1), "may go on")
        total = handle.wait()
    else:
        ct.push_pull(torch.zeros(1), "may go on")
        total = ct.push_pull(mine, "before join", ct.Sum)
    assert total.tolist() == [ct.size() * (ct.size() + 1) / 2] * 3
    ct.join()


CLAIMS = [
    every_type_shape_and_operation_gives_the_sum_over_ranks,
    a_push_pull_in_place_writes_through_strides,
    hundreds_of_handles_pushed_in_different_orders_complete,
    a_push_is_found_by_a_later_pull,
    a_tensor_in_device_memory_is_summed_where_it_lies,
    what_autograd_has_saved_is_known_to_be_overwritten,
    a_write_that_is_under_way_is_known_to_autograd_before_and_after,
    types_that_cannot_travel_are_refused_with_a_remedy,
    a_broadcast_has_the_exact_bits_of_its_root,
    parameters_of_any_size_and_type_come_from_the_root,
    parameters_that_differ_between_ranks_are_named,
    optimizer_state_comes_from_the_root_also_where_there_is_none,
    allgather_joins_first_dimensions_that_differ,
    workers_that_have_joined_count_as_zero,
    ranks_that_name_different_roots_all_hear_it,
    what_needs_a_worker_that_has_joined_says_so_and_writes_nothing,
    a_join_with_a_push_in_flight_is_refused_and_the_push_counts,
]
