"""Request of `coarse run`: a script, a partition, and the ranks that follow from them."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from coarse.errors import ConfigError
from coarse.launch.exit_reporter import STARTUP
from coarse.launch.mpirun import ON_ONE_MACHINE, AppContext, mpirun_argv, usable_mpirun, watched_command
from coarse.launch.warm.ranks import stand_in_arguments
from coarse.protocol.partition import PartitionTable
from coarse.protocol.partition_file import stated_or_default, stated_partition
from coarse.protocol.place import MemoryPlace
from coarse.transport.launcher import environ_of_new_job

DEVICE_MODULE = "coarse.launch.device"
"""Module that a memory-device rank runs: it serves, and imports neither the user's script nor torch."""

_DEFAULT_RANKS = 2
_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
)  # fmt: skip
"""Variables that keep numpy, torch and TensorFlow to one core."""
_REPLACEABLE = frozenset({"gloo", "nccl", "mpi"})
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Request of `coarse run`, checked."""

    script: str
    """Path of a file, or with `is_module` a module's name."""
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    partition: str = f"{_DEFAULT_RANKS}:{_DEFAULT_RANKS}"
    """Partition as in the configuration; it states how many ranks to start."""
    mode: str | None = None
    policy: str | None = None
    routing: str | None = None
    """Settings of [routing], as COARSE_ROUTING has them."""
    sharding: str | None = None
    strategy: str | None = None
    """Options of a user's own strategy, as COARSE_STRATEGY has them."""
    emulate: str | None = None
    """Settings of [emulate], as COARSE_EMULATE has them."""
    is_emulated: bool = False
    """True if the job is emulated, by these or by the configuration. Then one core stands for an accelerator."""
    config_path: str | None = None
    replaces: str | None = None
    """Backends of torch.distributed in whose place coarse is taken, with commas between them."""
    hosts: tuple[str, ...] = ()
    """Host of each rank; none if all run here."""
    forked_at: str | None = None
    """Socket of a process that forks the ranks (coarse/launch/warm). None if each has a separate interpreter."""
    meeting_port: int = 29500
    """Port where torch's store of the workers may listen, at worker 0."""

    def __post_init__(self) -> None:
        if self.replaces is not None and not set(self.replaces.split(",")) <= _REPLACEABLE:
            raise ConfigError(
                f"--replaces must name backends of torch.distributed ({', '.join(sorted(_REPLACEABLE))}), with commas "
                f"between them, got {self.replaces!r}"
            )
        if self.is_module:
            _require_module(self.script)
        elif not Path(self.script).is_file():
            raise ConfigError(f"no script {self.script!r} in {Path.cwd()}; give the path of a Python file")
        assert self.table

    @cached_property
    def table(self) -> PartitionTable:
        """Roles and places of the ranks, by the partition."""
        return stated_or_default(self.partition, self.hosts) if self.hosts else stated_partition(self.partition)

    @property
    def state_places(self) -> list[MemoryPlace]:
        """Place of the memory device local to each worker, in whose kind of memory its states are kept."""
        return [self.table.places[self.table.devices[device]].memory for device in self.table.local_proxies]

    def light_ranks(self) -> frozenset[int]:
        """Return the ranks that only serve."""
        return frozenset(self.table.devices) - frozenset(self.table.workers)

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the partition asks for."""
        return len(self.table.places)

    def contexts(self, python: str) -> tuple[AppContext, ...]:
        """Return the contexts in order of the ranks, so that world ranks are as the partition has them."""
        hosts = self.hosts or (None,) * self.num_ranks
        contexts = []
        for _, run in groupby(range(self.num_ranks), key=self._in_common):
            ranks = list(run)
            is_light = ranks[0] in self.light_ranks()
            script = ("-m", self.script) if self.is_module else (self.script,)
            program = ("-m", DEVICE_MODULE) if is_light else (*script, *self.arguments)
            if self.forked_at is not None:
                program = (*stand_in_arguments(self.forked_at), *program)
            command = watched_command(python, self._place(ranks[0]), program)
            contexts.append(AppContext(num_ranks=len(ranks), command=command, host=hosts[ranks[0]]))
        return tuple(contexts)

    def argv(self, options: Sequence[str] = ON_ONE_MACHINE) -> list[str]:
        """Return the mpirun line of this run, by this interpreter and the mpirun beside it."""
        return mpirun_argv(
            usable_mpirun(sys.executable, os.environ),
            self.contexts(sys.executable),
            exports=self.exports(),
            as_root=os.geteuid() == 0,
            fault_tolerant=True,
            options=options,
        )

    def _in_common(self, rank: int) -> tuple[object, ...]:
        """Return the key that neighbouring ranks of one context share.

        Workers' numbers count on as their MPI ranks do.
        """
        host = self.hosts[rank] if self.hosts else None
        if rank in self.light_ranks():
            return host, "device"
        worker, local = self._numbers(rank)
        return host, worker - rank, local - rank

    def _numbers(self, rank: int) -> tuple[int, int]:
        """Return a worker's number among all, and among those of its node."""
        worker = self.table.client_of(rank)
        assert worker is not None
        return worker, self.table.clients_on(self.table.node_of_client(worker)).index(worker)

    def _place(self, rank: int) -> str:
        """Return exit_reporter.py's PLACE for a context of workers that begins with a rank; "-" of one of devices."""
        if rank in self.light_ranks():
            return "-"
        worker, local = self._numbers(rank)
        local_size = len(self.table.clients_on(self.table.node_of_client(worker)))
        address = self.hosts[self.table.workers[0]] if self.hosts else _LOOPBACK
        return f"{rank},{worker},{local},{self.table.num_workers},{local_size},{address},{self.meeting_port}"

    def exports(self) -> dict[str, str]:
        """Return the variables that tell every rank its part."""
        paths = environ_of_new_job(os.environ, STARTUP).get("PYTHONPATH")
        chosen = {
            "COARSE_PARTITION": self.partition,
            "COARSE_MODE": self.mode,
            "COARSE_POLICY": self.policy,
            "COARSE_ROUTING": self.routing,
            "COARSE_SHARDING": self.sharding,
            "COARSE_STRATEGY": self.strategy,
            "COARSE_EMULATE": self.emulate,
            "COARSE_CONFIG": self.config_path,
            "COARSE_REPLACES": self.replaces,
            "COARSE_WORKERS": ",".join(map(str, self.table.workers)),
            "PYTHONPATH": paths if self.hosts else None,  # which mpirun keeps to this host
        }
        threads = dict.fromkeys(_THREADS, "1") if self.is_emulated else {}
        return {name: value for name, value in chosen.items() if value is not None} | threads


