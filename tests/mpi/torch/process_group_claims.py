"""What torch.distributed's backend "coarse" promises, against Gloo in the same job and one process's training.

The script is as a user's: no variable is set, nobody calls coarse.init().
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import coarse
import coarse.torch
from tests.support.claims import report_claims

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int32, torch.int64, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
TYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
COUNTING = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)

Group = dist.ProcessGroup | None


def operations_of(dtype: torch.dtype) -> tuple[dist.ReduceOp.RedOpType, ...]:
    """What Gloo has for a type."""
    if dtype in COMPLEX:
        return (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
    return (*COUNTING, dist.ReduceOp.AVG) if dtype in FLOATS else (*COUNTING, *BITWISE)


def value(dtype: torch.dtype, *shape: int, rank: int | None = None) -> torch.Tensor:
    """A rank's tensor of small whole numbers, whose sums and products are exact in every type."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(77 + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def same(call: Callable[[Group], object]) -> None:
    """The call gives the same under coarse as under Gloo."""
    torch.testing.assert_close(call(None), call(GLOO))  # an average may differ in its last bit


def reductions_of_every_type_equal_gloos() -> None:
    for dtype in TYPES:
        for op in operations_of(dtype):
            same(partial(reductions, dtype, op))


def reductions(dtype: torch.dtype, op: dist.ReduceOp.RedOpType, group: Group) -> list[torch.Tensor]:
    """What each reduction makes of the ranks' tensors; of reduce the root's alone: others are left as they please."""
    size = dist.get_world_size()
    everywhere, at_root, place, listed = (value(dtype, *shape) for shape in ((5, 3), (7,), (4,), (4,)))
    dist.all_reduce(everywhere, op, group)
    dist.reduce(at_root, size - 1, op, group)
    dist.reduce_scatter_single(place, value(dtype, 4 * size), op, group)
    dist.reduce_scatter(listed, list(value(dtype, size, 4)), op, group)
    return [everywhere, place, listed, *([at_root] if dist.get_rank() == size - 1 else [])]


def copies_of_every_type_equal_gloos() -> None:
    for dtype in TYPES:
        same(partial(copies, dtype))


def copies(dtype: torch.dtype, group: Group) -> list[torch.Tensor]:
    """Where each rank's tensors get to."""
    size, rank = dist.get_world_size(), dist.get_rank()
    from_root, flat, mine, even = (value(dtype, count) for count in (9, 4 * size, 4, 2 * size))
    uneven = value(dtype, size * (rank + 1), 2)
    parts = list(value(dtype, size, 4))
    at_root = list(value(dtype, size, 4)) if rank == 1 else None
    dist.broadcast(from_root, 1, group)
    dist.all_gather(parts, value(dtype, 4), group)
    dist.all_gather_single(flat, value(dtype, 4), group)
    dist.scatter(mine, list(value(dtype, size, 4)) if rank == 0 else None, 0, group)
    dist.all_to_all_single(even, value(dtype, 2 * size), group=group)
    sent = [other + 1 for other in range(size)]
    dist.all_to_all_single(uneven, value(dtype, sum(sent), 2), [rank + 1] * size, sent, group)
    if dtype not in COMPLEX:  # which Gloo does not gather
        dist.gather(value(dtype, 4), at_root, 1, group)
    return [from_root, flat, mine, even, uneven, *parts, *(at_root or [])]


def lists_of_different_lengths_go_to_all() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    outputs = [torch.empty(sender + rank) for sender in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + target,), 10.0 * rank + target) for target in range(size)])
    for sender, output in enumerate(outputs):
        assert (output == 10 * sender + rank).all()


def tensors_with_gaps_are_read_and_written_through_their_strides() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.zeros(6, 8)
    part = whole.t()[::2, 1:4]
    part.fill_(rank + 1.0)
    dist.all_reduce(part)
    assert (part == size * (size + 1) / 2).all()
    assert whole.sum() == part.sum()
    columns = torch.zeros(3, size).unbind(1)
    dist.all_gather(list(columns), torch.full((3,), float(rank)))
    assert [column[0].item() for column in columns] == list(range(size))


