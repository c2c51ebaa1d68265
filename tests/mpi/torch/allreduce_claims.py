"""Reductions and what is built on them, by Horovod's and BytePS' names: claims that each rank checks."""

import itertools
import math
import time

import torch
from torch import nn

import coarse
import coarse.torch as ct
from tests.mpi.torch.drawn import RANK, SHAPES, SIZE, TYPES, drawn, of_all, require_equal
from tests.support.claims import IN_TIME_S, raises

# --- allreduce

def an_allreduce_sums_every_type_and_shape_by_name_or_without() -> None:
    for seed, (dtype, shape) in enumerate(itertools.product(TYPES, SHAPES)):
        own, wanted = drawn(shape, dtype, seed), of_all(shape, dtype, seed).sum(0)
        kept = own.clone()
        found = ct.allreduce(own, average=False, name=f"sum {seed}" if seed % 2 else None)
        assert found.dtype == dtype
        require_equal(found, wanted)
        require_equal(own, kept.double())
        assert ct.allreduce_(own, op=ct.Sum) is own
        require_equal(own, wanted)


def other_operations_are_those_of_their_names() -> None:
    for seed, dtype in enumerate(TYPES):
        own, every = drawn((4, 3), dtype, seed), of_all((4, 3), dtype, seed)
        require_equal(ct.allreduce(own, op=ct.Min), every.amin(0))
        require_equal(ct.allreduce(own, op=ct.Max), every.amax(0))
        small = own.clamp(max=2)  # of which the product of six ranks is exact in every type
        require_equal(ct.allreduce(small, op=ct.Product), every.clamp(max=2).prod(0))
    truths = torch.tensor([True, RANK == 0, False])
    require_equal(ct.allreduce(truths, op=ct.Sum), torch.tensor([1.0, 1.0, 0.0]))
    pair = torch.tensor([1 + 2j]) * (RANK + 1)
    assert torch.equal(ct.allreduce(pair, op=ct.Sum), torch.tensor([1 + 2j]) * sum(range(1, SIZE + 1)))


def an_average_of_integers_is_rounded_toward_zero() -> None:
    own = torch.tensor([7 * RANK, -7 * RANK, 3], dtype=torch.int32)
    total = 7 * sum(range(SIZE))
    wanted = [int(total / SIZE), int(-total / SIZE), 3]
    assert ct.allreduce(own).tolist() == wanted
    assert ct.allreduce_(own.to(torch.int8)).tolist() == wanted
    assert ct.allreduce(torch.tensor([200], dtype=torch.uint8)).tolist() == [200]
    assert ct.reducescatter(torch.full((SIZE,), -100, dtype=torch.int8)).tolist() == [-100]
    same = torch.arange(5.0)
    require_equal(ct.allreduce(same), same.double())


def factors_scale_before_and_after() -> None:
    own, total = torch.full((3,), float(RANK + 1)), float(sum(range(1, SIZE + 1)))
    found = ct.allreduce(own, op=ct.Sum, prescale_factor=0.5, postscale_factor=3.0)
    require_equal(found, torch.full((3,), 1.5 * total))
    for pre, post in ((0.5, 3.0), (1.0, 4.0), (2.0, 1.0)):
        mine = own.clone()
        ct.allreduce_(mine, op=ct.Sum, prescale_factor=pre, postscale_factor=post)
        require_equal(mine, torch.full((3,), pre * post * total))
    whole = ct.allreduce(torch.tensor([4]), op=ct.Sum, prescale_factor=0.5)
    assert whole.tolist() == [2 * SIZE]


def asynchronous_calls_may_end_in_any_order() -> None:
    given = [torch.full((n + 1,), float(RANK)) for n in range(8)]
    handles = [ct.allreduce_async(tensor, name=f"many {n}", op=ct.Sum) for n, tensor in enumerate(given)]
    handles += [ct.allreduce_async_(tensor, op=ct.Sum) for tensor in given]
    wanted = float(sum(range(SIZE)))
    for handle in reversed(handles):
        assert bool((ct.synchronize(handle) == wanted).all())
        assert ct.poll(handle)
    assert all(bool((tensor == wanted).all()) for tensor in given)


