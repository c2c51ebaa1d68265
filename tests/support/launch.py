"""Starts jobs under mpirun for tests: a time limit, stacks when it is over, nothing left behind."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from coarse.launch.mpirun import AppContext, MpirunJob, mpirun_argv, mpirun_beside
from tests.support.preloaded.servers import rank_command

REPOSITORY = Path(__file__).parents[2]

_BOOTSTRAP = Path(__file__).parent / "bootstrap.py"
_JOINS_FIRST = {"COARSE_TEST_JOINS_FIRST": "1"}
"""As bootstrap.py reads it, which imports next to nothing."""
_STACKS_GRACE_S = 2.0
_LOOK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a job ended."""

    returncode: int
    stdout: str
    stderr: str


def mpirun(
    nprocs: int,
    script: Path,
    *args: object,
    timeout_s: float = 60.0,
    env: Mapping[str, str] | None = None,
    ulfm: bool = False,
    joins_first: bool = False,
    preloaded: str = "coarse",
    gives_up: Callable[[], bool] = lambda: False,
) -> Completed:
    """Run `script` on `nprocs` ranks and return how it ended; of memory devices not, where all are to join first.

    Ranks are forked from a process that has imported what `preloaded` names (preloaded/servers.py), which saves each a
    second and more of the processor; with "" each is an interpreter of its own.

    After `timeout_s`, or once `gives_up`, every rank prints the stacks of all its threads, the job is ended and an
    AssertionError shows what it wrote.
    """
    start = rank_command(preloaded, _environment()) if preloaded else (sys.executable, str(_BOOTSTRAP))
    command = (*start, str(script), *map(str, args))
    argv = mpirun_argv(
        mpirun_beside(sys.executable, os.environ),
        [AppContext(num_ranks=nprocs, command=command)],
        exports={**(env or {}), **(_JOINS_FIRST if joins_first else {})},
        as_root=os.geteuid() == 0,
        fault_tolerant=ulfm,
    )
    return complete(argv, timeout_s=timeout_s, gives_up=gives_up)


def complete(
    argv: list[str], *, timeout_s: float = 60.0, gives_up: Callable[[], bool] = lambda: False
) -> Completed:
    """Run a command line to its end, as `mpirun` does, and return how it ended."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with MpirunJob(argv, _environment(), output=output, errors=errors) as job:
            in_time = _ended(job, timeout_s, gives_up)
            left = "" if in_time else _left(job)
            if not in_time:
                job.send_signal(signal.SIGUSR1)  # mpirun passes it on; bootstrap.py has ranks print their stacks
                job.wait_until_ended(_STACKS_GRACE_S)
        returncode = job.wait()
        output.seek(0)
        errors.seek(0)
        completed = Completed(returncode=returncode, stdout=output.read(), stderr=errors.read())
    if not in_time:
        raise AssertionError(
            f"{' '.join(argv)}\nhad not ended after {timeout_s} s.\n--- processes ---\n{left}\n"
            f"--- stdout ---\n{completed.stdout}\n--- stderr, with stacks ---\n{completed.stderr}"
        )
    return completed


def _ended(job: MpirunJob, timeout_s: float, gives_up: Callable[[], bool]) -> bool:
    """Whether a job ended before its time was over."""
    until_s = time.monotonic() + timeout_s
    while (left_s := until_s - time.monotonic()) > 0 and not gives_up():
        if job.wait_until_ended(min(left_s, _LOOK_S)):
            return True
    return False


def _left(job: MpirunJob) -> str:
    """The processes of a job that has not ended: number, state, where in the kernel, threads, command."""
    lines = []
    for pid in job.processes():
        with suppress(psutil.NoSuchProcess, OSError):  # ended meanwhile
            process, kernel = psutil.Process(pid), Path(f"/proc/{pid}/wchan").read_text()
            command = " ".join(process.cmdline())
            lines.append(f"{pid} {process.status()} {kernel} {process.num_threads()} threads: {command}")
    return "\n".join(lines)


def running(pids: Iterable[int]) -> list[int]:
    """Those of the processes that have not ended; one that only waits to be reaped has."""
    return [pid for pid in pids if psutil.pid_exists(pid) and not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _environment() -> dict[str, str]:
    """This environment, without coarse's own variables, importing from this repository, each file compiled once."""
    left_out = ("COARSE_", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(REPOSITORY)]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
