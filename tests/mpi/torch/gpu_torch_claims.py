"""What coarse.torch promises of tensors on GPUs, beside the same on the CPU: to the bit, but for what CUDA computes.

On CUDA's GPUs (tests/gpu), and on stand-ins.
"""

import sys

import torch

import coarse
import coarse.torch as ct
from coarse.gpu.interface import is_on_gpu
from coarse.session import current
from coarse.torch import on_gpu
from tests.mpi.torch.forced_split import force_split
from tests.support.claims import raises, report_claims, waiting_at_most
from tests.support.gpu_torch import cuda, is_stand_in, start, to_cuda

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64)


def mine(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + coarse.rank())
    return torch.randint(-100, 100, shape, generator=generator).div(8).to(dtype)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert torch.equal(found.cpu(), wanted.cpu())


def alike(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same where the CPU has computed both."""
    if is_stand_in():
        same(found, wanted)
    else:
        torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=1e-3, atol=1e-4)


def a_sum_has_the_bits_of_the_same_sum_on_the_cpu() -> None:
    for dtype in TYPES:
        for seed, shape in enumerate(((), (0,), (5, 3), (3001,))):
            tensor = mine(shape, dtype, seed)
            on_cpu = ct.push_pull(tensor, f"cpu/{dtype}/{shape}", coarse.Sum)
            same(ct.push_pull(cuda(tensor), f"gpu/{dtype}/{shape}", coarse.Sum), on_cpu)


def a_result_in_place_is_in_the_tensor() -> None:
    tensor = mine((2000,), seed=1)
    wanted = ct.push_pull(tensor, "cpu/in place")
    on_gpu = cuda(tensor)
    assert ct.push_pull_(on_gpu, "gpu/in place") is on_gpu
    same(on_gpu, wanted)
    again = cuda(tensor)
    handle = ct.push_pull_async_(again, "gpu/in place")
    assert handle.wait() is again
    same(again, wanted)


def tensors_that_are_not_contiguous_give_the_same_sum() -> None:
    tensor = mine((40, 30), seed=2)
    wanted = ct.push_pull(tensor.t(), "cpu/transposed")
    same(ct.push_pull(cuda(tensor).t(), "gpu/transposed"), wanted)
    view = cuda(tensor).t()
    ct.push_pull_(view, "gpu/transposed in place")
    same(view, wanted)


def a_push_lets_its_tensor_be_overwritten_and_pull_gives_the_sum() -> None:
    tensor = mine((3000,), seed=3)
    wanted = ct.push_pull(tensor, "cpu/pushed")
    on_gpu = cuda(tensor)
    ct.push(on_gpu, "gpu/pushed")
    on_gpu.zero_()
    out = cuda(torch.zeros(3000))
    same(ct.pull("gpu/pushed", out).wait(), wanted)


def gradients_flow_through_a_push_pull() -> None:
    gradients = []
    for move, name in ((torch.clone, "cpu"), (cuda, "gpu")):
        tensor = move(mine((50,), seed=4)).detach().requires_grad_()
        (ct.push_pull(tensor, f"{name}/flow") * (coarse.rank() + 1)).sum().backward()
        gradients.append(tensor.grad)
    same(gradients[1], gradients[0])


def a_device_array_takes_no_copy() -> None:
    array = ct.device_array("gpu/device", (500,))
    assert not array.any()
    for step in range(3):
        array.copy_(mine((500,), seed=step).to(array.device))
        wanted = ct.push_pull(mine((500,), seed=step), "cpu/device")
        assert ct.push_pull_async(array, "gpu/device").wait().data_ptr() == array.data_ptr()
        same(array, wanted)


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5))


def to_cpu(net: torch.nn.Module) -> torch.nn.Module:
    return net


def trained(name: str, move, *, steps: int = 4, **options) -> tuple[list[torch.Tensor], float]:
    """Parameters and the last loss after some steps of accumulated gradients."""
    net = move(model())
    passes = options.get("backward_passes_per_step", 1)
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net.named_parameters(), prefix=name, **options
    )
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            rows = mine((16, 20), seed=10 * step + part)
            loss = net(cuda(rows) if move is to_cuda else rows).pow(2).mean()
            loss.backward()
        optimizer.step()
    optimizer.close()
    return [parameter.detach().clone() for parameter in net.parameters()], loss.item()


def training_takes_the_same_steps(name: str, **options) -> None:
    wanted, loss = trained(f"cpu/{name}", to_cpu, **options)
    found, found_loss = trained(f"gpu/{name}", to_cuda, **options)
    alike(torch.tensor(found_loss), torch.tensor(loss))
    for one, other in zip(found, wanted, strict=True):
        alike(one, other)
    again, _ = trained(f"gpu/{name}/again", to_cuda, **options)
    for one, other in zip(again, found, strict=True):
        same(one, other)  # between runs no bit changes


def a_distributed_optimizer_takes_the_steps_of_the_cpu() -> None:
    training_takes_the_same_steps("plain")


def gradients_may_accumulate() -> None:
    training_takes_the_same_steps("passes", backward_passes_per_step=2)


def gradients_may_travel_as_halves_or_be_copied() -> None:
    training_takes_the_same_steps("halves", compression=ct.Compression.fp16)
    training_takes_the_same_steps("bf16", compression=ct.Compression.bf16)
    training_takes_the_same_steps("copied", gradients_in_device_memory=False)


def a_model_may_be_on_the_gpu_and_on_the_cpu() -> None:
    ends = []
    for name, move in (("cpu", to_cpu), ("gpu", to_cuda)):
        net = model()
        net[0] = move(net[0])
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix=f"{name}/mixed"
        )
        for step in range(3):
            optimizer.zero_grad()
            rows = mine((16, 20), seed=step)
            hidden = net[:2](cuda(rows) if move is to_cuda else rows)
            net[2](hidden.cpu()).pow(2).mean().backward()
            optimizer.step()
        ends.append([parameter.detach().clone() for parameter in net.parameters()])
        optimizer.close()
    for one, other in zip(*ends, strict=True):
        alike(other, one)


def members_of_a_process_set_combine_theirs() -> None:
    members = ct.add_process_set(range(coarse.size()))
    training_takes_the_same_steps("set", process_set=members)
    ct.remove_process_set(members)


def a_worker_may_end_before_the_others() -> None:
    """What it would have contributed counts as zero, also where the workers were to sum a part."""
    if current().config.mode == "allreduce":
        return
    ends = []
    for name, move in (("cpu", to_cpu), ("gpu", to_cuda)):
        net = move(model())
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix=f"{name}/joined"
        )
        for step in range(6 if coarse.rank() else 3):
            optimizer.zero_grad()
            rows = mine((16, 20), seed=step)
            net(cuda(rows) if move is to_cuda else rows).pow(2).mean().backward()
            optimizer.step()
        last = ct.join()
        ct.broadcast_parameters(net.state_dict(), last)
        ends.append([parameter.detach().clone() for parameter in net.parameters()])
        optimizer.close()
    for one, other in zip(*ends, strict=True):
        alike(other, one)


def a_part_of_the_gradients_goes_to_the_workers() -> None:
    """As `policy` says: whatever part that is, two workers' sums have the same bits by either way."""
    config = current().config
    submitted, submit = [], AllreduceStream.submit

    def noted(stream, descriptor, array):
        submitted.append((descriptor.name, is_on_gpu(array)))
        return submit(stream, descriptor, array)

    AllreduceStream.submit = noted
    kept = split_chooser.SplitChooser, dual.DualReducer
    try:
        for split in ("none", "half"):
            force_split(split)
            training_takes_the_same_steps(f"split {split}")
    finally:
        AllreduceStream.submit = submit
        split_chooser.SplitChooser, dual.DualReducer = kept
    found = {on_gpu for name, on_gpu in submitted if name.startswith(("gpu/", "cpu/"))}
    assert found == (set() if config.policy == "devices" and config.mode != "allreduce" else {True, False})


def a_split_is_measured_with_the_copies_of_the_gpu() -> None:
    """And a second gradient may come for a bucket that is held back."""
    net = to_cuda(model())
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix="gpu/measured"
    )
    for step in range(12):
        optimizer.zero_grad()
        for _ in range(1 + step % 2):
            net(cuda(mine((16, 20), seed=step))).pow(2).mean().backward()
        optimizer.step()
    config = current().config
    is_measured = config.mode == "coarse" and config.policy != "devices"
    assert (optimizer.dual_sync is not None) == is_measured
    optimizer.close()