def a_name_that_is_under_way_is_refused_and_its_result_stands() -> None:
    one = torch.ones(3)
    first = ct.allreduce_async(one, name="twice", op=ct.Sum)
    with raises(coarse.InFlightError, "'allreduce/twice'", "wait()"):
        ct.allreduce_async(one, name="twice", op=ct.Sum)
    require_equal(first.wait(), torch.full((3,), float(SIZE)))
    ct.barrier()


def calls_of_different_names_need_no_common_order() -> None:
    names = ["a", "b", "c", "d"]
    order = names[RANK % 4 :] + names[: RANK % 4]
    handles = {name: ct.allreduce_async(torch.tensor([float(ord(name))]), name=f"order {name}") for name in order}
    for name in names:
        assert handles[name].wait().item() == ord(name)


def a_group_is_several_at_once() -> None:
    given = [torch.full((n + 2,), float(RANK + n), dtype=torch.float64 if n % 2 else torch.float32) for n in range(5)]
    wanted = [float(sum(rank + n for rank in range(SIZE))) for n in range(5)]
    for found in (
        ct.grouped_allreduce(given, op=ct.Sum, name="group"),
        ct.synchronize(ct.grouped_allreduce_async(given, average=False)),
        ct.grouped_allreduce([tensor.clone() for tensor in given], False, "again"),
        ct.grouped_allreduce_([tensor.clone() for tensor in given], op=ct.Sum),
        ct.grouped_allreduce_async_([tensor.clone() for tensor in given], op=ct.Sum).wait(),
    ):
        assert [tensor[0].item() for tensor in found] == wanted
        assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in given]
    with raises(TypeError, "list of tensors"):
        ct.grouped_allreduce(given[0])


def a_group_of_all_kinds_is_as_if_each_came_alone() -> None:
    """Small ones of several types, one that is too large to travel with them, one averaged as a whole number."""
    kinds = [(torch.float32, (3, 5)), (torch.int32, (4,)), (torch.bfloat16, (7,)), (torch.float32, (600, 600)),
             (torch.float64, ()), (torch.uint8, (2, 2)), (torch.float32, (0, 3)), (torch.float16, (1,))]  # fmt: skip
    given = [(torch.arange(math.prod(shape)) % 13 + RANK).to(dtype).reshape(shape) for dtype, shape in kinds]
    given[0] = given[0].T
    for op in (ct.Sum, ct.Average, ct.Max):
        alone = [ct.allreduce(tensor, op=op) for tensor in given]
        own = [tensor.clone() for tensor in given]
        together = ct.grouped_allreduce(given, op=op, name=f"all kinds {op}", postscale_factor=2.0)
        in_place = ct.grouped_allreduce_(own, op=op)
        assert all(one is other for one, other in zip(in_place, own, strict=True))
        for one, twice, written in zip(alone, together, in_place, strict=True):
            require_equal(twice, one * 2)
            require_equal(written, one)


def groups_that_differ_between_ranks_are_told_so() -> None:
    """As many bytes, cut elsewhere."""
    if SIZE == 1:
        return
    shapes = [(2, 3), (4,)] if RANK == 0 else [(4,), (2, 3)]
    with raises(coarse.MismatchError, "of 2 arrays #", "rank 0 has float32[10]"):
        ct.grouped_allreduce([torch.ones(shape) for shape in shapes], name="cut elsewhere")
    ct.barrier()


def compression_halves_what_is_pushed() -> None:
    own = torch.linspace(0, 1, 1000) * (RANK + 1)
    wanted = torch.linspace(0, 1, 1000) * sum(range(1, SIZE + 1))
    for compression, bits in ((ct.Compression.fp16, 11), (ct.Compression.bf16, 8), (ct.Compression.none, 24)):
        name = f"compressed {bits}"
        found = ct.allreduce(own, name=name, compression=compression, op=ct.Sum)
        assert found.dtype == torch.float32
        assert torch.allclose(found, wanted, rtol=2.0 ** (1 - bits), atol=SIZE * 2.0**-bits)
        pushed = coarse.statistics()["keys"][f"allreduce/{name}"]["bytes"]
        assert pushed == own.numel() * (4 if bits == 24 else 2)
    integers = ct.allreduce(torch.tensor([5]), compression=ct.Compression.fp16, op=ct.Sum)
    assert integers.dtype == torch.int64
    with raises(TypeError, "Compression.none, fp16 or bf16"):
        ct.allreduce(own, compression="fp16")


