"""Sharded training whose collectives are on GPUs, for which stand-ins stand here: the bits of the same on the CPU."""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

import coarse
import coarse.torch as ct
from coarse.client.gpu_copies import GpuCopies
from coarse.errors import CoarseError, GpuError
from coarse.gpu.available import gpus
from coarse.gpu.staging import Stage, host_staging
from tests.mpi.sharding.runs import MODES, ends_of, started
from tests.support.claims import Claim, raises, report_claims, takes_all, waiting_at_most
from tests.support.gpu_torch import collectives_on_gpu, is_stand_in, start
from tests.support.references import Net, Run

STEPS = 3
HALVES = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)}


class Crossings:
    """How many bytes went to the host and to GPUs by way of pinned memory."""

    def __init__(self) -> None:
        self.read_bytes = self.written_bytes = 0
        self._read, self._write = Stage.read, Stage.write

    def __enter__(self) -> "Crossings":
        def read(stage, source, begin=0):
            self.read_bytes += source.nbytes
            return self._read(stage, source, begin)

        def write(stage, target, is_free):
            self.written_bytes += target.nbytes
            return self._write(stage, target, is_free)

        Stage.read, Stage.write = read, write
        return self

    def __exit__(self, *_: object) -> None:
        Stage.read, Stage.write = self._read, self._write


def trained(mode: str, **options: object) -> dict[str, Tensor]:
    """Parameters, losses and norms after some steps, one of them without a backward in between."""
    run = started(Net(), mode, **options)
    for step in range(STEPS):
        run.train(step)
        if step == 1:
            run.evaluate(step)
    return ends_of(run)


def require_same_bits(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    differing = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    assert not differing, differing


def has_the_bits_of_the_cpu(mode: str, **options: object) -> None:
    wanted = trained(mode, **options)
    with collectives_on_gpu(), Crossings() as crossed:
        found = trained(mode, **options)
    require_same_bits(found, wanted)
    assert crossed.written_bytes > 0
    assert crossed.read_bytes > 0
    if takes_all():
        with collectives_on_gpu():
            require_same_bits(trained(mode, **options), found)


def accumulates_and_recomputes_as_on_the_cpu(mode: str) -> None:
    """Gradients that stay on a worker for two passes, blocks that are run again in backward, and an edited shard."""

    def ends() -> dict[str, Tensor]:
        run = started(Net(), mode)
        with run.unsynchronised():
            run.loss(0).backward()
        run.train(1, recompute=True)
        run.edit("head.weight", lambda weight: weight * 2)
        run.train(2)
        return ends_of(run)

    wanted = ends()
    with collectives_on_gpu():
        require_same_bits(ends(), wanted)


def some_workers_may_be_on_gpus_and_others_not(mode: str) -> None:
    wanted = trained(mode)
    with collectives_on_gpu() if coarse.rank() % 2 else nullcontext():
        require_same_bits(trained(mode), wanted)


def gathers_int8_as_on_the_cpu() -> None:
    def ends() -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = Net()
        ct.fully_shard(model, "zeropp", quantised=True)
        run = Run(model, ct.size(), ct.rank())
        run.train(0)
        run.train(1)
        return ends_of(run)

    wanted = ends()
    with collectives_on_gpu():
        require_same_bits(ends(), wanted)


def trains_on_demand_as_on_the_cpu() -> None:
    def ends() -> dict[str, Tensor]:
        model = Net()
        ct.fully_shard(model, "odc")
        run = Run(model, ct.size(), ct.rank())
        for step in range(STEPS):
            for part in range(1 + ct.rank() % 2):
                run.loss(10 * step + part).backward()
            ct.end_minibatch(model)
            run.optimizer.step()
            run.optimizer.zero_grad()
        return run.values()

    wanted = ends()
    stored = []
    store = GpuCopies.store

    def noted(copies, target, source):
        stored.append(source.nbytes)
        return store(copies, target, source)

    GpuCopies.store = noted
    try:
        with collectives_on_gpu(), Crossings() as crossed:
            require_same_bits(ends(), wanted)
    finally:
        GpuCopies.store = store
    assert crossed.written_bytes > 0
    assert stored


def reads_its_node_buffer_where_it_is_pinned() -> None:
    fetched = []
    fetch = GpuCopies.fetch

    def noted(copies, target, source, is_free):
        found = fetch(copies, target, source, is_free)
        fetched.append(gpus().is_pinned(source[:1]))
        return found

    wanted = trained("fcdp", reads="whole")
    GpuCopies.fetch = noted
    try:
        with collectives_on_gpu():
            require_same_bits(trained("fcdp", reads="whole"), wanted)
    finally:
        GpuCopies.fetch = fetch
    assert fetched
    assert all(fetched)


def a_copy_that_fails_is_an_error_of_whoever_waits() -> None:
    """Last: the other workers of the group have no use for it any more."""
    with collectives_on_gpu():
        run = started(Net(), "fsdp")
        run.train(0)
        if coarse.rank() == 0:
            host_staging().stream("to the GPU", 0).fail()
        with waiting_at_most(2.0), raises(GpuError if coarse.rank() == 0 else CoarseError):
            run.train(1)


def claims() -> Iterator[Claim]:
    """Every mode in two types, in `make test` in one or the other, and what some modes alone do."""
    for number, mode in enumerate(MODES):
        types = [("float32", {}), ("bfloat16", HALVES)]
        for name, options in types if takes_all() else [types[number % 2]]:
            yield claim(f"{mode} in {name} has the bits of the cpu", partial(has_the_bits_of_the_cpu, mode, **options))
    for mode in ("fsdp", "hybrid", "zeropp", "fcdp") if takes_all() else ("fcdp",):
        yield claim(f"{mode} accumulates", partial(accumulates_and_recomputes_as_on_the_cpu, mode))
    for mode in ("hybrid", "zeropp", "fcdp") if takes_all() else ("zeropp",):
        yield claim(f"{mode} on some", partial(some_workers_may_be_on_gpus_and_others_not, mode))
    yield claim("fsdp gathers again from two", partial(has_the_bits_of_the_cpu, "fsdp", reshard_after_forward=2))
    yield gathers_int8_as_on_the_cpu
    yield trains_on_demand_as_on_the_cpu
    if is_stand_in():
        yield reads_its_node_buffer_where_it_is_pinned
        yield a_copy_that_fails_is_an_error_of_whoever_waits


def claim(name: str, check: Callable[[], None]) -> Claim:
    check.__name__ = name
    return check


if __name__ == "__main__":
    start()
    report_claims(claims(), sys.argv[1])
    coarse.shutdown()
