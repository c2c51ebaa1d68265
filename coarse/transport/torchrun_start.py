"""Adoption of a process that torchrun started as a rank of an mpirun job; the user's script is not started anew.

torchrun starts workers alone. Where the configuration says how many memory devices a node gets, the first worker of
the first node starts an mpirun (coarse.launch.device_mpirun) with memory devices and, for each worker, a placeholder
(coarse.launch.placeholder). MPI takes a process for the rank that its environment names. So a worker takes its
placeholder's environment over a Unix socket, and starts MPI with it. The placeholder lives for as long as the worker.
On several nodes mpirun starts its ranks by ssh on the hosts that the configuration names.
"""

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coarse.errors import CoarseError, ConfigError, StallError, UnsupportedError
from coarse.protocol.clock import WallClock
from coarse.protocol.config import Launch
from coarse.transport.launcher import LauncherKind, innermost_launcher, joins_ranks, without_mpis_rank
from coarse.transport.node_rendezvous import user_of

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
    """Name of the job: one for all its workers, unlike that of any other job on this machine."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes, each of which has as many workers as this one."""
        return self.size // self.local_size

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "TorchrunWorker | None":
        """Return this process's place; None if a launcher of MPI started it, or no launcher did."""
        launcher, local_rank = innermost_launcher(environ), environ.get("LOCAL_RANK", "")
        if launcher is None or launcher.kind is not LauncherKind.TORCHRUN or not local_rank.isdecimal():
            return None
        told = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
        text = "\0".join(environ.get(name, "") for name in told)
        return cls(
            rank=launcher.rank,
            size=launcher.num_ranks,
            local_rank=int(local_rank),
            local_size=int(environ.get("LOCAL_WORLD_SIZE") or launcher.num_ranks),
            job=f"coarse-{hashlib.sha256(text.encode()).hexdigest()[:16]}",
        )

    def placeholder_address(self) -> str:
        """Return the address at which this worker's placeholder waits."""
        return placeholder_address(self.job, self.local_rank)


def placeholder_address(job: str, local_rank: int) -> str:
    """Return the abstract Unix socket of a worker's placeholder, by its number among the workers of its node."""
    return f"\0{job}-placeholder-{local_rank}"


def become_rank(worker: TorchrunWorker, partition: str | None, launch: Launch, timeout_s: float) -> None:
    """Take a rank's environment, before MPI starts; the job's first worker starts the mpirun.

    Args:
        worker: this process's place among torchrun's.
        partition: as in the configuration; None makes one of the workers there are and of `launch`.
        launch: the memory devices of each node, and several nodes' names.
        timeout_s: seconds that the placeholder may take to come.

    Raises:
        ConfigError: several workers, and neither a partition nor a number of devices; several nodes, and other hosts
            than they are.
        UnsupportedError: the script has started MPI already; or nodes with different numbers of workers.
        StallError: no placeholder came in time.
    """
    global _goodbye
    if _goodbye is not None:
        return  # it has become one, and the start after that was refused
    if launch.alone:
        _leave_mpis_rank()
        return
    if partition is None and launch.devices is None:
        if worker.size == 1:
            return  # a script tried out by itself
        raise ConfigError(
            f"rank {worker.rank}: {worker.size} workers were started without mpirun, and no memory devices beside "
            "them; name in COARSE_CONFIG a file with\n    [launch]\n    devices = 2\nfor as many on each node, or "
            f"start the script by `coarse run --workers {worker.size}`. If each is to train by itself, say alone = "
            "true there"
        )
    hosts = _hosts(worker, launch.hosts)
    if "mpi4py.MPI" in sys.modules:
        raise UnsupportedError(
            f"rank {worker.rank}: the script has imported mpi4py.MPI, so MPI runs in this process alone; call "
            "coarse.init() first, or start the script by `coarse run`"
        )
    launcher = _start_launcher(worker, partition, launch.devices, hosts) if worker.rank == 0 else None
    _goodbye, environ = _taken_place(worker, launcher, timeout_s)
    if environ["OMPI_COMM_WORLD_RANK"] != str(worker.rank):
        raise ConfigError(
            f"rank {worker.rank}: torchrun has this host, {socket.gethostname()}, as node "
            f"{worker.rank // worker.local_size}, and [launch] hosts = {list(hosts)} does not; name the hosts in "
            "torchrun's order, by --node-rank for instance"
        )
    _leave_mpis_rank()
    os.environ.update(environ)


