"""Gradients on GPUs: one synchronisation beside the GPU's own copy and Gloo, and a step of GPT-2 beside DDP on NCCL.

mpirun -n 4 python benchmarks/gpu.py

Half of the ranks are workers, the others memory devices. All GPUs that are here are dealt among them in turn, one
included; with two or more, each worker has one of its own, and the step is compared with DistributedDataParallel on
NCCL, else with a step without synchronisation. It needs numpy, mpi4py, CuPy and torch alone. Kind: measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import coarse
import coarse.torch as ct
from benchmarks.provenance import provenance
from coarse.gpu.available import gpus
from experiments.gpt.model import Block, GptShape

if TYPE_CHECKING:  # importing it starts MPI, which is for ranks
    from mpi4py import MPI

MIB = 1 << 20
SIZES = (64 * 1024, MIB, 16 * MIB, 98 * MIB, 256 * MIB)
NUM_TOKENS = 50_257
PLACES = ("gpu", "host")
TYPES = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class SyncRow:
    """One size: seconds of a synchronisation in place, the median over rounds of the slowest worker."""

    nbytes: int
    coarse_s: float
    gloo_s: float
    copy_s: float
    """A copy of as many bytes within a GPU, by the GPU: what a synchronisation can at best come near to."""


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """Seconds of a step of the model, by who synchronises it; None where that cannot run here."""

    coarse_s: float
    alone_s: float
    ddp_gloo_s: float
    ddp_coarse_s: float
    ddp_nccl_s: float | None

    @property
    def exposed_s(self) -> float:
        """What synchronisation adds to a step."""
        return self.coarse_s - self.alone_s


class Gpt2(nn.Module):
    """The mean cross entropy of a model of GPT-2's shape; one matrix embeds tokens and predicts them."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # (rows, context + 1) int64
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        places = torch.arange(inputs.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(inputs) + self.positions(places)))
        logits = functional.linear(x, self.tokens.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", choices=PLACES, default="gpu", help="where the memory devices' memory is")
    parser.add_argument("--rounds", type=int, default=20, help="of each measurement, of which the median counts")
    parser.add_argument("--batch", type=int, default=8, help="rows of 1024 tokens for each worker and step")
    parser.add_argument("--layers", type=int, default=12, help="12 of width 768 are GPT-2's 124 million parameters")
    parser.add_argument("--type", choices=TYPES, default="bfloat16", help="of parameters and gradients")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest tensor")
    parser.add_argument("--out", type=Path, help="default benchmarks/results/gpu-MEMORY.json")
    given = parser.parse_args(arguments)
    for name in ("rounds", "batch", "layers"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    return given


def table(num_ranks: int, num_gpus: int, memory: str) -> str:
    """The partition table: workers first, and GPUs dealt to all ranks in turn."""
    entries = []
    for rank in range(num_ranks):
        is_device = rank >= num_ranks // 2
        entry = f'[[rank]]\nrank = {rank}\nrole = "{"memory_device" if is_device else "worker"}"\n'
        entries.append(entry + (f'memory = "cuda:{rank % num_gpus}"\n' if is_device and memory == "gpu" else ""))
    return "".join(entries)


def start(memory: str) -> tempfile.TemporaryDirectory[str] | None:
    """Start coarse on all ranks by one table; the folder that rank 0 has it in."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    folder = tempfile.TemporaryDirectory(prefix="coarse-gpu-") if world.rank == 0 else None
    path = f"{folder.name}/partition.toml" if folder is not None else ""
    if folder is not None:
        Path(path).write_text(table(world.size, len(gpus().infos()), memory))
    coarse.init({"partition": told(path, world), "policy": "devices"})
    return folder


def told(text: str, comm: MPI.Intracomm) -> str:
    """The text of the first rank of a communicator."""
    name = np.zeros(512, np.uint8)
    name[: len(text)] = np.frombuffer(text.encode(), np.uint8)
    comm.Bcast(name, root=0)
    return name.tobytes().rstrip(b"\0").decode()


def seconds_of(operate: Callable[[], object], rounds: int, workers: MPI.Intracomm) -> float:
    """The median over rounds of what the slowest worker takes; the GPU has done all of it by then."""
    from mpi4py import MPI

    seconds = []
    for number in range(rounds + 3):
        torch.cuda.synchronize()
        workers.Barrier()
        began_s = time.perf_counter()
        operate()
        torch.cuda.synchronize()
        slowest_s = np.array([time.perf_counter() - began_s])
        workers.Allreduce(MPI.IN_PLACE, slowest_s, MPI.MAX)
        if number >= 3:  # the first ones compile, pin and connect
            seconds.append(float(slowest_s[0]))
    return median(seconds)


def sync_row(nbytes: int, rounds: int, workers: MPI.Intracomm) -> SyncRow:
    """One size of tensor, on the GPU of each worker."""
    tensor = torch.ones(nbytes // 4, device="cuda")
    other = torch.empty_like(tensor)
    return SyncRow(
        nbytes=nbytes,
        coarse_s=seconds_of(lambda: ct.push_pull_(tensor, f"bench/{nbytes}"), rounds, workers),
        gloo_s=seconds_of(lambda: torch.distributed.all_reduce(tensor), rounds, workers),
        copy_s=seconds_of(lambda: other.copy_(tensor), rounds, workers),
    )


def step_seconds(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, rounds: int) -> float:
    """A training step's seconds."""

    def step() -> None:
        optimizer.zero_grad()
        model(tokens).backward()
        optimizer.step()

    return seconds_of(step, rounds, coarse.workers_comm())


def step_row(given: argparse.Namespace) -> StepRow:
    """Return the times of a step of the model, the same on all workers."""
    torch.manual_seed(0)
    shape = GptShape(layers=given.layers, width=768, heads=12, context=1024)
    model = Gpt2(shape).to(device="cuda", dtype=getattr(torch, given.type))
    tokens = torch.randint(NUM_TOKENS, (given.batch, shape.context + 1), device="cuda")
    plain = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    alone_s = step_seconds(model, plain, tokens, given.rounds)
    wrapped = ct.DistributedOptimizer(plain, model.named_parameters())
    coarse_s = step_seconds(model, wrapped, tokens, given.rounds)
    wrapped.close()

    def ddp_s(backend: str) -> float:
        group = torch.distributed.new_group(backend=backend)
        replicated = nn.parallel.DistributedDataParallel(model, process_group=group)
        return step_seconds(replicated, plain, tokens, given.rounds)

    has_one_each = torch.cuda.device_count() >= coarse.size() > 1
    return StepRow(
        coarse_s=coarse_s,
        alone_s=alone_s,
        ddp_gloo_s=ddp_s("gloo"),
        ddp_coarse_s=ddp_s("coarse"),
        ddp_nccl_s=ddp_s("nccl") if has_one_each else None,
    )


def lines_of(rows: Sequence[SyncRow], step: StepRow) -> list[str]:
    """The tables, for people."""
    lines = [f"{'MiB':>8} {'coarse ms':>10} {'gloo ms':>10} {'copy ms':>10} {'coarse / copy':>14}"]
    for row in rows:
        times = (row.coarse_s, row.gloo_s, row.copy_s)
        ratio = row.coarse_s / row.copy_s
        lines.append(f"{row.nbytes / MIB:8.2f} " + " ".join(f"{one * 1e3:10.3f}" for one in times) + f" {ratio:14.1f}")
    ddp = "none: it wants a GPU for each worker" if step.ddp_nccl_s is None else f"{step.ddp_nccl_s * 1e3:.1f} ms"
    lines.append(
        f"step: coarse {step.coarse_s * 1e3:.1f} ms, alone {step.alone_s * 1e3:.1f} ms, exposed "
        f"{step.exposed_s * 1e3:.1f} ms; DDP on Gloo {step.ddp_gloo_s * 1e3:.1f} ms, on the backend coarse "
        f"{step.ddp_coarse_s * 1e3:.1f} ms, on NCCL {ddp}"
    )
    return lines


def main() -> None:
    """Workers measure, memory devices serve."""
    from mpi4py import MPI

    given = parse_arguments()
    try:
        names = [info.name for info in gpus().infos()]
    except coarse.ConfigError as refused:
        print(f"gpu.py: {refused}", file=sys.stderr)
        sys.exit(2)
    num_ranks = MPI.COMM_WORLD.size
    if num_ranks < 2 or num_ranks % 2:
        print(f"gpu.py: an even number of ranks was wanted, {num_ranks} run; mpirun -n 4", file=sys.stderr)
        sys.exit(2)
    folder = start(given.memory)
    torch.cuda.set_device(coarse.local_rank() % torch.cuda.device_count())
    workers = coarse.workers_comm()
    with tempfile.TemporaryDirectory() as own:
        store = torch.distributed.FileStore(told(f"{own}/store", workers), coarse.size())
        torch.distributed.init_process_group("gloo", store=store, rank=coarse.rank(), world_size=coarse.size())
        rows = [sync_row(nbytes, given.rounds, workers) for nbytes in SIZES if nbytes <= given.largest]
        step = step_row(given)
        torch.distributed.destroy_process_group()
        workers.Barrier()
    if coarse.rank() == 0:
        print("\n".join(lines_of(rows, step)))
        out = given.out or Path(__file__).parent / "results" / f"gpu-{given.memory}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        document = {
            **provenance("gpu.py", sys.argv[1:], num_ranks),
            "gpus": names,
            "sync": [asdict(row) for row in rows],
            "step": {**asdict(step), "exposed_s": step.exposed_s},
        }
        out.write_text(json.dumps(document, indent=1) + "\n")
    coarse.shutdown()
    if folder is not None:
        folder.cleanup()


if __name__ == "__main__":
    main()
