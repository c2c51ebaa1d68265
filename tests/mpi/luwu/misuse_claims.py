"""What does not fit, and what ranks do differently, is an error that names it: on two workers and a device. FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.errors import UnsupportedError
from tests.mpi.luwu.models import WIDTH, Net, loss_of
from tests.support.claims import Claim, raises, report_claims

FOLDER = Path(sys.argv[1])
_number = 0


def made(model: nn.Module | None = None, optimizer: type = torch.optim.AdamW, **options: object):
    """A model in the network in a folder of its own."""
    global _number
    _number += 1
    given = {"storage": [str(FOLDER / str(_number))], "memory": 4 << 20, "chunk_elements": 1024, **options}
    return ct.model_in_network(model or Net(), optimizer, **given)


def what_cannot_be_configured_is_refused_by_name() -> None:
    frozen = Net().requires_grad_(False)
    for options, words in (
        ({"optimizer": torch.optim.RMSprop}, ("AdamW, Adam, SGD", "RMSprop")),
        ({"amsgrad": True}, ("amsgrad", "leave it out")),
        ({"lr": -1.0}, ("AdamW", "learning rate")),
        ({"rate": 1.0}, ("AdamW", "rate")),
        ({"groups": lambda name: {"lr": -1.0} if "head" in name else {}}, ("lr must be at least 0",)),
        ({"update": "later"}, ("'step' or 'backward'", "'later'")),
        ({"update": "backward", "commit_every": 2}, ("commit_every=2",)),
        ({"speculative": True}, ("update='backward'",)),
        ({"accumulate": 0}, ("num_passes", "got 0")),
        ({"commit_every": 0}, ("commit_every", "got 0")),
        ({"sum": "float8"}, ("sum must be one of", "float8")),
        ({"kernel": "cuda"}, ("kernel must be one of", "cuda")),
        ({"chunk_elements": 100}, ("multiple of 64", "100")),
        ({"dtype": torch.float64}, ("dtype must be one of", "float64")),
        ({"model": Net().double()}, ("'scale' is torch.float64",)),
        ({"model": frozen}, ("wants gradients",)),
        ({"storage": str(FOLDER)}, ("a list of folders",)),
        ({"storage": []}, ("names no folder",)),
        ({"units": [nn.Conv2d]}, ("names no module",)),
        ({"initialise": None, "model": nn.Linear(2, 2, device="meta"), "groups": None}, ()),
    ):
        if words:
            with raises(coarse.ConfigError, *words):
                made(**options)
    with torch.device("meta"):
        odd = nn.ModuleList([Odd()])
    with raises(coarse.ConfigError, "Odd (0) owns parameters", "on the meta device", "initialise="):
        made(odd)


class Odd(nn.Module):
    """It has nothing that fills its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))


def too_little_memory_is_named_before_training() -> None:
    with raises(coarse.CapacityError, "optimizer node 0 has 20000 bytes of memory, and needs", "raise memory"):
        made(memory=20_000)


def a_folder_that_cannot_be_written_is_named() -> None:
    (FOLDER / "file").write_text("")
    with raises(coarse.StorageError, "file/below", "cannot be made"):
        made(storage=[str(FOLDER / "file" / "below")])
    with raises(coarse.StorageError, "/proc/nothing"):
        made(storage=["/proc/nothing"])
    with raises(coarse.StorageError, "timeline", "/proc/nothing", "name another"):
        made(timeline="/proc/nothing")


