"""torch.distributed's backend "coarse", and process sets, with tensors on GPUs: the bits of the same on the CPU.

On CUDA's GPUs (tests/gpu), and on stand-ins.
"""

import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import coarse
import coarse.torch as ct
from coarse.errors import CoarseError, GpuError
from coarse.gpu.staging import Stage, host_staging
from tests.support.claims import raises, report_claims
from tests.support.gpu_torch import cuda, is_stand_in, start

Move = Callable[[torch.Tensor], torch.Tensor]
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)


def value(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, rank: int | None = None) -> torch.Tensor:
    """A rank's tensor of small whole numbers."""
    generator = torch.Generator().manual_seed(100 * seed + (dist.get_rank() if rank is None else rank))
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def same(call: Callable[[Move], list[torch.Tensor]]) -> None:
    """A call gives the bits on GPUs that it gives on the CPU; so it does on GPUs of odd ranks and the CPU of even
    ones."""
    wanted = [tensor.clone() for tensor in call(on_cpu)]
    for move in (cuda, cuda if dist.get_rank() % 2 else on_cpu):
        found = call(move)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one.cpu(), other.cpu()), (one, other)


def reductions_of_every_type() -> None:
    for dtype in TYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            same(lambda move, dtype=dtype, op=op: reductions(move, dtype, op))


