"""How a process that torchrun started becomes a rank of an mpirun job, without the user's script being started anew.

torchrun starts workers alone. Where the configuration says how many memory devices a node gets, the first worker of
the first node starts an mpirun (coarse.launch.beside) with memory devices and, for each worker, a placeholder
(coarse.launch.placeholder). MPI takes a process for the rank that its environment names. So a worker takes its
placeholder's environment over a Unix socket, and starts MPI with it. The placeholder lives for as long as the worker.
"""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from coarse.errors import CoarseError, ConfigError, StallError, UnsupportedError
from coarse.protocol.clock import WallClock
from coarse.transport.arrival import user_of

LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Variables of which MPI's launchers set one at least."""
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_LOOK_AGAIN_S = 0.02
_MOST_BYTES = 1 << 20
_goodbye: socket.socket | None = None
"""The connection to this worker's placeholder; held to the end of the process."""


@dataclass(frozen=True, kw_only=True)
class TorchrunWorker:
    """A worker's place, as torchrun and its like tell it by environment variables."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str
    """The same for all workers of the job, and no other job's on this machine."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "TorchrunWorker | None":
        """This process's place; None where an MPI launcher started it, or nobody."""
        if any(name in environ for name in LAUNCHERS) or not all(environ.get(name) for name in _PLACE):
            return None
        try:
            rank, size, local_rank = (int(environ[name]) for name in _PLACE)
            local_size = int(environ.get("LOCAL_WORLD_SIZE") or size)
        except ValueError:
            return None
        told = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
        text = "\0".join(environ.get(name, "") for name in told)
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            job=f"coarse-{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        )

    def placeholder_address(self) -> str:
        """Where this worker's placeholder waits."""
        return placeholder_address(self.job, self.local_rank)


def placeholder_address(job: str, local_rank: int) -> str:
    """The abstract Unix socket of a worker's placeholder, by its number among the workers of its node."""
    return f"\0{job}-placeholder-{local_rank}"


def become_rank(worker: TorchrunWorker, partition: str | None, devices: int | None, timeout_s: float) -> None:
    """Take a rank's environment, before MPI starts; the job's first worker starts the mpirun.

    Args:
        partition: as in the configuration; None makes one of the workers there are and of
        devices: the memory devices of each node.
        timeout_s: how long the placeholder may take to come.

    Raises:
        ConfigError: several workers, and neither a partition nor a number of devices.
        UnsupportedError: the script has started MPI already; or workers on several nodes.
        StallError: no placeholder came in time.
    """
    global _goodbye
    if partition is None and devices is None:
        if worker.size == 1:
            return  # a script tried out by itself
        raise ConfigError(
            f"rank {worker.rank}: {worker.size} workers were started without mpirun, and no memory devices beside "
            "them; name in COARSE_CONFIG a file with\n    [launch]\n    devices = 2\nfor as many on each node, or "
            f"start the script by `coarse run --workers {worker.size}`"
        )
    if worker.local_size != worker.size:
        raise UnsupportedError(
            f"rank {worker.rank}: torchrun started {worker.size} workers on several nodes ({worker.local_size} here), "
            "and memory devices can be started beside them on one; start the job by mpirun (docs/cluster.md)"
        )
    if "mpi4py.MPI" in sys.modules:
        raise UnsupportedError(
            f"rank {worker.rank}: the script has imported mpi4py.MPI, so MPI runs in this process alone; call "
            "coarse.init() first, or start the script by `coarse run`"
        )
    launcher = _start_launcher(worker, partition, devices) if worker.rank == 0 else None
    _goodbye, environ = _taken_place(worker, launcher, timeout_s)
    os.environ.update(environ)


def say_goodbye() -> None:
    """Tell the placeholder that this worker ends well; nothing where there is none."""
    if _goodbye is not None:
        with contextlib.suppress(OSError):  # it was killed: the job has failed otherwise
            _goodbye.sendall(b"well\n")


def _start_launcher(worker: TorchrunWorker, partition: str | None, devices: int | None) -> subprocess.Popen[bytes]:
    """The mpirun's own launcher: in a session of its own, for it ends when the ranks have."""
    stated = partition or f"{worker.size}:{devices}"
    return subprocess.Popen(
        [sys.executable, "-m", "coarse.launch.beside", worker.job, str(os.getpid()), str(worker.size), stated],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _taken_place(
    worker: TorchrunWorker, launcher: "subprocess.Popen[bytes] | None", timeout_s: float
) -> tuple[socket.socket, dict[str, str]]:
    """The connection to the placeholder, and its environment."""
    clock = WallClock()
    until_s = clock.now_s() + timeout_s
    while (channel := _connected(worker.placeholder_address())) is None:
        if launcher is not None and launcher.poll() is not None:
            raise CoarseError(
                f"rank {worker.rank}: the mpirun for the memory devices ended with status {launcher.returncode} before "
                "it had started its ranks; see what it has printed above"
            )
        if clock.now_s() >= until_s:
            raise StallError(
                f"rank {worker.rank}: the mpirun that rank 0 starts for the memory devices offered this rank no place "
                f"within {timeout_s:g} s; let all ranks call coarse.init(), or raise startup_timeout_s"
            )
        clock.sleep_s(_LOOK_AGAIN_S)
    channel.settimeout(timeout_s)
    with channel.makefile("rb") as lines:
        environ: dict[str, str] = json.loads(lines.readline(_MOST_BYTES))
    channel.settimeout(None)
    return channel, environ


def _connected(address: str) -> socket.socket | None:
    """A connection to a process of this user; None where there is none yet."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(ConnectionRefusedError, BlockingIOError):
        channel.connect(address)
        if user_of(channel) == os.geteuid():
            return channel
    channel.close()
    return None
