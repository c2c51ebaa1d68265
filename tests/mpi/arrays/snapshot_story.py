"""One part of a checkpoint's story, by the first argument; the second is the checkpoint's folder.

take: a snapshot of step 1, and the end of the program without waiting for it.
read: every worker checks that step 1 is there, in full.
kill STAGE: all ranks are killed while a snapshot of step 2 replaces it.
full: the devices may write no file of more than 1 MiB; every worker prints the error.
alone: only worker 0 takes a snapshot before all shut down; it prints the warning.
dead: a device is killed while a snapshot is taken; every worker prints the error.
"""

import os
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from mpi4py import MPI

import coarse

part, folder = sys.argv[1], Path(sys.argv[2])
NUM_ARRAYS, NUM_ELEMENTS = 24, 1 << 20
COMM = MPI.COMM_WORLD
PIDS = np.empty(COMM.Get_size(), np.int64)


def arrays() -> dict[str, np.ndarray]:
    names = [f"layer{number}" for number in range(NUM_ARRAYS)]
    return {name: coarse.state_array(name, (NUM_ELEMENTS,), np.float32) for name in names}


def fill(step: int) -> None:
    for number, array in enumerate(arrays().values()):
        array[...] = 1000 * step + number


def take(step: int) -> coarse.SnapshotHandle:
    fill(step)
    return coarse.snapshot(folder, step=step, metadata={"workers": coarse.size()})


def overwrite() -> None:
    for name, array in arrays().items():
        coarse.before_overwrite([name])
        array[...] = -1


def read() -> None:
    states = arrays()
    checkpoint = coarse.restore(folder)
    assert checkpoint.step == 1
    for number, (name, array) in enumerate(states.items()):
        assert (array == 1000 + number).all(), name
        assert (checkpoint.tensors[name].array == 1000 + number).all(), name
    print(
        f"worker {coarse.rank()} of {coarse.size()} read what {checkpoint.metadata['workers']} wrote"
    )


def wait_for(pattern: str) -> None:
    """Return once there is such a file beside the checkpoint."""
    while not is_there(pattern):
        time.sleep(0.0005)


def is_there(pattern: str) -> bool:
    return any(folder.parent.glob(pattern))


def kill_all(stage: str) -> None:
    """At that stage, or after the last where a busy machine has shown this process none of it."""
    handle = take(2)
    if coarse.rank() == 0:
        while not (is_seen := is_there(stage)) and not handle.done():
            time.sleep(0.0005)
        if not is_seen:
            folder.with_name("missed").touch()
        for pid in PIDS[::-1]:
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def devices() -> list[int]:
    return [int(pid) for pid in PIDS[coarse.size() :]]


def tell_error(handle: coarse.SnapshotHandle) -> None:
    try:
        handle.wait()
    except coarse.SnapshotError as error:
        print(f"worker {coarse.rank()}: {error}")


def die() -> None:
    """The last device is stopped, so that it cannot finish, and killed once all have begun."""
    fill(2)
    coarse.barrier()
    if coarse.rank() == 0:
        os.kill(devices()[-1], signal.SIGSTOP)
        folder.with_name("stopped").touch()
    else:
        wait_for("stopped")
    handle = coarse.snapshot(folder, step=2)
    folder.with_name(f"begun{coarse.rank()}").touch()
    if coarse.rank() == 0:
        for rank in range(coarse.size()):
            wait_for(f"begun{rank}")
        os.kill(devices()[-1], signal.SIGKILL)
    tell_error(handle)


COMM.Allgather(np.array([os.getpid()], np.int64), PIDS)
coarse.init()
match part:
    case "take":
        take(1)
        overwrite()
    case "read":
        read()
    case "kill":
        kill_all(sys.argv[3])
    case "full":
        arrays()
        coarse.barrier()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        for pid in devices():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        tell_error(take(2))
        for pid in devices():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        coarse.barrier()
    case "alone":
        if coarse.rank() == 0:
            take(2)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                coarse.shutdown()
            print(caught[0].message)
    case "dead":
        die()