def writes(rank: int, size: int) -> dict[str, tuple[bool, Callable[[torch.Tensor], object]]]:
    """Calls that overwrite a tensor of `size` float32, and whether they do so on this rank."""
    whole = torch.ones(size * size)
    row = torch.ones(size)
    one = torch.ones(1)
    return {
        "all_reduce": (True, dist.all_reduce),
        "all_reduce in a coalescing manager": (True, reduce_coalesced),
        "all_reduce, async": (True, lambda out: dist.all_reduce(out, async_op=True).get_future().wait()),
        "reduce": (rank == 1, lambda out: dist.reduce(out, 1)),
        "broadcast": (rank != 1, lambda out: dist.broadcast(out, 1)),
        "reduce_scatter": (True, lambda out: dist.reduce_scatter(out, [row] * size)),
        "reduce_scatter_tensor": (True, lambda out: dist.reduce_scatter_tensor(out, whole)),
        "all_gather": (True, lambda out: dist.all_gather(list(out.split(1)), one)),
        "all_gather_into_tensor": (True, lambda out: dist.all_gather_into_tensor(out, one)),
        "gather": (rank == 1, lambda out: dist.gather(one, list(out.split(1)) if rank == 1 else None, 1)),
        "scatter": (True, lambda out: dist.scatter(out, [row] * size if rank == 1 else None, 1)),
        "all_to_all": (True, lambda out: dist.all_to_all(list(out.split(1)), list(row.split(1)))),
        "all_to_all_single": (True, lambda out: dist.all_to_all_single(out, row)),
        "recv": (rank == 1, lambda out: dist.recv(out, 0) if rank == 1 else rank == 0 and dist.send(row, 1)),
    }


def reduce_coalesced(out: torch.Tensor) -> None:
    with dist._coalescing_manager():
        dist.all_reduce(out)


def what_autograd_has_saved_is_known_to_be_overwritten() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for make in (torch.zeros, lambda numel: torch.zeros(numel, 2)[:, 0]):  # written directly, and by way of a copy
        for name, (is_written, write) in writes(rank, size).items():
            saved = make(size)
            product = (torch.ones(size, requires_grad=True) * saved).sum()
            if "contiguous" in refusal(partial(write, saved)):  # torch's own
                continue
            assert ("modified by an inplace operation" in refusal(product.backward)) is is_written, name


def refusal(call: Callable[[], object]) -> str:
    """What torch says against a call; nothing where it lets it pass."""
    try:
        call()
    except RuntimeError as refused:
        return str(refused)
    return ""


