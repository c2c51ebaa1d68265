"""Train by dropout, a scheduler and a counter of batches: FOLDER STEPS [resume] [kill=RANK@STEP] [update=backward]
[network=udp] [sum=int64].

Each worker writes the state that it ends with; a rank that is to be killed is, in the middle of that step.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

import coarse
import coarse.torch as ct
from tests.mpi.luwu.models import WIDTH, Block

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
options = dict(word.partition("=")[::2] for word in sys.argv[3:])


class Batches:
    """Where a worker is in its data."""

    def __init__(self) -> None:
        self.number = 0

    def next(self) -> torch.Tensor:
        self.number += 1
        return torch.full((4, WIDTH), 0.1 * self.number + coarse.rank())

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def kill(rank: int, after_s: float) -> None:
    time.sleep(after_s)
    os.kill(int((folder / f"pid{rank}").read_text()), signal.SIGKILL)


def between_hosts() -> dict[str, object]:
    """Devices 2 and 3 are the switch and the optimizer node, where there are several hosts."""
    if "network" not in options:
        return {}
    return {
        "network": options["network"], "switches": 2, "optimizers": [3], "sum": options.get("sum", "float32"),
        "loss": 0.01 if options["network"] == "udp" else 0.0,
    }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(coarse.rank())
    random.seed(coarse.rank())
    np.random.seed(coarse.rank())
    model = nn.Sequential(*(Block() for _ in range(3)), nn.Dropout(0.3), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
    model, optimizer = ct.model_in_network(
        model, torch.optim.AdamW, lr=1e-2, storage=[str(folder / "a"), str(folder / "b")], memory=8 << 20,
        chunk_elements=1024, resume="resume" in options, update=options.get("update", "step"),
        commit_every=int(options.get("every", 1)), **between_hosts(),
    )  # fmt: skip
    resumed = optimizer.steps
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.7)
    batches = Batches()
    optimizer.carry(scheduler=scheduler, batches=batches)
    victim, _, at = options.get("kill", "-1@-1").partition("@")
    for step in range(optimizer.steps + 1, steps + 1):
        if step == int(at) and coarse.rank() == 0:
            after_s = random.Random(int(at)).random() * 0.02
            threading.Thread(target=kill, args=(int(victim), after_s), daemon=True).start()
        noise = random.random() + np.random.random()
        loss = (model(batches.next()) * noise).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    state = {**model.state_dict(), "lr": torch.tensor(scheduler.get_last_lr()), "drawn": torch.rand(1)}
    digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in state.values())).hexdigest()
    found = {"digest": digest, "batches": batches.number, "drawn": random.random(), "resumed": resumed}
    (folder / f"end{coarse.rank()}.json").write_text(json.dumps(found))
    ct.shutdown()


rank = MPI.COMM_WORLD.Get_rank()
folder.mkdir(exist_ok=True)
(folder / f"pid{rank}").write_text(str(os.getpid()))
ct.init()
try:
    main()
except coarse.CoarseError as error:
    (folder / f"error{coarse.rank()}").write_text(f"{type(error).__name__}: {error}")
    raise