def a_gradient_that_some_ranks_lack_counts_as_zero_there() -> None:
    found = []
    for name, move in (("cpu", to_cpu), ("gpu", to_cuda)):
        net = move(model())
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix=f"{name}/absent"
        )
        optimizer._exchange._warned |= {f"{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")}
        part = net[:2] if coarse.rank() else net
        rows = mine((16, 20))
        part(cuda(rows) if move is to_cuda else rows).pow(2).mean().backward()
        optimizer.step()
        found.append((optimizer.last_absent, [parameter.detach().clone() for parameter in net.parameters()]))
        optimizer.close()
    assert found[0][0] == found[1][0] != {}
    for one, other in zip(found[0][1], found[1][1], strict=True):
        alike(one, other)


def a_step_that_stalled_is_taken_again() -> None:
    """Of a part that the workers sum, and of one that devices do."""
    for split in ("none", "half"):
        kept = split_chooser.SplitChooser, dual.DualReducer
        force_split(split)
        ends = []
        for name, move in (("cpu", to_cpu), ("gpu", to_cuda)):
            net = move(model())
            optimizer = ct.DistributedOptimizer(
                torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix=f"{name}/late {split}"
            )
            for step in range(4):
                optimizer.zero_grad()
                if step == 2 and coarse.rank():
                    ct.push_pull(torch.zeros(1), "gpu/late/go on")
                rows = mine((16, 20), seed=step)
                net(cuda(rows) if move is to_cuda else rows).pow(2).mean().backward()
                if step == 2 and not coarse.rank():
                    with waiting_at_most(0.3), raises(coarse.StallError):
                        optimizer.step()
                    ct.push_pull(torch.zeros(1), "gpu/late/go on")
                optimizer.step()
            optimizer.close()
            ends.append([parameter.detach().clone() for parameter in net.parameters()])
        split_chooser.SplitChooser, dual.DualReducer = kept
        for one, other in zip(*ends, strict=True):
            alike(other, one)


