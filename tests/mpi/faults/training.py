"""A training with dropout, augmentation, an EMA and a scheduler, which disturbs itself: MODE FOLDER [KIND:STEP ...].

At each start of the job the next KIND is killed at a STEP, by worker 1: a worker, device, watcher, mpirun, or what
imports for ranks; "stops" stops worker 1, "raises" raises in it, "preempted" signals the launcher; "validation" kills
worker 1 between two epochs. Each worker writes a
digest of all that it has at its end.
"""

import hashlib
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import coarse.torch as ct

MODE, FOLDER, *DISTURBANCES = sys.argv[1:]
EPOCHS, ROWS, BATCH = int(os.environ.get("EPOCHS", "2")), 48, 4
PASSES = 3 if MODE == "accumulated" else 1
LUWU = ("luwu", "luwu in memory")
DATA_PARALLEL = MODE in ("coarse", "accumulated")
DEVICE = os.environ.get("DEVICE", "cpu")


class Noisy(Dataset):
    """Rows that are read with noise from every generator."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.linspace(-1, 1, 16) * index + torch.randn(16) + np.random.rand() + random.random()
        return row, row.sum(0, keepdim=True)


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def ancestors() -> list[int]:
    """The processes above this one, the nearest first."""
    found = [os.getppid()]
    with suppress(OSError):
        while found[-1] > 1:
            found.append(int(Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    return found


def disturb(kind: str) -> None:
    """Kill something of this job."""
    if kind == "raises":
        raise ArithmeticError("broken")
    if kind in ("worker", "stops"):
        os.kill(os.getpid(), signal.SIGKILL if kind == "worker" else signal.SIGSTOP)
        return
    lines = {}
    if kind == "preempted":
        os.kill(int(os.environ["COARSE_STATE_MEMORY"].split("/")[2]), signal.SIGTERM)
        signal.pause()
    launcher = int(os.environ["COARSE_STATE_MEMORY"].split("/")[2])
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            lines[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
    parents = {}
    for pid in lines:
        with suppress(OSError):
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != launcher:
            pid = parents[pid]
        return pid == launcher

    marks = {
        "device": "coarse.launch.device", "watcher": "exit_reporter.py", "mpirun": "prterun", "importer": "server.py",
    }  # fmt: skip
    ours = [
        pid for pid, line in lines.items()
        if is_ours(pid) and pid != launcher and (marks[kind] in line or (kind == "mpirun" and "mpirun" in line[:200]))
        and (kind != "device" or "exit_reporter.py" not in line)
        and (kind not in ("mpirun", "importer") or parents[pid] == launcher)
    ]  # fmt: skip
    assert ours, f"no {kind} among {[line for pid, line in lines.items() if is_ours(pid)]}"
    os.kill(ours[0], signal.SIGKILL)
    signal.pause()


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, by the mode."""
    torch.manual_seed(5)
    blocks = [torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)]
    if DATA_PARALLEL:
        blocks.insert(1, torch.nn.BatchNorm1d(32))
    model = torch.nn.Sequential(*blocks).to(DEVICE)
    if DATA_PARALLEL:
        ct.broadcast_parameters(model.state_dict(), root_rank=0)
        inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
        named = model.named_parameters()
        return model, ct.DistributedOptimizer(inner, named_parameters=named, backward_passes_per_step=PASSES)
    if MODE in LUWU:
        storage = [f"{FOLDER}-states"] if MODE == "luwu" else None
        return ct.model_in_network(model, torch.optim.AdamW, lr=1e-2, storage=storage)
    model = ct.fully_shard(model, mode=MODE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def main() -> None:
    ct.init()
    seed_all(10 + ct.rank())
    model, optimizer = made()
    scheduler = (
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        if MODE == "accumulated" else torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    )  # fmt: skip
    scaler = torch.amp.GradScaler("cpu", enabled=MODE == "accumulated", init_scale=8.0, growth_interval=2)
    sampler = DistributedSampler(Noisy(), num_replicas=ct.size(), rank=ct.rank())
    loader = DataLoader(Noisy(), batch_size=BATCH, sampler=sampler, num_workers=int(os.environ.get("READERS", "0")))
    ema = {"ema": torch.optim.swa_utils.AveragedModel(model)} if DATA_PARALLEL else {}
    state = ct.Resumable(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, **ema)
    start = int(os.environ.get("COARSE_RESTARTS", os.environ.get("START", "0")))
    kind, _, at = DISTURBANCES[start].partition(":") if start < len(DISTURBANCES) else ("", "", "0")
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for rows, targets in state.batches(loader):
            loss = torch.nn.functional.mse_loss(model(rows.to(DEVICE)), targets.to(DEVICE))
            scaler.scale(loss).backward()
            if (state.batch + 1) % PASSES:
                assert not state.commit()
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            for averaged in ema.values():
                averaged.update_parameters(model)
            state.values["steps"] = state.values.get("steps", 0) + 1
            if kind != "validation" and kind and ct.rank() == 1 and state.values["steps"] == int(at):
                disturb(kind)
            state.commit()
        state.values.setdefault("validated", []).append(float(torch.rand(())))
        if kind == "validation" and ct.rank() == 1 and epoch == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        scheduler.step(*state.values["validated"][-1:] if MODE == "accumulated" else ())
    ends = (state.values, scheduler.get_last_lr(), scaler.state_dict(), torch.rand(2), np.random.rand())
    found = hashlib.sha256(repr(ends).encode())
    found.update(repr(torch.rand(3, device=DEVICE).tolist()).encode())
    if MODE in LUWU:
        with optimizer.summoned() as values:
            found.update(b"".join(values[name].numpy().tobytes() for name in sorted(values)))
    for module in (model, *ema.values()) if MODE not in LUWU else ():
        for tensor in [*module.parameters(), *module.buffers()]:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found.update(local.detach().cpu().numpy().tobytes())
    Path(FOLDER, f"{ct.rank()}.txt").write_text(found.hexdigest())
    print(f"worker {ct.rank()}: SHA-256 {found.hexdigest()}", flush=True)
    ct.shutdown()


if __name__ == "__main__":
    main()
