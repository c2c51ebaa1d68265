"""Collectives on rows, objects and process sets by Horovod's names, on any number of workers: claims of each rank."""

import math
from collections import OrderedDict

import numpy as np
import torch

import coarse
import coarse.torch as ct
from coarse.torch.groups.process_sets import group_of
from tests.mpi.torch.drawn import RANK, SIZE, TYPES, drawn, of_all, require_equal
from tests.support.claims import raises

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


def a_name_of_an_ordered_call_is_in_use_until_it_or_a_later_one_was_waited_for() -> None:
    rows = torch.ones(SIZE)
    calls = {
        "allgather": lambda: ct.allgather_async(rows, name="twice"),
        "broadcast": lambda: ct.broadcast_async(rows, 0, name="twice"),
        "reducescatter": lambda: ct.reducescatter_async(rows, name="twice"),
        "alltoall": lambda: ct.alltoall_async(rows, name="twice"),
    }
    for kind, call in calls.items():
        call()  # whose handle is dropped
        with raises(coarse.InFlightError, f"rank {RANK}", f"{kind}/twice", "another name"):
            call()
        ct.allgather_async(rows, name="later").wait()
        first = call()
        with raises(coarse.InFlightError, f"{kind}/twice"):
            call()
        first.wait()
        call().wait()
    odd = torch.ones(2 if RANK else 3)
    if SIZE > 1:
        for _ in range(2):  # one that ended in an error was waited for, too
            with raises(coarse.MismatchError, "odd"):
                ct.reducescatter_async(odd, name="odd").wait()


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
    assert ct.allgather_object(RANK, name="named") == list(range(SIZE))
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


def each_collective_of_a_process_set_meets_once_before_its_data() -> None:
    process_set = ct.add_process_set(range(SIZE)) if SIZE > 1 else ct.global_process_set
    steps = group_of(process_set)._lane.steps
    own = torch.ones(SIZE, 2)
    calls = {
        "allreduce": lambda: ct.allreduce_async(own, op=ct.Product, process_set=process_set),
        "broadcast": lambda: ct.broadcast_async(own, 0, process_set=process_set),
        "allgather": lambda: ct.allgather_async(own[: RANK + 1], process_set=process_set),
        "alltoall": lambda: ct.alltoall_async(own, [1] * SIZE, process_set=process_set),
        "reducescatter": lambda: ct.reducescatter_async(own, op=ct.Sum, process_set=process_set),
    }
    for kind, call in calls.items():
        before = steps.num_meetings
        call().wait()
        assert steps.num_meetings == before + 1, kind
    if SIZE > 1:
        ct.remove_process_set(process_set)


def members_that_mean_other_collectives_by_one_name_are_told() -> None:
    if SIZE == 1:
        return
    from coarse.torch.c10d.reduction import Operation  # which needs MPI

    group, tensor = group_of(ct.global_process_set), torch.ones(SIZE, 2)
    with raises(coarse.MismatchError, "all_reduce", "broadcast"):
        if RANK == 0:
            group.copy_from(0, tensor, "one").wait()
        else:
            group.reduce_in_place(tensor, Operation.SUM, "one").wait()
    with raises(coarse.MismatchError, "reduction"):
        group.reduce_in_place(tensor, Operation.SUM if RANK == 0 else Operation.MAX, "two").wait()
    with raises(coarse.MismatchError, "root 0", "root 1"):
        group.copy_from(min(RANK, 1), tensor, "three").wait()
    with raises(coarse.MismatchError, "barrier"):
        if RANK == 0:
            group.barrier()
        else:
            group.gather_rows(tensor, "four").wait()
    assert ct.allgather_async(torch.tensor([RANK])).wait().tolist() == list(range(SIZE))


CLAIMS = [
    each_collective_of_a_process_set_meets_once_before_its_data,
    members_that_mean_other_collectives_by_one_name_are_told,
    an_allgather_takes_any_number_of_rows,
    a_broadcast_takes_any_type_and_may_be_asynchronous,
    an_alltoall_splits_as_it_is_told,
    a_reducescatter_gives_each_rank_its_rows,
    a_name_of_an_ordered_call_is_in_use_until_it_or_a_later_one_was_waited_for,
    ranks_that_call_unlike_are_told_what_each_calls,
    ranks_whose_tensors_differ_are_all_told,
    objects_travel_as_they_are,
    what_would_have_to_be_pickled_is_refused_on_every_rank,
    process_sets_call_among_themselves,
]