def a_full_disk_is_named_before_training() -> None:
    if not Path("/dev/shm").is_dir():
        return
    status = os.statvfs("/dev/shm")
    numel = ct.broadcast_object(status.f_bavail * status.f_frsize // 24 + 1_000_000)
    with torch.device("meta"):
        model = nn.ModuleList([nn.Linear(numel // 1000, 1000, bias=False)])
    with raises(coarse.CapacityError, "/dev/shm/coarse-luwu-test", "bytes for slots and its disk has", "make room"):
        made(model, storage=["/dev/shm/coarse-luwu-test"], memory=1 << 30, chunk_elements=1 << 20)


def storage_in_use_or_of_another_model_is_refused() -> None:
    storage = [str(FOLDER / "kept")]
    model, optimizer = made(storage=storage)
    with raises(coarse.StorageError, "is in use by process"):
        made(storage=storage)
    loss_of(model, coarse.rank(), 1, 0).backward()
    optimizer.step()
    optimizer.close()
    with raises(coarse.StorageError, "holds step 1 of a training", "resume=True"):
        made(storage=storage)
    with raises(coarse.StorageError, "another model's states"):
        made(Net(num_blocks=2), storage=storage, resume=True)
    with raises(coarse.StorageError, "another model's states (AdamW"):
        made(Net(), torch.optim.Adam, storage=storage, resume=True)
    with raises(coarse.StorageError, "holds no optimizer states, and resume=True"):
        made(resume=True)
    with raises(coarse.StorageError, "is folder 0 of 1", "named as folder 0 of 2"):
        made(storage=[*storage, str(FOLDER / "more")], resume=True)
    model, optimizer = made(storage=storage, resume=True)
    assert optimizer.steps == 1
    optimizer.close()


def torn_states_are_told_where_they_are_pulled() -> None:
    storage = FOLDER / "torn"
    model, optimizer = made(storage=[str(storage)])
    optimizer.close()
    if coarse.rank() == 0:
        with open(storage / "node-0" / "slots", "r+b") as file:
            for place in range(0, os.fstat(file.fileno()).st_size, 512):
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 1]))
    ct.barrier()
    model, optimizer = made(storage=[str(storage)], resume=True)
    ct.barrier()  # whoever pulls first fails the model for all, also for one that is still being made
    with raises(coarse.StorageError, "slots at byte", "go on from a saved model"):
        loss_of(model, coarse.rank(), 1, 0).backward()
    with raises(coarse.StorageError, "slots at byte"):
        optimizer.step()
    with raises(coarse.StorageError, "slots at byte"):
        optimizer.close()


def workers_that_differ_in_model_or_settings_are_told() -> None:
    rank = coarse.rank()
    with raises(coarse.MismatchError, "parameter blocks.2.norm.weight", "missing on ranks [1]"):
        made(Net(num_blocks=3 - rank))
    with raises(coarse.MismatchError, "'commit_every' differs between ranks: 1 on ranks [0]; 2 on ranks [1]"):
        made(commit_every=1 + rank)


def workers_that_run_units_in_another_order_are_told() -> None:
    model, optimizer = made()
    x = torch.ones(2, WIDTH)
    with raises(coarse.MismatchError, "pulls unit", "same order"), torch.no_grad():
        while True:  # a worker may have run several before another begins
            model.blocks[coarse.rank()](x)
            model.blocks[1 - coarse.rank()](x)
    with raises(coarse.MismatchError, "pulls unit"):
        optimizer.close()


def workers_that_step_otherwise_are_told() -> None:
    for differ in ("lr", "clip", "skip"):
        model, optimizer = made()
        loss_of(model, coarse.rank(), 1, 0).backward()
        with raises(coarse.MismatchError, "rank", "norm" if differ == "clip" else "makes step 1"):
            if differ == "lr":
                optimizer.param_groups[0]["lr"] = 0.1 * (1 + coarse.rank())
            elif differ == "clip" and coarse.rank():
                optimizer.clip_grad_norm(1.0)
            optimizer.step(skip=differ == "skip" and coarse.rank() == 1)
            loss_of(model, coarse.rank(), 2, 0).backward()
        with raises(coarse.MismatchError, "rank"):
            optimizer.close()


def a_worker_that_stays_away_is_named() -> None:
    model, optimizer = made()
    loss = loss_of(model, coarse.rank(), 1, 0)
    loss.backward()
    if coarse.rank() == 0:
        optimizer.step()
        with raises(coarse.StallError, "ranks [1] have not called what makes step 1", "step 0 is the last committed"):
            optimizer.remote._wait(lambda: optimizer.remote.committed_step >= 1, "step 1", 2.0)
        ct.barrier()
    else:
        ct.barrier()
        optimizer.step()
    optimizer.close()


def a_device_that_stands_still_is_a_stall_and_then_goes_on() -> None:
    model, optimizer = made()
    loss_of(model, coarse.rank(), 1, 0).backward()
    optimizer.step()
    optimizer.wait()
    device = int((FOLDER / "device.pid").read_text())
    ct.barrier()
    if coarse.rank() == 0:
        os.kill(device, signal.SIGSTOP)
        threading.Timer(4.0, os.kill, (device, signal.SIGCONT)).start()
        with raises(coarse.StallError, "did not answer within 1 s", "step 1 is the last committed"):
            optimizer.remote._wait(lambda: False, "something", 0.5)
        time.sleep(4.0)
    ct.barrier()
    loss_of(model, coarse.rank(), 2, 0).backward()
    optimizer.step()
    optimizer.close()
    assert optimizer.remote.committed_step == 2


def a_closed_model_is_closed() -> None:
    model, optimizer = made()
    optimizer.close()
    optimizer.close()
    with raises(UnsupportedError, "the model was closed"):
        model(torch.zeros(1, dtype=torch.int64))


def several_models_at_once_do_not_meet() -> None:
    one, first = made()
    other, second = made(Net(num_blocks=1))
    for step in range(1, 3):
        loss_of(one, coarse.rank(), step, 0).backward()
        loss_of(other, coarse.rank(), step, 0).backward()
        first.step()
        second.step()
    first.close()
    second.close()
    assert first.remote.committed_step == second.remote.committed_step == 2


CLAIMS: tuple[Claim, ...] = (
    what_cannot_be_configured_is_refused_by_name,
    too_little_memory_is_named_before_training,
    a_folder_that_cannot_be_written_is_named,
    a_full_disk_is_named_before_training,
    storage_in_use_or_of_another_model_is_refused,
    torn_states_are_told_where_they_are_pulled,
    workers_that_differ_in_model_or_settings_are_told,
    workers_that_run_units_in_another_order_are_told,
    workers_that_step_otherwise_are_told,
    a_worker_that_stays_away_is_named,
    a_device_that_stands_still_is_a_stall_and_then_goes_on,
    a_closed_model_is_closed,
    several_models_at_once_do_not_meet,
)


def main() -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == MPI.COMM_WORLD.Get_size() - 1:
        (FOLDER / "device.pid").write_text(str(os.getpid()))
    ct.init()
    torch.set_num_threads(1)
    report_claims(CLAIMS, FOLDER)


if __name__ == "__main__":
    main()
