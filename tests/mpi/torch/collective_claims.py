"""Collectives by Horovod's and BytePS's names, on any number of workers: claims that each rank checks."""

import itertools
import math
import warnings
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

import coarse
import coarse.torch as ct
from tests.support.claims import raises

RANK, SIZE = coarse.rank(), coarse.size()
TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64)  # fmt: skip
SHAPES = ((), (1,), (17,), (3, 5), (2, 0), (2, 3, 4))


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int, rank: int = RANK) -> torch.Tensor:
    """Whole numbers from 0 to 5, of which any few ranks' sums and products are exact in every type."""
    made = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 6, shape, generator=made).to(dtype)


def of_all(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """(p, *shape) float64: what `drawn` gives each rank."""
    return torch.stack([drawn(shape, dtype, seed, rank).double() for rank in range(SIZE)])


def require_equal(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same values and shape; `wanted` in float64."""
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert torch.equal(found.double(), wanted.double()), (found, wanted)


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
        require_equal(ct.allreduce(own, op=ct.Product), every.prod(0))
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
        coarse.barrier()
        devices = coarse.statistics()["devices"]
        return sum(int(counts["memory_used_bytes"]) for counts in devices.values())

    big = torch.ones(100_000)
    ct.allreduce(big)
    before = used()
    for _ in range(20):
        ct.allreduce(big)
        ct.push_pull(big)
        ct.push_pull_async(big).wait()
    assert used() <= before + big.nbytes


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


# --- rows


def an_allgather_takes_any_number_of_rows() -> None:
    for seed, dtype in enumerate((*TYPES, torch.bool, torch.complex64)):
        own = drawn((RANK + 1, 3), dtype, seed)
        wanted = torch.cat([drawn((rank + 1, 3), dtype, seed, rank) for rank in range(SIZE)])
        for found in (ct.allgather(own), ct.allgather(own, name="rows"), ct.allgather_async(own).wait()):
            assert torch.equal(found, wanted)
    nothing = torch.ones(2 if RANK == SIZE - 1 else 0, 5)
    assert ct.allgather(nothing).shape == (2, 5)
    assert ct.allgather(torch.ones(0)).shape == (0,)
    assert ct.allgather(torch.tensor(RANK)).tolist() == list(range(SIZE))
    both = ct.grouped_allgather([torch.tensor([RANK]), torch.tensor([float(RANK)])], name="two")
    assert [part.tolist() for part in both] == [list(range(SIZE)), [float(rank) for rank in range(SIZE)]]


def a_broadcast_takes_any_type_and_may_be_asynchronous() -> None:
    for dtype in (*TYPES, torch.bool, torch.complex64):
        own = torch.full((2, 3), RANK).to(dtype)
        for root in range(SIZE):
            wanted = torch.full((2, 3), root).to(dtype)
            for found in (
                ct.broadcast(own, root),
                ct.broadcast(own, root, name="copied"),
                ct.broadcast_async(own, root).wait(),
                ct.broadcast_(own.clone(), root, "copied too"),
                ct.synchronize(ct.broadcast_async_(own.clone(), root)),
            ):
                assert torch.equal(found, wanted)
    with raises(ValueError, "root_rank"):
        ct.broadcast_async(own, SIZE)


def an_alltoall_splits_as_it_is_told() -> None:
    own = torch.arange(SIZE * 2.0).view(SIZE, 2) + 100 * RANK
    found = ct.alltoall(own)
    require_equal(found, torch.stack([torch.arange(2.0) + 2 * RANK + 100 * rank for rank in range(SIZE)]))
    splits = torch.arange(SIZE, dtype=torch.int32)
    rows = torch.full((int(splits.sum()), 1), float(RANK))
    for received, counts in (ct.alltoall(rows, splits), ct.alltoall_async(rows, splits).wait()):
        assert counts.tolist() == [RANK] * SIZE
        assert received.flatten().tolist() == [float(rank) for rank in range(SIZE) for _ in range(RANK)]
    with raises(ValueError, "add up to"):
        ct.alltoall(own, [SIZE + 1] * SIZE)
    with raises(ValueError, "integers"):
        ct.alltoall(own, [0.5] * SIZE)
    if SIZE > 1:
        with raises(ValueError, "cannot be split equally"):
            ct.alltoall(torch.ones(SIZE + 1))
    with raises(ValueError, "scalar"):
        ct.alltoall(torch.tensor(1.0))


def a_reducescatter_gives_each_rank_its_rows() -> None:
    for seed, dtype in enumerate(TYPES):
        for rows in (SIZE * 2, SIZE * 2 + 1, 1):
            own, total = drawn((rows, 3), dtype, seed), of_all((rows, 3), dtype, seed).sum(0)
            few, more = divmod(rows, SIZE)
            begin = RANK * few + min(RANK, more)
            mine = total[begin : begin + few + (more > RANK)]
            require_equal(ct.reducescatter(own, op=ct.Sum), mine)
            require_equal(ct.reducescatter_async(own, op=ct.Sum).wait(), mine)
    mean = ct.reducescatter(torch.full((SIZE,), float(RANK)), compression=ct.Compression.fp16, prescale_factor=2.0)
    assert math.isclose(mean.item(), SIZE - 1)
    several = ct.grouped_reducescatter([torch.ones(SIZE), torch.ones(2 * SIZE, 2)], op=ct.Sum)
    assert [tuple(part.shape) for part in several] == [(1,), (2, 2)]
    with raises(ValueError, "scalar"):
        ct.reducescatter(torch.tensor(1.0))
    with raises(coarse.ConfigError, "sums or averages"):
        ct.reducescatter(torch.ones(2), op=ct.Max)


def ranks_that_call_unlike_are_told_what_each_calls() -> None:
    if SIZE == 1:
        return
    with raises(coarse.MismatchError, "allgather/odd", "float32[1, 2]", "float32[1, 3]"):
        ct.allgather_async(torch.ones(1, 2 + (RANK == 1)), name="odd").wait()
    with raises(coarse.MismatchError, "float32[2]", "int64[2]"):
        ct.allgather_async((torch.ones(2) if RANK else torch.ones(2).long()), name="odd").wait()
    with raises(coarse.MismatchError, "alltoall/one", "allgather/other"):
        if RANK == 0:
            ct.alltoall_async(torch.ones(SIZE), [1] * SIZE, name="one").wait()
        else:
            ct.allgather_async(torch.ones(SIZE), name="other").wait()
    with raises(coarse.MismatchError, "reducescatter/rows"):
        ct.reducescatter(torch.ones(SIZE + (RANK == 0)), name="rows")
    with raises(coarse.MismatchError, "root"):
        ct.broadcast_async(torch.ones(1), RANK).wait()
    assert ct.allgather(torch.tensor([RANK])).tolist() == list(range(SIZE))


def ranks_whose_tensors_differ_are_all_told() -> None:
    if SIZE == 1:
        return
    odd = RANK == SIZE - 1
    kinds = (
        torch.ones(2 + odd),
        torch.ones((2, 3) if odd else (3, 2)),
        torch.ones(2, dtype=(torch.float32, torch.int32)[odd]),
    )
    for number, tensor in enumerate(kinds):
        with raises(coarse.MismatchError, f"rank {SIZE - 1}", "must push"):
            ct.allreduce(tensor, op=ct.Sum, name=f"differing {number}")
        with raises(coarse.MismatchError):
            ct.allreduce(tensor, op=ct.Product)
        with raises(coarse.MismatchError):
            ct.broadcast_async(tensor, 0).wait()
        with raises(coarse.MismatchError):
            ct.reducescatter(tensor)
        splits = [tensor.shape[0]] + [0] * (SIZE - 1)
        if number != 0:
            with raises(coarse.MismatchError):
                ct.alltoall(tensor, splits)
    require_equal(ct.allreduce(torch.ones(2), op=ct.Sum), torch.full((2,), float(SIZE)))


# --- objects


def objects_travel_as_they_are() -> None:
    value = {
        "number": 3, "text": "ü", 2: [None, True, 1.5, float("inf")], (1, "a"): (b"\0\xff", bytearray(b"x")),
        "tensor": torch.arange(6.0).view(2, 3), "half": torch.ones(2, dtype=torch.bfloat16), "empty": torch.ones(0, 3),
        "array": np.arange(4, dtype=np.int16), "numpy number": np.float32(0.25), "complex": 1 + 2j,
        "ordered": OrderedDict(b=1, a=2), "set": {1, 2}, "nested": {"deep": [{"er": torch.tensor(7)}]},
    }  # fmt: skip
    for root in range(SIZE):
        found = ct.broadcast_object(value if root == RANK else None, root, name="thing")
        require_alike(found, value)
    every = ct.allgather_object({"rank": RANK, "many": list(range(RANK))})
    assert every == [{"rank": rank, "many": list(range(rank))} for rank in range(SIZE)]
    assert ct.broadcast_object(None) is None


def require_alike(found: object, wanted: object) -> None:
    """Equal, of the same type, all the way down."""
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            require_alike(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            require_alike(one, other)
    elif isinstance(wanted, torch.Tensor | np.ndarray):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert (found == wanted).all()
    else:
        assert found == wanted


def what_would_have_to_be_pickled_is_refused_on_every_rank() -> None:
    class Own:
        pass

    with raises(TypeError, "Own", "pickled", "rank 0"):
        ct.broadcast_object({"a": [Own()]} if RANK == 0 else None, 0)
    with raises(TypeError, "function", f"rank {SIZE - 1}'s value"):
        ct.allgather_object((lambda: 0) if RANK == SIZE - 1 else 1)
    assert ct.broadcast_object(RANK, SIZE - 1) == SIZE - 1


# --- process sets


def process_sets_call_among_themselves() -> None:
    assert ct.global_process_set.size() == SIZE
    assert ct.global_process_set.rank() == RANK
    if SIZE == 1:
        return
    first, rest = ct.add_process_set([0]), ct.add_process_set(ct.ProcessSet(range(SIZE - 1, 0, -1)))
    mine = first if RANK == 0 else rest
    assert [first.included(), rest.included()] == [RANK == 0, RANK != 0]
    assert mine.rank() == max(0, RANK - 1)
    ranks = mine.ranks
    own = torch.full((2,), float(RANK + 1), requires_grad=True)
    total = ct.allreduce(own, op=ct.Sum, process_set=mine)
    require_equal(total.detach(), torch.full((2,), float(sum(rank + 1 for rank in ranks))))
    total.sum().backward()
    require_equal(own.grad, torch.full((2,), float(len(ranks))))
    assert ct.allgather(torch.tensor([RANK]), process_set=mine).tolist() == ranks
    assert ct.broadcast(torch.tensor([RANK]), ranks[-1], process_set=mine).tolist() == [ranks[-1]]
    assert ct.allgather_object(RANK, process_set=mine) == ranks
    assert ct.reducescatter(torch.ones(mine.size()), op=ct.Sum, process_set=mine).tolist() == [mine.size()]
    ct.barrier(mine)
    if RANK == 0:  # calls of a set alone are not counted among those of all
        ct.allreduce(torch.ones(1), process_set=first)
        ct.allgather(torch.ones(1), process_set=first)
    require_equal(ct.allreduce(torch.full((1,), 10.0)), torch.full((1,), 10.0))
    assert ct.allgather_async(torch.tensor([RANK])).wait().tolist() == list(range(SIZE))
    each = ct.grouped_allreduce([torch.ones(1), torch.ones(2)], op=ct.Sum, process_set=mine)
    assert [part[0].item() for part in each] == [mine.size()] * 2
    assert ct.grouped_allgather([torch.tensor([RANK])] * 2, process_set=mine)[1].tolist() == ranks
    dense = ct.sparse_allreduce_async(torch.eye(2).to_sparse(), "set", ct.Sum, process_set=mine).wait().to_dense()
    require_equal(dense, torch.eye(2) * mine.size())
    rows, counts = ct.alltoall(torch.full((mine.size(),), RANK), [1] * mine.size(), process_set=mine)
    assert rows.tolist() == ranks
    assert counts.tolist() == [1] * mine.size()
    with raises(ValueError, "does not include this rank"):
        ct.allreduce(own.detach(), process_set=rest if RANK == 0 else first)
    with raises(ValueError, "root_rank"):
        ct.broadcast(torch.ones(1), SIZE, process_set=mine)
    assert ct.remove_process_set(rest)
    assert ct.remove_process_set(first)
    assert not ct.remove_process_set(first)
    with raises(coarse.ConfigError, "add_process_set"):
        ct.allreduce(own.detach(), process_set=mine)
    with raises(coarse.MismatchError, "ranks"):
        ct.add_process_set([RANK])
    with raises(ValueError, f"0 to {SIZE - 1}"):
        ct.add_process_set([0, SIZE])


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
    optimizer = ct.CrossBarrier(model, torch.optim.SGD(model.parameters(), 0.1))
    with raises(coarse.ConfigError, "closure"):
        optimizer.step(lambda: 0.0)
    optimizer.close()


class Branched(nn.Module):
    """Whatever a module may do with its parameters before its forward pass, or its children's."""

    def __init__(self) -> None:
        super().__init__()
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
        mixed = self.normed(given)
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
    with raises(coarse.ConfigError, "of all workers"):
        made(process_set=ct.ProcessSet([0]))
    with raises(ValueError, "Adasum"):
        made(op=ct.Adasum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made()


CLAIMS = [
    an_allreduce_sums_every_type_and_shape_by_name_or_without,
    other_operations_are_those_of_their_names,
    an_average_of_integers_is_rounded_toward_zero,
    factors_scale_before_and_after,
    asynchronous_calls_may_end_in_any_order,
    a_name_that_is_under_way_is_refused_and_its_result_stands,
    calls_of_different_names_need_no_common_order,
    a_group_is_several_at_once,
    compression_halves_what_is_pushed,
    a_name_may_be_used_again_with_another_shape_and_type,
    a_rank_that_alone_changes_a_names_shape_is_told_to_the_others,
    what_cannot_be_combined_is_refused_by_name,
    memory_of_calls_without_a_name_is_given_back,
    gradients_flow_through_every_collective,
    an_allgather_takes_any_number_of_rows,
    a_broadcast_takes_any_type_and_may_be_asynchronous,
    an_alltoall_splits_as_it_is_told,
    a_reducescatter_gives_each_rank_its_rows,
    ranks_that_call_unlike_are_told_what_each_calls,
    ranks_whose_tensors_differ_are_all_told,
    objects_travel_as_they_are,
    what_would_have_to_be_pickled_is_refused_on_every_rank,
    process_sets_call_among_themselves,
    a_second_init_does_nothing_and_questions_have_answers,
    byteps_forms_are_understood,
    sparse_tensors_are_gathered_and_added,
    batch_norm_is_that_of_the_whole_batch,
    horovods_options_of_the_optimizer_train_alike,
    compressed_gradients_are_half_as_many_bytes,
    sparse_gradients_may_be_made_dense,
    the_number_of_backward_passes_may_change_between_steps,
    a_crossed_barrier_trains_to_the_same_bits,
    a_crossed_barrier_waits_wherever_parameters_are_used,
    options_that_mean_nothing_are_refused,
]
