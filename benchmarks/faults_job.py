"""Ranks of benchmarks/faults.py: PART FOLDER, under `coarse run --restarts`, or under torchrun for the part "file"."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np
import torch

from experiments.gpt.model import Gpt, GptShape

PART, FOLDER = sys.argv[1], Path(sys.argv[2])
ROWS, STEPS, BLOCK = 8, 96, 4
KILL_AT, TRAIN_STEPS = (6, 12, 18), 24
GIGA = 10**9


def note(rank: int, **what: object) -> None:
    """Add a line to this rank's events."""
    with (FOLDER / f"events-{rank}.jsonl").open("a") as file:
        file.write(json.dumps({"at_s": time.perf_counter(), **what}) + "\n")


def gpt() -> tuple[Gpt, torch.optim.Optimizer, torch.Tensor]:
    """The demo's model, its optimizer, and a batch of one worker's rows."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt(GptShape())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), torch.randint(0, 256, (ROWS, GptShape.context))


def commit() -> None:
    """Steps with commits and without, in turns of a few."""
    import coarse.torch as ct

    ct.init()
    model, inner, rows = gpt()
    ct.broadcast_parameters(model.named_parameters(), root_rank=0)
    optimizer = ct.DistributedOptimizer(inner, model.named_parameters())
    state = ct.Resumable(model=model, optimizer=optimizer)
    plain, kept, alone = [], [], []
    for step in state.steps(STEPS):
        begin_s = time.perf_counter()
        model(rows, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        middle_s = time.perf_counter()
        commits = step // BLOCK % 2
        if commits:
            state.commit()
            alone.append(time.perf_counter() - middle_s)
        (kept if commits else plain).append(time.perf_counter() - begin_s)
    note(ct.rank(), plain_s=plain[BLOCK:], kept_s=kept[BLOCK:], commit_s=alone[BLOCK:])


def large() -> None:
    """Commits of a state of many bytes, half of them each worker's, beside a copy of all of them by one process."""
    import coarse.torch as ct
    from coarse.storage.state_file import BlockSums

    ct.init()
    torch.set_num_threads(1)
    nbytes = int(float(sys.argv[3]) * GIGA / ct.size())
    model = torch.nn.ParameterList(torch.ones(nbytes // 4 // 100) for _ in range(100))
    state = ct.Resumable(model=model)
    target, source = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    found: dict[str, list[float]] = {"commit_s": [], "unchecked_s": [], "memcpy_s": []}

    def timed(name: str, call: object, times: int = 1) -> None:
        ct.barrier()
        begin_s = time.perf_counter()
        for _ in range(times):
            call()  # type: ignore[operator]
        found[name].append(time.perf_counter() - begin_s)

    for _ in range(2):
        state.commit()  # pages are made by the first two
    written_to = BlockSums.written_to
    for _ in range(5):
        timed("commit_s", state.commit)
        BlockSums.written_to = lambda self, end: None  # type: ignore[method-assign]
        timed("unchecked_s", state.commit)
        BlockSums.written_to = written_to  # type: ignore[method-assign]
        if ct.rank() == 0:
            begin_s = time.perf_counter()
            for _ in range(ct.size()):
                target[:] = source
            found["memcpy_s"].append(time.perf_counter() - begin_s)
        ct.barrier()
    note(ct.rank(), **{name: statistics.median(seconds) for name, seconds in found.items() if seconds})


def train() -> None:
    """A training that is killed and goes on from memory."""
    import coarse.torch as ct

    ct.init()
    joined_s = time.perf_counter()
    model, inner, rows = gpt()
    ct.broadcast_parameters(model.named_parameters(), root_rank=0)
    optimizer = ct.DistributedOptimizer(inner, model.named_parameters())
    made_s = time.perf_counter()
    state = ct.Resumable(model=model, optimizer=optimizer)
    note(ct.rank(), what="restored", joined_s=joined_s, made_s=made_s)
    for step in state.steps(TRAIN_STEPS):
        model(rows, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        _die(ct.rank(), step)
        state.commit()
        note(ct.rank(), what="step", step=step)


def by_file() -> None:
    """The same under torchrun, with a file written by rank 0 behind each step."""
    from safetensors.torch import load_file, save_file

    torch.distributed.init_process_group("gloo")
    joined_s = time.perf_counter()
    rank = torch.distributed.get_rank()
    model, optimizer, rows = gpt()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    made_s = time.perf_counter()
    path, first = FOLDER / "last.safetensors", 0
    if path.exists():
        kept = load_file(path)
        first = int(kept.pop("step")) + 1
        model.load_state_dict({name[2:]: value for name, value in kept.items() if name.startswith("m/")})
        states: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in kept.items():
            if name.startswith("o/"):
                states.setdefault(int(name.split("/")[1]), {})[name.split("/")[2]] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    note(rank, what="restored", joined_s=joined_s, made_s=made_s)
    for step in range(first, TRAIN_STEPS):
        wrapped(rows, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        _die(rank, step)
        begin_s = time.perf_counter()
        if rank == 0:
            states = optimizer.state_dict()["state"]
            kept = {f"m/{name}": value for name, value in model.state_dict().items()} | {"step": torch.tensor(step)}
            kept |= {f"o/{number}/{key}": value for number, of in states.items() for key, value in of.items()}
            save_file(kept, FOLDER / "next.safetensors")
            (FOLDER / "next.safetensors").replace(path)
        note(rank, what="step", step=step, saved_s=time.perf_counter() - begin_s)


def _die(rank: int, step: int) -> None:
    """End worker 1 where the next kill is due."""
    start = int(os.environ.get("COARSE_RESTARTS", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    if rank == 1 and start < len(KILL_AT) and step == KILL_AT[start]:
        note(rank, what="killed", step=step)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    {"commit": commit, "large": large, "train": train, "file": by_file}[PART]()