def _require_module(name: str) -> None:
    """Raise ConfigError if `python -m` would not find a module's package, which is not imported here."""
    top = name.partition(".")[0]
    if not top or (PathFinder.find_spec(top, [""]) is None and find_spec(top) is None):
        raise ConfigError(
            f"no module {top!r} in {Path.cwd()} or installed; give a name such as `python -m` takes, or leave out -m "
            "for a file"
        )


def chosen_partition(
    stated: str | None, workers: int | None, devices: int | None, default_devices: int | None = None
) -> str:
    """Return the partition of a run: the one `stated` in the configuration, or the options'.

    --workers and --devices may repeat the stated one but not contradict it; without one, theirs counts, and
    `default_devices` if --devices is not given.
    """
    for option, number, part in (
        ("--workers", workers, "a worker runs the script"),
        ("--devices", devices, "workers push to a memory device"),
    ):
        if number is not None and number < 1:
            raise ConfigError(f"{option} must be at least 1, got {number}; {part}")
    if stated is None:
        return f"{workers or _DEFAULT_RANKS}:{devices or default_devices or _DEFAULT_RANKS}"
    table = stated_partition(stated)
    for option, number, found in (
        ("--workers", workers, table.num_workers),
        ("--devices", devices, table.num_devices),
    ):
        if number not in (None, found):
            raise ConfigError(
                f"{option} asks for {number}, but the configuration's partition {stated!r} has {found}; "
                f"leave out {option}, or take the partition out of the file or of COARSE_PARTITION"
            )
    return str(Path(stated).resolve()) if stated.endswith(".toml") else stated
