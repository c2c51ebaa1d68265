"""How scripts for other libraries call them with tensors on GPUs, called here so: the results of the same on the CPU.

Read in Horovod's, BytePS's and torch's own tests and examples; nothing of them is here. On CUDA's GPUs (tests/gpu), and
on stand-ins.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import distribute_tensor

import coarse
import coarse.torch as ct
from tests.mpi.torch.gpu_torch_claims import alike, mine, model, same, to_cpu
from tests.support.claims import report_claims
from tests.support.gpu_torch import (
    collectives_on_gpu,
    cuda,
    is_stand_in,
    num_gpus,
    start,
    to_cuda,
)

Move = Callable[[torch.Tensor], torch.Tensor]


def as_on_the_cpu(call: Callable[[Move, str], list[torch.Tensor]]) -> None:
    """A call, given how to move a tensor and a prefix of names, has the bits of the CPU."""
    wanted = [tensor.detach().clone() for tensor in call(lambda tensor: tensor.clone(), "cpu")]
    for found, other in zip(call(cuda, "gpu"), wanted, strict=True):
        alike(found.detach(), other)


@contextmanager
def everything_elsewhere() -> Iterator[None]:
    """Within, tensors that are made without a device are on none where numpy reads: torch.set_default_device."""
    torch.set_default_device("meta" if is_stand_in() else "cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


# --- Horovod's


def rows_are_exchanged_by_splits_that_are_on_a_gpu() -> None:
    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        rank, size = coarse.rank(), coarse.size()
        own = move(torch.full((size * (rank + 1), 2), float(rank)))
        rows, received = ct.alltoall(own, move(torch.tensor([rank + 1] * size, dtype=torch.int32)))
        return [rows, received]

    as_on_the_cpu(call)


def factors_scale_before_and_after() -> None:
    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        return [
            ct.allreduce(move(mine((17, 3))), op=ct.Sum, prescale_factor=0.5, name=f"{prefix}/before"),
            ct.allreduce(move(mine((17, 3))), op=ct.Sum, postscale_factor=0.25, name=f"{prefix}/after"),
            ct.reducescatter(move(mine((17, 3))), op=ct.Sum, name=f"{prefix}/scattered"),
        ]

    as_on_the_cpu(call)


def a_group_may_have_members_here_and_there() -> None:
    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        tensors = [mine((10,), seed=place) for place in range(5)]
        given = [tensor if place % 2 else move(tensor) for place, tensor in enumerate(tensors)]
        return ct.grouped_allreduce(given, op=ct.Sum, name=f"{prefix}/group")

    as_on_the_cpu(call)


def models_and_optimizers_are_broadcast() -> None:
    """Ranks begin with unlike weights, running statistics and states of Adam, and end with those of rank 0."""

    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        torch.manual_seed(coarse.rank())
        # No bias before the normalisation: its gradient is of rounding errors alone, and Adam makes whole steps of it.
        net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        net = net if prefix == "cpu" else to_cuda(net)
        inner = torch.optim.Adam(net.parameters(), lr=0.01 * (coarse.rank() + 1))
        net(move(mine((5, 6)))).sum().backward()
        inner.step()
        optimizer = ct.DistributedOptimizer(inner, net.named_parameters(), prefix=f"{prefix}/broadcast")
        ct.broadcast_parameters(net.state_dict(), root_rank=0)
        ct.broadcast_optimizer_state(optimizer, root_rank=0)
        states = [value for state in inner.state.values() for value in state.values()]
        optimizer.close()
        assert inner.param_groups[0]["lr"] == 0.01
        found = [*net.state_dict().values(), *(torch.as_tensor(value) for value in states)]
        for tensor in found:
            rows = ct.allgather(tensor.detach().reshape(1, -1).double())
            assert (rows == rows[0]).all()
        return found

    as_on_the_cpu(call)


def parts_of_a_model_are_on_two_gpus() -> None:
    if num_gpus() < 2:
        return
    first, second = (1, 0) if coarse.rank() else (0, 1)

    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        net = model()
        if prefix == "gpu":
            to_cuda(net[0], first)
            to_cuda(net[2], second)
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix=f"{prefix}/parallel"
        )
        for step in range(3):
            rows = mine((16, 20), seed=step)
            hidden = net[:2](cuda(rows, first) if prefix == "gpu" else rows)
            net[2](hidden.to(net[2].weight.device)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
        return list(net.parameters())

    as_on_the_cpu(call)


def a_name_may_come_from_one_gpu_and_then_from_another() -> None:
    if num_gpus() < 2:
        return
    for step in range(6):
        tensor = mine((1700,), seed=step)
        wanted = ct.push_pull(tensor, "cpu/wandering")
        same(ct.push_pull(cuda(tensor, (step + coarse.rank()) % 2), "gpu/wandering"), wanted)
        in_place = cuda(tensor, step % 2)
        ct.allreduce_(in_place, name=f"gpu/wandering/{step % 2}")
        same(in_place, wanted)


def batches_are_normalised_over_all_workers() -> None:
    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        norm = ct.SyncBatchNorm(4)
        norm = norm if prefix == "cpu" else to_cuda(norm)
        values = move(mine((3, 4, 2))).requires_grad_()
        (norm(values) * move(mine((3, 4, 2), seed=1))).sum().backward()
        return [values.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]

    as_on_the_cpu(call)


def gradients_are_clipped_between_two_halves_of_a_step() -> None:
    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        net = to_cpu(model()) if prefix == "cpu" else to_cuda(model())
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix=f"{prefix}/clipped"
        )
        for step in range(3):
            optimizer.zero_grad()
            net(move(mine((16, 20), seed=step))).pow(2).mean().backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        optimizer.close()
        return list(net.parameters())

    as_on_the_cpu(call)


def the_default_device_may_be_a_gpu() -> None:
    """torch.set_default_device, which scripts call once: what coarse makes for itself is on the host all the same."""
    tensor, table = cuda(mine((40, 3))), mine((40, 3))
    wanted = ct.push_pull(table, "cpu/default")
    net = to_cuda(model())
    rows = cuda(mine((16, 20)))
    optimizer = torch.optim.Adam(net.parameters())
    with everything_elsewhere():
        for name, value in (("gpu", tensor), ("cpu", table), ("strided", tensor.t())):
            found = ct.push_pull(value, f"{name}/default device")
            same(found.t() if name == "strided" else found, wanted)
        same(ct.allreduce(tensor, name="gpu/default device"), wanted)
        ct.allgather(tensor)
        ct.alltoall(tensor[: coarse.size()], [1] * coarse.size())
        ct.reducescatter(tensor)
        ct.push(tensor, "gpu/default device/pushed")
        same(ct.pull("gpu/default device/pushed").wait(), wanted)
        assert ct.broadcast_object({"epoch": coarse.rank()}, 0) == {"epoch": 0}
        assert ct.allgather_object(coarse.rank()) == list(range(coarse.size()))
        wrapped = ct.DistributedOptimizer(optimizer, net.named_parameters(), prefix="gpu/default device")
        ct.broadcast_parameters(net.state_dict(), 0)
        net(rows).pow(2).mean().backward()
        wrapped.step()
        ct.broadcast_optimizer_state(wrapped, 0)
        wrapped.close()


# --- BytePS's


def a_step_is_scaled_accumulated_and_sent_as_halves() -> None:
    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        net = to_cpu(model()) if prefix == "cpu" else to_cuda(model())
        scaler = torch.amp.GradScaler("cpu" if is_stand_in() or prefix == "cpu" else "cuda", init_scale=64.0)
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5),
            named_parameters=net.named_parameters(),
            compression=ct.Compression.fp16,
            backward_passes_per_step=2,
            prefix=f"{prefix}/amp",
        )
        for step in range(4):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (step + 1)
            optimizer.zero_grad()
            for part in range(2):
                rows = move(mine((16, 20), seed=2 * step + part))
                with torch.autocast(rows.device.type, dtype=torch.bfloat16):
                    loss = net(rows).float().pow(2).mean()
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.close()
        return list(net.parameters())

    as_on_the_cpu(call)


def a_tensor_is_pushed_in_place_again_and_again() -> None:
    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        tensor = move(torch.ones(100, 100))
        for count in range(30):
            handle = ct.push_pull_async_inplace(tensor, average=True, name=f"{prefix}/tensor_{count % 10}")
            ct.synchronize(handle)
            tensor.add_(coarse.rank())
        return [tensor]

    as_on_the_cpu(call)


# --- torch's


def layers_are_gathered_ahead_and_reduced_wide() -> None:
    """fully_shard layer by layer on the meta device, with prefetching both ways, halves for compute, and its state."""

    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        with torch.device("meta"):
            net = nn.Sequential(*[nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4)])
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in net:
            ct.fully_shard(layer, mp_policy=policy)
        ct.fully_shard(net, mp_policy=policy)
        for place, layer in enumerate(net):
            layer.set_modules_to_forward_prefetch(list(net[place + 1 : place + 3]))
            layer.set_modules_to_backward_prefetch(list(net[max(place - 2, 0) : place])[::-1])
        net.to_empty(device="cpu" if is_stand_in() else "cuda")
        for number, parameter in enumerate(net.parameters()):
            torch.manual_seed(number)
            whole = torch.randn(parameter.shape) / 4
            part = distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements)
            parameter.to_local().data.copy_(part.to_local())
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for step in range(4):
            net.unshard()
            net(mine((6, 8), seed=step).to(next(net.parameters()).device)).sum().backward()
            nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.full_tensor() for parameter in net.parameters()]

    wanted = call(lambda tensor: tensor, "cpu")
    with collectives_on_gpu():
        for found, other in zip(call(cuda, "gpu"), wanted, strict=True):
            alike(found.detach(), other.detach())


def each_mode_of_sharding_trains_as_one_process_does() -> None:
    """A batch of each rank and step, all of them on the CPU at once, and sharded."""

    def loss(net: nn.Module, step: int, rank: int) -> torch.Tensor:
        rows = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))
        return net(rows.to(next(net.parameters()).device)).pow(2).mean()

    whole = model()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        sum(loss(whole, step, rank) for rank in range(coarse.size())).div(coarse.size()).backward()
        optimizer.step()
    for mode in ("fsdp", "hybrid", "zeropp", "fcdp", "odc"):
        net = model() if is_stand_in() else to_cuda(model())
        with collectives_on_gpu():
            ct.fully_shard(net, mode=mode)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            for step in range(3):
                optimizer.zero_grad()
                loss(net, step, coarse.rank()).backward()
                if mode == "odc":
                    ct.end_minibatch(net)
                optimizer.step()
            found = [parameter.full_tensor() for parameter in net.parameters()]
        for one, other in zip(found, whole.parameters(), strict=True):
            assert torch.allclose(one.detach().cpu(), other.detach(), rtol=1e-3, atol=1e-5), mode


def messages_of_a_pipeline_are_sent_as_one_batch() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, received = cuda(mine((50, 4))), cuda(torch.zeros(50, 4))
    operations = [
        dist.P2POp(dist.isend, sent, (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    gathered = [torch.zeros(50, 4) for _ in range(size)]
    dist.all_gather(gathered, mine((50, 4)))
    same(received, gathered[(rank - 1) % size])


def parts_of_one_flat_buffer_are_reduced_and_gathered() -> None:
    """As ZeRO's partitions are: views of one buffer, of which several are under way."""

    def call(move: Move, prefix: str) -> list[torch.Tensor]:
        rank, size = dist.get_rank(), dist.get_world_size()
        flat = move(mine((size * 120,)))
        shards = [flat[size * 40 * part :][: size * 40] for part in range(3)]
        own = [shard[rank * 40 :][:40] for shard in shards]
        sums = [move(torch.zeros(40)) for _ in shards]
        works = [
            dist.reduce_scatter_tensor(out, shard, async_op=True) for out, shard in zip(sums, shards, strict=True)
        ]
        for work in works:
            work.wait()
        for place, value in zip(own, sums, strict=True):
            place.copy_(value)
        works = [
            dist.all_gather_into_tensor(shard, part, async_op=True) for shard, part in zip(shards, own, strict=True)
        ]
        for work in works:
            work.wait()
        return [flat]

    as_on_the_cpu(call)


CLAIMS = (
    rows_are_exchanged_by_splits_that_are_on_a_gpu,
    factors_scale_before_and_after,
    a_group_may_have_members_here_and_there,
    models_and_optimizers_are_broadcast,
    parts_of_a_model_are_on_two_gpus,
    a_name_may_come_from_one_gpu_and_then_from_another,
    batches_are_normalised_over_all_workers,
    gradients_are_clipped_between_two_halves_of_a_step,
    the_default_device_may_be_a_gpu,
    a_step_is_scaled_accumulated_and_sent_as_halves,
    a_tensor_is_pushed_in_place_again_and_again,
    layers_are_gathered_ahead_and_reduced_wide,
    each_mode_of_sharding_trains_as_one_process_does,
    messages_of_a_pipeline_are_sent_as_one_batch,
    parts_of_one_flat_buffer_are_reduced_and_gathered,
)

if __name__ == "__main__":
    start()
    dist.init_process_group("coarse")
    report_claims(CLAIMS, sys.argv[1])
    coarse.shutdown()
