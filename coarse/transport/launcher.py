# Pure: no MPI, threads, clock or environment.
"""Launchers of ranks: the innermost one of a process, by variables that all of them leave to processes below.

Launchers nest: torchrun in an mpirun in a step of srun. Each says how many processes it started, to those of the others
too. So all that trusts such a variable asks here.
"""

import enum
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

_PMIX_OF_SRUN = "slurm.pmix"
"""Beginning of the name that Slurm gives the ranks of a step by PMIx."""
_OF_ONE_JOB = (
    *("COARSE_JOB", "COARSE_WORKERS", "COARSE_LAUNCHER", "COARSE_COLOR"),
    *("COARSE_STATE_MEMORY", "COARSE_STATE_FILES", "COARSE_RESTARTS", "COARSE_RESTARTED"),
)
"""Variables by which a launcher of this project tells its ranks of their job, which COARSE_NAMESPACE names."""
HANDED = "socket:"
"""Beginning of COARSE_STATE_MEMORY where state memory is handed over at a Unix socket."""
_OF_MPI = (
    *("OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_NUM_APP_CTX", "OMPI_FILE_LOCATION"),
    *("OMPI_COMMAND", "OMPI_ARGV", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir", "OMPI_MCA_cpu_type"),
    *("PMIX_NAMESPACE", "PMIX_RANK", "PMIX_SERVER_", "PMIX_HOSTNAME", "PMIX_SYSTEM_TMPDIR", "PMIX_SECURITY_MODE"),
    *("PMIX_GDS_MODULE", "PMIX_BFROP_BUFFER_TYPE", "PMIX_VERSION", "PRTE_LAUNCHED"),
    *("PMI_", "MPI_LOCAL", "MV2_COMM_WORLD_"),
)
"""Beginnings of variables by which MPI's launchers name a process's rank and job; none of them says how to run jobs."""
_OF_TORCHRUN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
)


class LauncherKind(enum.Enum):
    """A kind of launcher; the value is its name in messages."""

    TORCHRUN = "torchrun"
    MPIRUN = "Open MPI's mpirun"
    PMIX = "srun --mpi=pmix"
    PMI = "a launcher that speaks PMI, such as MPICH's mpirun"
    SRUN = "srun"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The launcher that started a process as one of its ranks."""

    kind: LauncherKind
    rank: int
    num_ranks: int
    """Memory devices that it started included; 1 where it does not say."""
    told_by: str
    """The variable that says how many there are."""


def innermost_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process itself; None where none did.

    Where torchrun's variables stand beside MPI's, torchrun is the inner one, but for two cases: a script of the user's
    derived them from MPI's, so that both say the same; or a launcher of MPI started each of torchrun's workers by a
    torchrun of its own.
    """
    torchs, mpis = _torchrun(environ), _mpi_launcher(environ)
    if torchs is None or mpis is None or mpis.kind is LauncherKind.SRUN:
        return torchs or mpis
    if "TORCHELASTIC_RUN_ID" in environ:
        is_one_to_one = environ.get("LOCAL_WORLD_SIZE") == "1" and torchs.num_ranks == mpis.num_ranks
        return mpis if is_one_to_one else torchs
    return torchs if mpis.num_ranks == 1 < torchs.num_ranks else mpis


def joins_ranks(environ: Mapping[str, str]) -> bool:
    """Return whether MPI, started with these variables, joins other ranks: Open MPI 5 finds them by PMIx alone."""
    return "PMIX_RANK" in environ