def a_name_may_be_used_again_with_another_shape_and_type() -> None:
    for shape, dtype in itertools.product(SHAPES, (torch.float32, torch.int64, torch.float16)):
        found = ct.allreduce(torch.ones(shape, dtype=dtype), name="reused", op=ct.Sum)
        assert found.shape == shape
        assert found.dtype == dtype
        assert bool((found == SIZE).all())
    again = ct.push_pull(torch.ones(3), "reused too", ct.Sum)
    again = ct.push_pull(torch.ones(2, 2), "reused too", ct.Sum)
    require_equal(again, torch.full((2, 2), float(SIZE)))


def a_rank_that_alone_changes_a_names_shape_is_told_to_the_others() -> None:
    if SIZE == 1:
        return
    ct.allreduce(torch.ones(3), name="changed")
    if RANK == 0:
        handle = ct.allreduce_async(torch.ones(4), name="changed")
        coarse.barrier()
        with raises(coarse.StallError, "ranks"):
            handle.wait(0.5)
        return
    with raises(coarse.MismatchError, "rank 0", "'allreduce/changed'", "another shape"):
        ct.allreduce(torch.ones(3), name="changed")
    coarse.barrier()


def what_cannot_be_combined_is_refused_by_name() -> None:
    one = torch.ones(1)
    with raises(coarse.ConfigError, "Adasum"):
        ct.allreduce(one, op=ct.Adasum)
    with raises(ValueError, "not both"):
        ct.allreduce(one, average=True, op=ct.Sum)
    with raises(ValueError, "op must be"):
        ct.allreduce(one, op=77)
    with raises(TypeError, "truth values have no average"):
        ct.allreduce(torch.tensor([True]))
    with raises(TypeError, "a name must be text"):
        ct.allreduce(one, name=3)


def memory_of_calls_without_a_name_is_given_back() -> None:
    def used() -> int:
        devices = coarse.statistics()["devices"]
        return sum(int(counts["memory_used_bytes"]) for counts in devices.values())

    big = torch.ones(100_000)
    coarse.barrier()
    before = used()
    coarse.barrier()
    for _ in range(20):
        ct.allreduce(big)
        ct.push_pull(big)
        ct.push_pull_async(big).wait()
    until_s = time.monotonic() + IN_TIME_S  # devices hear of what is given back in their own time
    while used() > before and time.monotonic() < until_s:
        pass
    assert used() <= before
    coarse.barrier()


# --- what flows back

def gradients_flow_through_every_collective() -> None:
    wanted = torch.ones(4, 2)
    for call, factor in (
        (lambda x: ct.allreduce(x, op=ct.Sum), SIZE),
        (lambda x: ct.allreduce(x), 1.0),
        (lambda x: ct.allreduce(x, op=ct.Sum, prescale_factor=0.5, postscale_factor=4.0), 2.0 * SIZE),
        (lambda x: ct.push_pull(x, "flows", ct.Sum), SIZE),
        (lambda x: ct.grouped_allreduce([x, x * 2], op=ct.Sum)[1], 2.0 * SIZE),
        (lambda x: ct.allgather(x), 1.0),
        (lambda x: ct.allgather(x, name="flows"), 1.0),
        (lambda x: ct.broadcast(x, 0), float(RANK == 0)),
        (lambda x: ct.broadcast(x, SIZE - 1, name="flows"), float(RANK == SIZE - 1)),
        (lambda x: ct.alltoall(x, [4] + [0] * (SIZE - 1))[0], 1.0),
        (lambda x: ct.reducescatter(x, op=ct.Sum), SIZE),
        (lambda x: ct.reducescatter(x), 1.0),
    ):
        given = torch.ones(4, 2, requires_grad=True)
        call(given).sum().backward()
        torch.testing.assert_close(given.grad, wanted * factor)
        with torch.no_grad():
            assert not call(given).requires_grad
    with raises(TypeError, "no gradient goes through an allreduce by MAX"):
        ct.allreduce(torch.ones(1, requires_grad=True), op=ct.Max).backward()


# --- the whole