def empty_tensors_and_lists_of_tensors_are_reduced() -> None:
    empty = torch.empty(0)
    dist.all_reduce(empty)
    tensors = [torch.full((length,), float(length)) for length in range(1, 5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all((tensor == len(tensor) * dist.get_world_size()).all() for tensor in tensors)


def functional_collectives_go_through_the_group() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    own = torch.full((size, 2), rank + 1.0)
    total = size * (size + 1) / 2
    world = dist.group.WORLD
    assert (functional.wait_tensor(functional.all_reduce(own, "sum", world)) == total).all()
    gathered = functional.wait_tensor(functional.all_gather_single(own, 0, world))
    assert gathered.shape == (size * size, 2)
    assert [gathered[size * other, 0].item() for other in range(size)] == [other + 1 for other in range(size)]
    assert (functional.wait_tensor(functional.reduce_scatter_single(own, "sum", 0, world)) == total).all()
    exchanged = functional.wait_tensor(functional.all_to_all_single(own, None, None, world))
    assert exchanged[:, 0].tolist() == [other + 1 for other in range(size)]


def objects_and_sparse_tensors_travel() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    told: list[object] = [None] * size
    dist.all_gather_object(told, {"rank": rank, "text": "x" * 100 * rank})
    assert told == [{"rank": other, "text": "x" * 100 * other} for other in range(size)]
    sparse = torch.zeros(size + 2)
    sparse[: rank + 1] = 1
    sparse = sparse.to_sparse()
    dist.all_reduce(sparse)
    expected = torch.tensor([float(max(size - place, 0)) for place in range(size + 2)])
    assert torch.equal(sparse.to_dense(), expected)


def a_message_passes_a_collective_that_waits_for_it() -> None:
    if dist.get_rank() == 0:
        tensor = torch.zeros(1_000_000)
        dist.recv(tensor, 1)  # before this rank joins the all-reduce
        dist.all_reduce(torch.ones(3))
        assert (tensor == 5).all()
        dist.send(tensor, 1, tag=9)
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    if dist.get_rank() == 1:
        tensor = torch.full((1_000_000,), 5.0)
        dist.send(tensor, 0)  # while the all-reduce waits for rank 0
        dist.recv(tensor, 0, tag=9)
    work.wait()


def messages_keep_their_order_tags_and_sources() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    sends = [dist.isend(torch.tensor([rank, tag]), (rank + 1) % size, tag=tag) for tag in (3, 4) for _ in range(2)]
    for tag in (4, 3, 4, 3):
        tensor = torch.zeros(2, dtype=torch.int64)
        assert dist.recv(tensor, tag=tag) == (rank - 1) % size
        assert tensor.tolist() == [(rank - 1) % size, tag]
    for work in sends:
        work.wait()


def subgroups_work_beside_each_other_in_any_order() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    pairs = {(a, b): dist.new_group([a, b]) for a in range(size) for b in range(a + 1, size)}
    mine = {pair: torch.tensor([float(rank)]) for pair in pairs if rank in pair}
    order = sorted(mine, reverse=rank % 2 == 1)
    works = [dist.all_reduce(mine[pair], group=pairs[pair], async_op=True) for pair in order]
    for work in works:
        work.wait()
    for (a, b), tensor in mine.items():
        assert tensor.item() == a + b
        dist.destroy_process_group(pairs[a, b])


def a_callback_of_a_future_may_wait_for_further_collectives() -> None:
    def again(future: torch.futures.Future) -> torch.Tensor:
        (tensor,) = future.value()
        return dist.all_reduce(tensor * 2, async_op=True).get_future().wait()[0]

    first = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(again)
    assert (first.wait() == 2 * dist.get_world_size() ** 2).all()


def calls_that_do_not_fit_together_raise_on_all_ranks() -> None:
    rank = dist.get_rank()
    for wrong in (
        lambda group: dist.all_reduce(torch.ones(2 + (rank == 0)), group=group),
        lambda group: dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank else torch.float32), group=group),
        lambda group: dist.broadcast(torch.ones(4), 0 if rank else 1, group),
        lambda group: dist.barrier(group) if rank else dist.all_reduce(torch.ones(4), group=group),
        lambda group: dist.all_to_all_single(torch.ones(6), torch.ones(6), *uneven(rank), group),
    ):
        group = dist.new_group()
        with pytest.raises(coarse.MismatchError, match="rank"):
            wrong(group)
        dist.barrier(group)  # the group is as it was
        dist.destroy_process_group(group)


def uneven(rank: int) -> tuple[list[int], list[int]]:
    """Split sizes that say one thing on rank 0 and another on the others."""
    return ([2, 2, 2], [2, 2, 2] if rank else [1, 2, 3])


def a_message_of_another_size_is_refused() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(4), 1)
        dist.send(torch.ones(4), 1)
    if rank == 1:
        with pytest.raises(coarse.MismatchError, match="receives 12 bytes"):
            dist.recv(torch.ones(3), 0)
        with pytest.raises(coarse.MismatchError, match="16 came"):
            dist.recv(torch.ones(5), 0)
    dist.barrier()