def tied_and_transposed_parameters_have_one_gradient() -> None:
    ends = []
    for name, move in (("cpu", torch.clone), ("gpu", cuda)):
        torch.manual_seed(3)
        first = torch.nn.Linear(12, 12, bias=False)
        first.weight = torch.nn.Parameter(move(torch.randn(12, 12)).t())
        second = torch.nn.Linear(12, 12, bias=False)
        second.weight = first.weight
        net = torch.nn.Sequential(first, second)
        kernel = torch.nn.Parameter(move(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)))
        net.register_parameter("kernel", kernel)
        optimizer = ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix=f"{name}/tied"
        )
        for step in range(3):
            optimizer.zero_grad()
            rows = move(mine((5, 12), seed=step))
            images = rows.view(5, 3, 2, 2)
            (net(rows).pow(2).mean() + torch.nn.functional.conv2d(images, kernel).pow(2).mean()).backward()
            optimizer.step()
        optimizer.close()
        ends.append([first.weight.detach().clone(), kernel.detach().clone()])
    for one, other in zip(*ends, strict=True):
        alike(other, one)


def a_gradient_under_way_may_be_read_from_a_buffer_of_its_own() -> None:
    """Tensors that share memory: each push has read its own part when the stream goes on."""
    whole = cuda(mine((900,), seed=6))
    names = [f"shared/{number}" for number in range(3)]
    handles = [ct.push_pull_async(whole[200 * number :][:500], f"gpu/{names[number]}") for number in range(3)]
    whole.zero_()
    for number, handle in enumerate(handles):
        same(handle.wait(), ct.push_pull(mine((900,), seed=6)[200 * number :][:500], f"cpu/{names[number]}"))


def a_gpu_without_room_leaves_nothing_half_done() -> None:
    tensor = cuda(mine((700,), seed=8))
    wanted = ct.push_pull(mine((700,), seed=8), "cpu/full")
    kept = on_gpu._empty

    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    on_gpu._empty = full
    try:
        with raises(torch.OutOfMemoryError, "out of memory"):
            ct.push_pull(tensor, "gpu/full")
    finally:
        on_gpu._empty = kept
    same(ct.push_pull(tensor, "gpu/full"), wanted)


def a_disturbed_gradient_is_noticed() -> None:
    net = to_cuda(model())
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix="gpu/disturbed"
    )
    net(cuda(mine((16, 20)))).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    with raises(coarse.InFlightError, "were changed or replaced"):
        optimizer.step()
    optimizer.close()


def a_worker_whose_model_is_elsewhere_is_refused() -> None:
    net = to_cuda(model()) if coarse.rank() else model()
    with raises(coarse.MismatchError, "on a GPU"):
        ct.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), prefix="gpu/elsewhere"
        )


CLAIMS = (
    a_sum_has_the_bits_of_the_same_sum_on_the_cpu,
    a_result_in_place_is_in_the_tensor,
    tensors_that_are_not_contiguous_give_the_same_sum,
    a_push_lets_its_tensor_be_overwritten_and_pull_gives_the_sum,
    gradients_flow_through_a_push_pull,
    a_device_array_takes_no_copy,
    a_distributed_optimizer_takes_the_steps_of_the_cpu,
    gradients_may_accumulate,
    gradients_may_travel_as_halves_or_be_copied,
    a_model_may_be_on_the_gpu_and_on_the_cpu,
    members_of_a_process_set_combine_theirs,
    a_worker_may_end_before_the_others,
    a_part_of_the_gradients_goes_to_the_workers,
    a_split_is_measured_with_the_copies_of_the_gpu,
    a_gradient_that_some_ranks_lack_counts_as_zero_there,
    a_step_that_stalled_is_taken_again,
    tied_and_transposed_parameters_have_one_gradient,
    a_gradient_under_way_may_be_read_from_a_buffer_of_its_own,
    a_gpu_without_room_leaves_nothing_half_done,
    a_disturbed_gradient_is_noticed,
    a_worker_whose_model_is_elsewhere_is_refused,
)

if __name__ == "__main__":
    start()
    from coarse.parallel.data import dual, split_chooser  # they start MPI
    from coarse.parallel.data.allreduce_stream import AllreduceStream

    report_claims(CLAIMS, sys.argv[1])
    coarse.shutdown()
