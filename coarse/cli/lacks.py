"""Lacks of a machine: what coarse does not find on it, what follows, and the command that mends it."""

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from coarse.errors import ClusterError
from coarse.launch.cluster.plan import require_capabilities, require_programs
from coarse.protocol.distribution import how_to_install
from coarse.protocol.units import GIB, MIB

_SHARED_FOLDER = Path("/dev/shm")
_LEAST_SHARED_BYTES = 64 * MIB
"""Bytes of Open MPI's shared files that some ten ranks of one machine take."""
_LEAST_BYTES = GIB
"""Memory of two ranks that have imported torch, with what a small model wants."""
_NVIDIA = Path("/proc/driver/nvidia/version")
_FRAMEWORKS = {"torch": "coarse.torch", "tensorflow": "tf_strategy"}


@dataclass(frozen=True)
class Lack:
    """Thing that this machine does not have or allow, in words for its user."""

    lack: str
    effect: str
    remedy: str


@dataclass(frozen=True)
class Machine:
    """Facts of a machine and of this process on it, by which `lacks_of` decides.

    Attributes:
        missing_defaults: variables that a plain mpirun wants, with their values.
        why_copied: reason why processes cannot read one another's memory; empty where they can.
        free_bytes: memory that processes of the job may take.
        shared_bytes: room in the folder of POSIX shared memory, in bytes.
        num_cores: cores that this process may use.
        missing_packages: names of frameworks that cannot be imported.
        why_no_gpus: reason why a machine with NVIDIA's driver offers no GPU; empty otherwise.
        why_no_box: reason why `--cluster` is refused; empty where it is not.
    """

    missing_defaults: Mapping[str, str]
    why_copied: str
    free_bytes: int
    shared_bytes: int
    num_cores: int
    missing_packages: Collection[str]
    why_no_gpus: str
    why_no_box: str


def this_machine(missing_defaults: Mapping[str, str], why_copied: str, free_bytes: int, why_no_gpus: str) -> Machine:
    """Return this machine's facts: those that are given, and those that are read here."""
    return Machine(
        missing_defaults=missing_defaults,
        why_copied=why_copied,
        free_bytes=free_bytes,
        shared_bytes=_room(_SHARED_FOLDER),
        num_cores=len(os.sched_getaffinity(0)),
        missing_packages=[name for name in _FRAMEWORKS if find_spec(name) is None],
        why_no_gpus=why_no_gpus if _NVIDIA.exists() else "",
        why_no_box=_why_no_box(),
    )


def lacks_of(machine: Machine) -> list[Lack]:
    """Return all that the machine lacks, what stops most jobs first."""
    return [lack for find in _FINDERS if (lack := find(machine)) is not None]


def _memory(machine: Machine) -> Lack | None:
    if machine.free_bytes >= _LEAST_BYTES:
        return None
    return Lack(
        f"memory, {machine.free_bytes / MIB:.0f} MiB are free",
        "two workers with a framework and one memory device want 1 GiB and the model",
        "end other processes, or raise the limit of the container or of the job (docker --memory, Slurm --mem)",
    )


def _shared_memory(machine: Machine) -> Lack | None:
    if machine.shared_bytes >= _LEAST_SHARED_BYTES:
        return None
    return Lack(
        f"room in {_SHARED_FOLDER}, {machine.shared_bytes / MIB:.0f} MiB are free",
        "Open MPI cannot share memory between the ranks of a node",
        f"mount -o remount,size=1g {_SHARED_FOLDER}, as root; in a container: docker run --shm-size 1g",
    )


def _defaults(machine: Machine) -> Lack | None:
    if not machine.missing_defaults:
        return None
    return Lack(
        "defaults that coarse run sets",
        "a plain mpirun refuses more ranks than cores, binds them to one core, or sleeps a second at the start",
        "\n".join(f"export {name}={value}" for name, value in machine.missing_defaults.items()),
    )


def _in_place(machine: Machine) -> Lack | None:
    if not machine.why_copied:
        return None
    return Lack(
        f"access to other processes' memory ({machine.why_copied})",
        "tensors are copied to memory devices and back, which takes longer",
        "sysctl kernel.yama.ptrace_scope=1, as root; in a container: docker run --cap-add SYS_PTRACE",
    )


def _cores(machine: Machine) -> Lack | None:
    if machine.num_cores > 1:
        return None
    return Lack(
        "a second core",
        "jobs run, but workers and memory devices wait for one another: times say nothing",
        "give the process more cores (taskset, docker --cpus, Slurm --cpus-per-task)",
    )


def _frameworks(machine: Machine) -> Lack | None:
    names = list(machine.missing_packages)
    if not names:
        return None
    return Lack(
        " and ".join(names),
        f"{' and '.join(_FRAMEWORKS[name] for name in names)} cannot be used",
        "\n".join(how_to_install(name) for name in names),
    )


def _gpus(machine: Machine) -> Lack | None:
    if not machine.why_no_gpus:
        return None
    return Lack("GPUs, though NVIDIA's driver is here", machine.why_no_gpus, how_to_install("cuda"))


def _box(machine: Machine) -> Lack | None:
    if not machine.why_no_box:
        return None
    return Lack(
        "network namespaces",
        "coarse run --cluster, a cluster in a box, is refused; nothing else needs them",
        machine.why_no_box,
    )


_FINDERS: tuple[Callable[[Machine], Lack | None], ...] = (
    _memory,
    _shared_memory,
    _defaults,
    _in_place,
    _cores,
    _frameworks,
    _gpus,
    _box,
)


def _why_no_box() -> str:
    """Return the reason why a cluster in a box cannot be made here, with the remedy, or nothing."""
    try:
        require_capabilities(Path("/proc/self/status").read_text())
        require_programs(shutil.which)
    except ClusterError as refused:
        return str(refused)
    return ""


def _room(folder: Path) -> int:
    """Return the bytes that a folder's file system has left; 0 where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