def averages_of_integers_are_rounded_toward_zero() -> None:
    """As NCCL rounds them; Gloo has none."""
    size = dist.get_world_size()
    values = torch.tensor([1, -1, 5, -7]) * (dist.get_rank() + 1)
    wanted = torch.div(torch.tensor([1, -1, 5, -7]) * (size * (size + 1) // 2), size, rounding_mode="trunc")
    dist.all_reduce(values, dist.ReduceOp.AVG)
    assert values.tolist() == wanted.tolist()


def what_cannot_be_reduced_is_refused_at_once() -> None:
    for dtype, op in ((torch.float32, dist.ReduceOp.BAND), (torch.bool, dist.ReduceOp.AVG)):
        with pytest.raises(TypeError, match=r"float32|truth values"):
            dist.all_reduce(torch.ones(3).to(dtype), op)
    with pytest.raises(TypeError, match="dense"):
        dist.broadcast(torch.ones(3).to_sparse(), 0)


def a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if dist.get_rank() != 1:
        with pytest.raises(coarse.StallError, match=r"0\.3 s; ranks \[1\] have not come"):
            dist.barrier(group)
    dist.destroy_process_group(group)
    dist.barrier()


def net() -> nn.Module:
    """A small model, the same on all ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def batch(step: int, rank: int) -> torch.Tensor:
    """A rank's samples."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + rank)).double()


def train(model: nn.Module, batches: Callable[[int], torch.Tensor]) -> None:
    """Some steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(5):
        optimizer.zero_grad()
        model(batches(step)).square().mean().backward()
        optimizer.step()


def alone() -> nn.Module:
    """The model as one process with all ranks' samples trains it."""
    model = net()
    train(model, lambda step: torch.cat([batch(step, rank) for rank in range(dist.get_world_size())]))
    return model


def ddp_trains_as_one_process_does() -> None:
    model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
    train(model, lambda step: batch(step, dist.get_rank()))
    for trained, expected in zip(model.module.parameters(), alone().parameters(), strict=True):
        torch.testing.assert_close(trained, expected, rtol=1e-9, atol=1e-12)


def fsdp2_trains_as_one_process_does() -> None:
    model = net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    train(model, lambda step: batch(step, dist.get_rank()))
    for trained, expected in zip(model.parameters(), alone().parameters(), strict=True):
        torch.testing.assert_close(trained.full_tensor(), expected.detach(), rtol=1e-9, atol=1e-12)


def a_group_can_be_made_again_after_its_end() -> None:
    port = os.environ["MASTER_PORT"]
    dist.destroy_process_group()
    dist.init_process_group("coarse")
    total = torch.ones(2)
    dist.all_reduce(total)
    assert (total == dist.get_world_size()).all()
    assert os.environ["RANK"] == str(dist.get_rank()) == str(coarse.rank())
    assert os.environ["WORLD_SIZE"] == str(dist.get_world_size()) == str(coarse.size())
    assert os.environ["LOCAL_RANK"] == str(coarse.local_rank())
    assert os.environ["LOCAL_WORLD_SIZE"] == str(coarse.local_size())
    assert int(port)


CLAIMS = (
    reductions_of_every_type_equal_gloos,
    copies_of_every_type_equal_gloos,
    lists_of_different_lengths_go_to_all,
    tensors_with_gaps_are_read_and_written_through_their_strides,
    what_autograd_has_saved_is_known_to_be_overwritten,
    empty_tensors_and_lists_of_tensors_are_reduced,
    functional_collectives_go_through_the_group,
    objects_and_sparse_tensors_travel,
    a_message_passes_a_collective_that_waits_for_it,
    messages_keep_their_order_tags_and_sources,
    subgroups_work_beside_each_other_in_any_order,
    a_callback_of_a_future_may_wait_for_further_collectives,
    calls_that_do_not_fit_together_raise_on_all_ranks,
    a_message_of_another_size_is_refused,
    what_cannot_be_reduced_is_refused_at_once,
    a_rank_that_does_not_come_is_named_after_the_timeout,
    ddp_trains_as_one_process_does,
    fsdp2_trains_as_one_process_does,
    a_group_can_be_made_again_after_its_end,
)

if __name__ == "__main__":
    dist.init_process_group("coarse")
    GLOO = dist.new_group(backend="gloo")
    report_claims(CLAIMS, sys.argv[1])
    dist.destroy_process_group()