def a_second_init_does_nothing_and_questions_have_answers() -> None:
    ct.init()
    assert ct.is_initialized()
    with raises(coarse.ConfigError, "stall_timeout_s"):
        ct.init({"stall_timeout_s": 1234.0})
    assert ct.mpi_built()
    assert not ct.nccl_built()
    assert ct.cross_size() == 1
    assert ct.cross_rank() == 0
    assert ct.is_homogeneous()


def byteps_forms_are_understood() -> None:
    own, total = torch.full((2,), float(RANK)), float(sum(range(SIZE)))
    ct.declare("bps")
    for found in (
        ct.push_pull(own, average=False, name="bps"),
        ct.push_pull(own, False, "bps"),
        ct.push_pull_inplace(own.clone(), average=False, name="bps"),
        ct.synchronize(ct.push_pull_async_inplace(own.clone(), False, "bps")),
        ct.push_pull(own, "bps", ct.Sum, compression=ct.Compression.fp16),
        ct.push_pull_async(own, average=False).wait(),
    ):
        require_equal(found, torch.full((2,), total))
    require_equal(ct.push_pull(own), torch.full((2,), total / SIZE))
    with raises(ValueError, "not both"):
        ct.push_pull(own, "bps", ct.Sum, average=True)


def sparse_tensors_are_gathered_and_added() -> None:
    indices = torch.tensor([[0, RANK, 0]])
    own = torch.sparse_coo_tensor(indices, torch.ones(3, 2), (SIZE + 1, 2), check_invariants=True)
    wanted = sum(
        torch.zeros(SIZE + 1, 2).index_add_(0, torch.tensor([0, rank, 0]), torch.ones(3, 2))
        for rank in range(SIZE)
    )
    require_equal(ct.sparse_allreduce_async(own, "sparse", ct.Sum).wait().to_dense(), wanted)
    require_equal(ct.synchronize(ct.sparse_allreduce_async(own, "sparse", ct.Average)).to_dense(), wanted / SIZE)


def batch_norm_is_that_of_the_whole_batch() -> None:
    made = torch.Generator().manual_seed(7)
    rows = [rank + 2 for rank in range(SIZE)]
    whole = torch.randn(sum(rows), 3, 4, generator=made, dtype=torch.float64)
    begin = sum(rows[:RANK])
    mine = whole[begin : begin + rows[RANK]].clone().requires_grad_()
    everything = whole.clone().requires_grad_()
    ours, plain = ct.SyncBatchNorm(3).double(), nn.BatchNorm1d(3).double()
    for _ in range(2):
        found, wanted = ours(mine), plain(everything)
        weights = torch.arange(12.0, dtype=torch.float64).view(3, 4)
        (found * weights).square().sum().backward()
        (wanted * weights).square().sum().backward()
        part = slice(begin, begin + rows[RANK])
        torch.testing.assert_close(found, wanted[part])
        torch.testing.assert_close(mine.grad, everything.grad[part])
    torch.testing.assert_close(ours.running_mean, plain.running_mean)
    torch.testing.assert_close(ours.running_var, plain.running_var)
    torch.testing.assert_close(ct.allreduce(ours.weight.grad, op=ct.Sum), plain.weight.grad)
    ours.eval(), plain.eval()
    torch.testing.assert_close(ours(mine), plain(mine))


CLAIMS = [
    an_allreduce_sums_every_type_and_shape_by_name_or_without,
    other_operations_are_those_of_their_names,
    an_average_of_integers_is_rounded_toward_zero,
    factors_scale_before_and_after,
    asynchronous_calls_may_end_in_any_order,
    a_name_that_is_under_way_is_refused_and_its_result_stands,
    calls_of_different_names_need_no_common_order,
    a_group_is_several_at_once,
    a_group_of_all_kinds_is_as_if_each_came_alone,
    groups_that_differ_between_ranks_are_told_so,
    compression_halves_what_is_pushed,
    a_name_may_be_used_again_with_another_shape_and_type,
    a_rank_that_alone_changes_a_names_shape_is_told_to_the_others,
    what_cannot_be_combined_is_refused_by_name,
    memory_of_calls_without_a_name_is_given_back,
    gradients_flow_through_every_collective,
    a_second_init_does_nothing_and_questions_have_answers,
    byteps_forms_are_understood,
    sparse_tensors_are_gathered_and_added,
    batch_norm_is_that_of_the_whole_batch,
]