def told_to_this_job(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without what a launcher of this project told the ranks of another job, above this one."""
    here = environ.get("PMIX_NAMESPACE", "")
    if environ.get("COARSE_NAMESPACE", here) == here:
        return environ
    return {name: value for name, value in environ.items() if name not in _OF_ONE_JOB}


def without_mpis_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what makes a process a rank of a job of MPI."""
    left_out = {*_OF_ONE_JOB, "COARSE_NAMESPACE"}
    return {name: value for name, value in environ.items() if name not in left_out and not name.startswith(_OF_MPI)}


def environ_of_new_job(environ: Mapping[str, str], startup: str) -> dict[str, str]:
    """Return the environment for a job that this process starts: this process may be a rank of another.

    Args:
        environ: the environment of this process.
        startup: the folder that `coarse run` puts first on the path of its workers.
    """
    kept = without_mpis_rank(environ)
    left_out: tuple[str, ...] = ()
    if "COARSE_WORKERS" in environ:  # then `coarse run` has set the partition
        left_out += ("COARSE_PARTITION",)
    if innermost_launcher(environ) is not None:
        left_out += (*_OF_TORCHRUN, *(name for name in environ if name.startswith("TORCHELASTIC_")))
    for name in left_out:
        kept.pop(name, None)
    if startup in (paths := kept.get("PYTHONPATH", "").split(":")):
        kept["PYTHONPATH"] = ":".join(path for path in paths if path != startup)
    return kept


def _torchrun(environ: Mapping[str, str]) -> Launcher | None:
    """Return torchrun, or what sets its variables."""
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not rank.isdecimal() or not size.isdecimal():
        return None
    return Launcher(kind=LauncherKind.TORCHRUN, rank=int(rank), num_ranks=int(size), told_by="WORLD_SIZE")


def _mpi_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Return the innermost launcher of ranks of MPI, torchrun left out."""
    kinds: tuple[tuple[LauncherKind, str, str], ...] = (
        (LauncherKind.MPIRUN, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        (LauncherKind.PMI, "PMI_RANK", "PMI_SIZE"),
        (LauncherKind.PMI, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        (LauncherKind.PMIX, "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
        (LauncherKind.SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    )
    if environ.get("PMIX_NAMESPACE", "").startswith(_PMIX_OF_SRUN):  # whatever stands above that step
        kinds = tuple(row for row in kinds if row[0] is LauncherKind.PMIX)
    for kind, rank, size in kinds:
        if not environ.get(rank, "").isdecimal() or (kind is LauncherKind.SRUN and size not in environ):
            continue  # the shell of an allocation has SLURM_PROCID, and no step
        told = told_to_this_job(environ).get("COARSE_JOB") if kind is LauncherKind.MPIRUN else None
        number, count = told.split(",")[:2] if told else (environ[rank], environ.get(size, ""))
        return Launcher(kind=kind, rank=int(number), num_ranks=int(count) if count.isdecimal() else 1, told_by=size)
    return None


_STARTED = "COARSE_STARTED"
_OF_MULTIPROCESSING = "from multiprocessing."
"""Beginning of the code that multiprocessing has an interpreter run, to spawn one process or to fork many."""


def note_start(environ: MutableMapping[str, str], process: int) -> None:
    """Tell interpreters that are started from now on that the rank is this process."""
    if (name := _rank_name(environ)) is not None:
        environ[_STARTED] = f"{name} {process}"


def is_below_rank(environ: Mapping[str, str], process: int, command: Sequence[str]) -> bool:
    """Return whether another interpreter is the rank whose variables this process, of a command, has.

    Of the interpreters that a rank's script starts, none is a rank once MPI has started, nor one of multiprocessing's.
    Such an interpreter inherits the variables by which MPI would take it for the rank, and would wait there for ever,
    or take the rank's place.
    """
    name = _rank_name(environ)
    if name is None:
        return False
    started, _, by = environ.get(_STARTED, "").rpartition(" ")
    return (started == name and by != str(process)) or any(part.startswith(_OF_MULTIPROCESSING) for part in command)


def _rank_name(environ: Mapping[str, str]) -> str | None:
    """Return the rank's name among all jobs; None where no launcher of MPI has started it."""
    job, rank = environ.get("PMIX_NAMESPACE"), environ.get("PMIX_RANK")
    return None if job is None or rank is None else f"{job}.{rank}"