def reductions(move: Move, dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> list[torch.Tensor]:
    size = dist.get_world_size()
    every, one = move(value(30, 7, dtype=dtype)), move(value(11, dtype=dtype, seed=1))
    dist.all_reduce(every, op)
    dist.reduce(one, 1, op)
    out, outs = move(value(5, dtype=dtype)), move(value(4, dtype=dtype))
    dist.reduce_scatter_tensor(out, move(value(5 * size, dtype=dtype, seed=2)), op)
    dist.reduce_scatter(outs, [move(value(4, dtype=dtype, seed=3 + part)) for part in range(size)], op)
    return [every, *([one] if dist.get_rank() == 1 else []), out, outs]


def averages_and_complex_sums() -> None:
    def call(move: Move) -> list[torch.Tensor]:
        mean, whole = move(value(100)), move(torch.complex(value(9, seed=1), value(9, seed=2)))
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        dist.all_reduce(whole)
        return [mean, whole]

    same(call)


def copies_of_every_kind() -> None:
    same(copies)


def copies(move: Move) -> list[torch.Tensor]:
    size, rank = dist.get_world_size(), dist.get_rank()
    sent = move(value(50))
    dist.broadcast(sent, 1)
    gathered = [move(torch.zeros(3, 2)) for _ in range(size)]
    dist.all_gather(gathered, move(value(3, 2)))
    flat = move(torch.zeros(size * 6))
    dist.all_gather_into_tensor(flat, move(value(6, seed=1)))
    at_root = [move(torch.zeros(4)) for _ in range(size)] if rank == size - 1 else None
    dist.gather(move(value(4)), at_root, size - 1)
    scattered = move(torch.zeros(5))
    dist.scatter(scattered, [move(value(5, seed=part)) for part in range(size)] if rank == 0 else None, 0)
    exchanged = [move(torch.zeros(2 + part)) for part in range(size)]
    dist.all_to_all(exchanged, [move(value(2 + rank, seed=part)) for part in range(size)])
    rows = move(torch.zeros(2 * size, 3))
    dist.all_to_all_single(rows, move(value(2 * size, 3)))
    received = move(torch.zeros(7))
    going = dist.isend(move(value(7, seed=9)), (rank + 1) % size)
    dist.recv(received, (rank - 1) % size)
    going.wait()
    return [sent, *gathered, flat, *(at_root or []), scattered, *exchanged, rows, received]


def a_place_in_the_output_may_be_the_input() -> None:
    def call(move: Move) -> list[torch.Tensor]:
        out = move(torch.zeros(6 * dist.get_world_size()))
        own = out[6 * dist.get_rank() :][:6]
        own.copy_(value(6))
        dist.all_gather_into_tensor(out, own)
        return [out]

    same(call)


def tensors_that_are_not_contiguous() -> None:
    def call(move: Move) -> list[torch.Tensor]:
        turned, strided, target = move(value(6, 4)).t(), move(value(20))[::2], move(torch.zeros(8, 5)).t()
        dist.all_reduce(turned)
        dist.broadcast(strided, 0)
        if dist.get_rank() == 0:
            target.copy_(value(5, 8, rank=0))
        dist.broadcast(target, 0)
        parts = [move(torch.zeros(3, 2)).t() for _ in range(dist.get_world_size())]
        dist.all_gather(parts, move(value(3, 2)).t())
        return [turned, strided, target, *parts]

    same(call)


def tensors_without_elements() -> None:
    def call(move: Move) -> list[torch.Tensor]:
        empty, none = move(torch.zeros(0)), move(torch.zeros(0, 3))
        dist.all_reduce(empty)
        dist.all_gather_into_tensor(none, move(torch.zeros(0, 3)))
        return [empty, none]

    same(call)


def several_calls_may_be_under_way() -> None:
    def call(move: Move) -> list[torch.Tensor]:
        tensors = [move(value(500 + 100 * part, seed=part)) for part in range(8)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        return tensors

    same(call)


def a_tensor_may_be_overwritten_after_the_wait() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    tensor, received = cuda(value(300)), cuda(torch.zeros(300))
    work = dist.isend(tensor, (rank + 1) % size)
    coming = dist.irecv(received, (rank - 1) % size)
    work.wait()
    tensor.fill_(77)
    coming.wait()
    assert torch.equal(received.cpu(), value(300, rank=(rank - 1) % size))
    out = cuda(torch.zeros(300 * size))
    dist.all_gather_into_tensor(out, tensor, async_op=True).wait()
    tensor.zero_()
    assert bool((out == 77).all())


def what_is_read_may_be_let_go_at_once() -> None:
    """A call keeps its tensors until it has copied them, as calls of NCCL's do."""

    def call(move: Move) -> list[torch.Tensor]:
        size = dist.get_world_size()
        outs = [move(torch.zeros(90 * size)), move(torch.zeros(90 * size)), move(torch.zeros(30))]
        works = [
            dist.all_gather_into_tensor(outs[0], move(value(90)), async_op=True),
            dist.all_to_all_single(outs[1], move(value(90 * size, seed=1)), async_op=True),
            dist.reduce_scatter_tensor(outs[2], move(value(30 * size, seed=2)), async_op=True),
            dist.isend(move(value(9)), (dist.get_rank() + 1) % size),
        ]
        received = move(torch.zeros(9))
        dist.recv(received, (dist.get_rank() - 1) % size)
        for work in works:
            work.wait()
        return [*outs, received]

    same(call)


def autograd_notices_a_tensor_that_was_overwritten() -> None:
    weight = cuda(torch.ones(5)).requires_grad_()
    saved = cuda(value(5))
    product = (weight * saved).sum()
    dist.all_reduce(saved)
    with raises(RuntimeError, "modified by an inplace operation"):
        product.backward()


def a_future_has_the_tensors() -> None:
    tensor = cuda(value(40))
    wanted = value(40)
    dist.all_reduce(wanted)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert torch.equal(future.wait()[0].cpu(), wanted)


def process_sets_take_them() -> None:
    def call(move: Move) -> list[torch.Tensor]:
        rank = dist.get_rank()
        splits = torch.tensor([1] * dist.get_world_size())
        exchanged = ct.alltoall(move(value(dist.get_world_size(), 2)), splits)
        tensor = move(value(30))
        return [
            ct.allreduce(move(value(20))),
            ct.allreduce_(tensor, op=ct.Sum),
            ct.allgather(move(value(2 + rank, 3))),
            ct.broadcast(move(value(9)), 1),
            exchanged[0] if isinstance(exchanged, tuple) else exchanged,
            ct.reducescatter(move(value(7, 2)), op=ct.Sum),
            *ct.grouped_allreduce([move(value(4)), move(value(5, seed=1))]),
        ]

    same(call)


def sparse_tensors_are_summed() -> None:
    def call(move: Move) -> list[torch.Tensor]:
        rank = dist.get_rank()
        indices, values = torch.tensor([[rank, 3]]), move(value(2, 4))
        tensor = torch.sparse_coo_tensor(indices.to(values.device), values, (9, 4))
        dist.all_reduce(tensor)
        return [tensor.to_dense()]

    same(call)


def memory_that_cuda_does_not_pin_does_as_well() -> None:
    staging = host_staging()
    staging._may_pin = False
    try:
        same(copies)
    finally:
        staging._may_pin = True


def mismatches_are_told_as_on_the_cpu() -> None:
    with raises(coarse.MismatchError):
        dist.all_reduce(cuda(torch.zeros(3 + dist.get_rank())))
    tensor = cuda(value(4))
    dist.all_reduce(tensor)


def a_copy_that_fails_is_an_error_of_the_call() -> None:
    """Last: the group has no use for its other ranks any more."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    if dist.get_rank() == 0:
        host_staging().stream("to the host", 0).fail()
    tensor = cuda(value(50))
    with raises(GpuError if dist.get_rank() == 0 else CoarseError):
        dist.all_reduce(tensor, group=group)


def stages_are_given_back() -> None:
    """Calls of one size use the same memory again and again."""
    taken = set()
    init = Stage.__init__

    def noted(stage, staging, gpu, nbytes):
        init(stage, staging, gpu, nbytes)
        taken.add(stage.bytes.ctypes.data)

    Stage.__init__ = noted
    try:
        for _ in range(50):
            copies(cuda)
            reductions(cuda, torch.float32, dist.ReduceOp.SUM)
    finally:
        Stage.__init__ = init
    assert len(taken) < 50, len(taken)


CLAIMS = (
    reductions_of_every_type,
    averages_and_complex_sums,
    copies_of_every_kind,
    a_place_in_the_output_may_be_the_input,
    tensors_that_are_not_contiguous,
    tensors_without_elements,
    several_calls_may_be_under_way,
    a_tensor_may_be_overwritten_after_the_wait,
    what_is_read_may_be_let_go_at_once,
    autograd_notices_a_tensor_that_was_overwritten,
    a_future_has_the_tensors,
    process_sets_take_them,
    sparse_tensors_are_summed,
    stages_are_given_back,
    memory_that_cuda_does_not_pin_does_as_well,
    mismatches_are_told_as_on_the_cpu,
)
ON_STAND_INS = (a_copy_that_fails_is_an_error_of_the_call,)

if __name__ == "__main__":
    start(is_deterministic=False)
    dist.init_process_group("coarse")
    report_claims(CLAIMS + (ON_STAND_INS if is_stand_in() else ()), sys.argv[1])
    coarse.shutdown()