def _leave_mpis_rank() -> None:
    """Forget the rank of a job of MPI below which torchrun was started: all its workers here would claim it."""
    if joins_ranks(os.environ):
        for name in os.environ.keys() - without_mpis_rank(os.environ).keys():
            del os.environ[name]


@contextlib.contextmanager
def start_in_time(worker: TorchrunWorker | None, timeout_s: float) -> Iterator[None]:
    """End this process where the body, in which MPI starts, takes longer since ranks of other nodes have not come.

    MPI_Init waits for them for ever, and lets no other thread run; so a child of this process keeps the time.
    """
    if worker is None or worker.local_size == worker.size:
        yield
        return
    parent = os.getpid()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(tell)
        if not select.select([told], [], [], timeout_s)[0]:
            text = (
                f"coarse: rank {worker.rank}: MPI has not started within {timeout_s:g} s, since ranks of other hosts "
                "have not come; see what torchrun says there, let all ranks call coarse.init(), or raise "
                "startup_timeout_s\n"
            )
            with contextlib.suppress(OSError):
                os.write(2, text.encode())
            os.kill(parent, signal.SIGTERM)
        os._exit(0)
    os.close(told)
    try:
        yield
    finally:
        os.close(tell)
        os.waitpid(child, 0)


def say_goodbye() -> None:
    """Tell the placeholder that this worker ends well; nothing where there is none."""
    if _goodbye is not None:
        with contextlib.suppress(OSError):  # it was killed: the job has failed otherwise
            _goodbye.sendall(b"well\n")


def _hosts(worker: TorchrunWorker, stated: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the nodes' hosts; none if all workers are here."""
    if worker.local_size == worker.size:
        return ()
    if worker.size % worker.local_size:
        raise UnsupportedError(
            f"rank {worker.rank}: torchrun started {worker.size} workers on several nodes, {worker.local_size} of them "
            "here, so that nodes have different numbers; give all the same --nproc-per-node, or start the job by "
            "mpirun (docs/cluster.md)"
        )
    if stated is None or len(stated) != worker.num_nodes:
        found = "none" if stated is None else f"{len(stated)} ({', '.join(stated)})"
        raise ConfigError(
            f"rank {worker.rank}: torchrun started workers on {worker.num_nodes} nodes, and [launch] hosts names "
            f'{found}; name all of them in torchrun\'s order, such as hosts = ["node1", "node2"], so that worker 0 '
            "can have mpirun start memory devices there"
        )
    return stated


def _start_launcher(
    worker: TorchrunWorker, partition: str | None, devices: int | None, hosts: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    """Start the mpirun's own launcher, in a session of its own, for it ends when the ranks have."""
    node = ["worker"] * worker.local_size + ["memory_device"] * (devices or 0)
    stated = partition or (",".join(node * worker.num_nodes) if hosts else f"{worker.size}:{devices}")
    first = f"{os.getpid()}@{socket.gethostname()}"
    return subprocess.Popen(
        [sys.executable, "-m", "coarse.launch.device_mpirun", worker.job, first, str(worker.size), stated, *hosts],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _taken_place(
    worker: TorchrunWorker, launcher: "subprocess.Popen[bytes] | None", timeout_s: float
) -> tuple[socket.socket, dict[str, str]]:
    """Return the connection to the placeholder, and its environment."""
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
                f"{_of_slurm(worker)}"
            )
        clock.sleep_s(_LOOK_AGAIN_S)
    channel.settimeout(timeout_s)
    with channel.makefile("rb") as lines:
        environ: dict[str, str] = json.loads(lines.readline(_MOST_BYTES))
    channel.settimeout(None)
    return channel, environ


def _of_slurm(worker: TorchrunWorker) -> str:
    """Return text on the setting by which an older Slurm lets mpirun start on several nodes; "" elsewhere."""
    if worker.local_size == worker.size or "SLURM_JOB_ID" not in os.environ:
        return ""
    return "; where srun has started torchrun, start it by srun --mpi=none --overlap, so that steps share processors"


def _connected(address: str) -> socket.socket | None:
    """Return a connection to a process of this user; None while there is none."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(ConnectionRefusedError, BlockingIOError):
        channel.connect(address)
        if user_of(channel) == os.geteuid():
            return channel
    channel.close()
    return None
