"""Job of one mpirun with workers and light memory devices: command line, process, leftovers."""

import ctypes
import math
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Self

from coarse.errors import ConfigError
from coarse.launch.exit_reporter import STARTUP, escaped
from coarse.launch.leftovers import jobs_of, remove
from coarse.launch.rank_exits import Failure, Verdict, exit_status
from coarse.launch.watch import Watch
from coarse.protocol.clock import WallClock
from coarse.transport.launcher import environ_of_new_job
from coarse.transport.mpi_library import HOW_TO_GET_MPI, OLDEST_OPEN_MPI, ONE_MACHINE, home_for_mpi

_PR_SET_PDEATHSIG = 1
_TERM_GRACE_S = 2.0
_INTERRUPT_GRACE_S = 30.0
"""Seconds that scripts have after a Ctrl-C to save their data; torchrun gives as much."""
_POLL_S = 0.25
_MOST_ROUNDS = 100
_LOOK_POLLS = 2
"""Polls between two looks for files that ranks share, until some are found."""
_STRANDED_POLLS = 20
"""Polls in a row for which an mpirun that has lost all its ranks may linger."""

_ENDING_SIGNALS = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}
_FORWARDED_SIGNALS = {**_ENDING_SIGNALS, signal.SIGUSR1: signal.SIGUSR1, signal.SIGUSR2: signal.SIGUSR2}
"""Signal for mpirun, by the signal that came. mpirun ends its ranks or passes a user's signal on to each."""

WATCHED = str(Path(__file__).with_name("exit_reporter.py"))
"""Program that runs a rank's command and tells how it ended."""
_OF_MPIRUN = "PRTE_MCA_"
_DEFAULTS = (
    ("prte-mca-params.conf", _OF_MPIRUN, "rmaps_default_mapping_policy", ":oversubscribe"),
    ("prte-mca-params.conf", _OF_MPIRUN, "hwloc_default_binding_policy", "none"),
    ("openmpi-mca-params.conf", "OMPI_MCA_", "btl", "^ofi"),
    ("openmpi-mca-params.conf", "OMPI_MCA_", "btl_tcp_eager_limit", "1048576"),
)
"""Defaults that `make` sets in its environment. They are file of parameters, prefix of variables, name and value.
Ranks share cores, no second is slept for a network of libfabric, and over TCP up to 1 MiB is sent without asking
first."""
ON_ONE_MACHINE = (
    *(text for name, value in ONE_MACHINE.items() for text in ("--mca", name, value)),
    *("--prtemca", "ras", "^slurm,pbs,lsf,gridengine,flux"),
)
"""Options of mpirun if all ranks are on one machine. They listen to no network, and a scheduler's allocation, which
may have other nodes, does not place them."""


@dataclass(frozen=True, kw_only=True)
class AppContext:
    """Group of ranks that run one command; mpirun joins several in one COMM_WORLD, in order."""

    num_ranks: int
    command: tuple[str, ...]
    host: str | None = None
    """Host of the ranks; None leaves it to mpirun."""


def watched_command(python: str, place: str, program: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a rank with a told end: `exit_reporter.py` with its PLACE, and the program."""
    return (python, "-I", "-S", WATCHED, place, *map(escaped, (python, *program)))


def mpirun_argv(
    mpirun: str,
    contexts: Sequence[AppContext],
    *,
    exports: Mapping[str, str],
    as_root: bool,
    fault_tolerant: bool,
    options: Sequence[str] = (),
) -> list[str]:
    """Return the mpirun line: more ranks than cores allowed, none bound to a core, and `options` first.

    Open MPI binds by default, several ranks to one core when there are more ranks than cores.
    """
    argv = [mpirun, *options]
    if fault_tolerant:
        argv += ["--with-ft", "ulfm"]
    if as_root:
        argv.append("--allow-run-as-root")
    argv += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    for name, value in exports.items():
        argv += ["-x", f"{name}={value}"]
    for position, context in enumerate(contexts):
        assert ":" not in context.command
        argv += [":"] if position else []
        argv += [] if context.host is None else ["--host", context.host]
        argv += ["-n", str(context.num_ranks), *context.command]
    return argv


def mpirun_beside(python: str, environ: Mapping[str, str]) -> str:
    """Return the mpirun of this interpreter's environment, else the first on PATH."""
    folders = [str(Path(python).parent), *environ.get("PATH", os.defpath).split(os.pathsep)]
    for folder in folders:
        candidate = Path(folder or ".") / "mpirun"
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    raise ConfigError(f"no mpirun beside {python} and none on PATH; {HOW_TO_GET_MPI}")


def free_port() -> int:
    """Return a TCP port of this machine's loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def mpirun_version(mpirun: str) -> str:
    """Return the version of Open MPI's mpirun; ConfigError if it is too old, or that of another MPI."""
    environ = {**os.environ, **home_for_mpi(os.environ)}
    try:
        done = subprocess.run([mpirun, "--version"], env=environ, capture_output=True, text=True, check=False)
        said = done.stdout
    except OSError as error:
        said = str(error)
    if found := re.search(r"\(Open MPI\) (\d+)(\S*)", said):
        name = f"Open MPI {found[1]}{found[2]}"
        if int(found[1]) >= OLDEST_OPEN_MPI:
            return f"{found[1]}{found[2]}"
    else:
        number = re.search(r"HYDRA[^:]*:\s+Version:\s+(\S+)", said)
        first = (said.strip().splitlines() or ["an MPI that says nothing of itself"])[0]
        name = f"MPICH {number[1]}" if number else first
    raise ConfigError(f"{mpirun} belongs to {name}, and Open MPI 5 starts the ranks here; {HOW_TO_GET_MPI}")


def usable_mpirun(python: str, environ: Mapping[str, str]) -> str:
    """Return the path of the mpirun that starts this interpreter's jobs; ConfigError if it cannot."""
    mpirun = mpirun_beside(python, environ)
    mpirun_version(mpirun)
    return mpirun


def missing_defaults(parameter_files: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that a plain mpirun lacks, with the values wanted.

    Args:
        parameter_files: texts of those files of Open MPI that there are, by name; they may set all of it.
        environ: variables of the environment, which may set them, too.
    """
    missing = {}
    for file, prefix, name, wanted in _DEFAULTS:
        stated = [line.partition("#")[0].partition("=") for line in parameter_files.get(file, "").splitlines()]
        given = {key.strip(): value.strip() for key, equals, value in stated if equals}
        found = environ.get(f"{prefix}{name}", given.get(name, "")).lower()
        if wanted not in found if prefix == _OF_MPIRUN else not found:
            missing[f"{prefix}{name}"] = wanted
    return missing


def parameter_files(mpirun: str) -> dict[str, str]:
    """Return the texts of the parameter files of an mpirun's Open MPI, by name."""
    paths = {Path(mpirun).parent.parent / "etc" / file for file, *_ in _DEFAULTS}
    return {path.name: path.read_text() for path in paths if path.is_file()}


class MpirunJob:
    """Process of an mpirun in a session of its own, which ends with it.

    Under ULFM, MPI_Abort and a Ctrl-C at the wrong moment may leave ranks without their mpirun; a rank changes its
    process group but not its session, so the session is swept. And after a death Open MPI 5.0's mpirun may outlive its
    last rank for ever (a race over that rank's output); it is then ended. A command that is no mpirun may have had
    children and go on alone.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        output: IO[str] | None = None,
        errors: IO[str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            list(argv), env={**environ, **home_for_mpi(environ)}, stdout=output, stderr=errors, start_new_session=True,
            preexec_fn=_before_mpirun(os.getpid(), _temporary_folder(environ)),
        )  # fmt: skip
        self._descriptor = os.pidfd_open(self._process.pid)
        self._may_strand = Path(argv[0]).name == "mpirun"
        self._had_ranks = False
        self._polls_alone = 0
        self._polls = 0
        self._shared: set[str] = set()
        """Beginnings of names of files that its ranks share, for ranks killed before they are looked at."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self.send_signal(signal.SIGTERM)
            self.wait_until_ended(_TERM_GRACE_S)
        end_members(self._process.pid, (signal.SIGTERM, signal.SIGKILL), shared=self._shared)
        self._process.wait()
        os.close(self._descriptor)

    def send_signal(self, number: int) -> None:
        """Signal mpirun, which ends its ranks on SIGINT and SIGTERM and passes SIGUSR1 on."""
        self._process.send_signal(number)

    def processes(self) -> list[int]:
        """Return mpirun, while it runs, and every process that it started and that has not ended."""
        return session_members(self._process.pid)

    def kill_all(self) -> None:
        """Kill mpirun and all that it started, and return when these have ended."""
        end_members(self._process.pid, (signal.SIGKILL,), shared=self._shared)

    def wait(self) -> int:
        """Return mpirun's exit status, 128 + n if signal n ended it."""
        while not self.wait_until_ended(_POLL_S):
            pass
        status = self._process.wait()
        return exit_status(status)

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Return whether mpirun ended within the time."""
        for _ in range(math.ceil(timeout_s / _POLL_S)):
            if self._process.returncode is not None or select.select(
                [self._descriptor], [], [], min(timeout_s, _POLL_S)
            )[0]:
                self._process.wait()
                return True
            self._polls += 1
            if not self._shared and self._polls % _LOOK_POLLS == 0:
                self._shared = jobs_of(self.processes())
            self._end_if_stranded()
        return False

    def _end_if_stranded(self) -> None:
        """Kill an mpirun that has had no process below it for several polls, after it had some."""
        if not self._may_strand:
            return
        if has_children(self._process.pid):
            self._had_ranks, self._polls_alone = True, 0
            return
        self._polls_alone += 1
        if self._had_ranks and self._polls_alone >= _STRANDED_POLLS:
            self._process.kill()


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """End of a job."""

    status: int
    said: str
    """Message about it; "" if ranks have told it."""
    was_asked: bool
    """True if a signal to this launcher ended it."""
    failure: Failure | None
    noticed_s: float
    """Seconds from the first sign of the end until processes were ended for it."""
    ended_s: float
    """Seconds from then until none was left."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes that have ended, with all that ran on them."""
    lost_workers: tuple[int, ...] = ()
    """Workers of these nodes."""


def run_forwarding_signals(argv: Sequence[str], environ: Mapping[str, str], watch: Watch) -> int:
    """Run mpirun as `run_job` does, tell the message about its end, and return the exit status."""
    ended = run_job(argv, environ, watch)
    if ended.said:
        tell(ended.said)
    return ended.status


def run_job(
    argv: Sequence[str],
    environ: Mapping[str, str],
    watch: Watch,
    *,
    at_once: Callable[[], None] | None = None,
    told: Mapping[str, str] | None = None,
) -> JobEnd:
    """Run mpirun to its end; SIGTERM and users' signals go to mpirun.

    Ctrl-C goes to the workers' scripts, which have some time to handle KeyboardInterrupt; then, or with the next
    Ctrl-C, mpirun ends all. A job that ends well after it has the status 0, as a script by itself.

    A job that cannot go on is ended, as `watch` finds. The status is that of the first rank that failed by itself:
    mpirun may end with 0 though a rank was lost, or with that of a rank that ended for another's failure.

    Args:
        argv: command line of mpirun.
        environ: its environment.
        watch: hears from the ranks.
        at_once: ends the job's processes elsewhere. With it, if the job cannot go on, all that is left is
            killed, and nothing said of it.
        told: variables that tell the ranks of this job.
    """
    received: list[int] = []
    clock = WallClock()
    killed_at_s: list[float] = []
    colors = {"COARSE_COLOR": "1"} if sys.stderr.isatty() and not environ.get("NO_COLOR") else {}
    own = {**environ_of_new_job(environ, STARTUP), **colors, "COARSE_LAUNCHER": watch.name, **(told or {})}
    with watch, MpirunJob(argv, own) as job:

        def end(verdict: Verdict) -> None:
            if at_once is not None:
                killed_at_s.append(clock.now_s())
                at_once()
                job.kill_all()
                return
            tell(verdict.text)
            job.send_signal(signal.SIGTERM)
            if watch.outlasts(_TERM_GRACE_S):
                job.send_signal(signal.SIGKILL)

        with _forwarding(job, watch, received, at_once):
            watch.start(end)
            status = job.wait()
        over_s = clock.now_s()
        if at_once is not None:
            at_once()
            job.kill_all()
    if not status and watch.verdict is None:
        watch.departures.on_over()
    begun_s = killed_at_s[0] if killed_at_s else over_s
    said, final, was_asked = _end_of(watch, status, received)
    return JobEnd(
        status=final, said=said, was_asked=was_asked, failure=watch.departures.failure(),
        noticed_s=max(begun_s - (watch.first_bad_s or begun_s), 0.0), ended_s=clock.now_s() - begun_s,
    )  # fmt: skip


@contextmanager
def _forwarding(
    job: MpirunJob, watch: Watch, received: list[int], at_once: Callable[[], None] | None
) -> Iterator[None]:
    """Forward signals to a job within the context; those that end it are noted in `received`."""

    def forward(number: int, frame: FrameType | None) -> None:
        if number in _ENDING_SIGNALS:
            received.append(number)
        if received == [signal.SIGINT] and watch.interrupt():
            patience.start()
        elif at_once is not None and number == signal.SIGTERM:
            at_once()
            job.kill_all()
        else:
            job.send_signal(_FORWARDED_SIGNALS[signal.Signals(number)])

    patience = threading.Timer(_INTERRUPT_GRACE_S, job.send_signal, [signal.SIGINT])
    patience.daemon = True
    before = {number: signal.signal(number, forward) for number in _FORWARDED_SIGNALS}
    try:
        yield
    finally:
        patience.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_of(watch: Watch, status: int, received: list[int]) -> tuple[str, int, bool]:
    """Return the message about a job's end, its status, and whether a signal to this launcher ended it."""
    ends_well = not status and watch.verdict is None and not watch.departures.first_failure()
    if received and not (received == [signal.SIGINT] and ends_well):
        return f"{signal.Signals(received[0]).name} received; the job has ended", exit_status(-received[0]), True
    if watch.verdict:
        return "", watch.verdict.status, False
    ended = watch.departures.first_failure() or status
    if (cause := watch.departures.unsaid_cause()) is not None:
        return f"{cause}; the job has ended", ended, False
    return "" if ended else watch.departures.unused() or "", ended, False


def tell(text: str) -> None:
    """Say something on standard error.

    If its reader is gone the job ends all the same, with its own status.
    """
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"coarse: {text}\n".encode())


def has_children(pid: int) -> bool:
    """Return whether a process has children, as its own entries of /proc say; False if it has ended."""
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    for task in tasks:
        with suppress(OSError):  # ended meanwhile
            if (task / "children").read_text():
                return True
    return False


def _before_mpirun(parent: int, folder: str) -> Callable[[], None]:
    """Return a function for a new process: end when the process (its thread that starts it) does.

    This holds however that ends. mpirun is told to end, so that it removes its files. The ranks do not rely on it: see
    exit_reporter.py. An mpirun that was killed leaves them, by its number, and a later one that has the same number
    would not start.
    """
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        shutil.rmtree(f"{folder}/ompi.{os.getpid()}", ignore_errors=True)

    return prepare


def _temporary_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of mpirun's files, by the variables that it reads."""
    return next((environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), "/tmp")


def session_members(session: int) -> list[int]:
    """Return the processes of a session, from /proc, zombies left out."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # ended meanwhile
            continue
        state, _parent, _group, member_of = stat.rpartition(")")[2].split()[:4]
        if int(member_of) == session and state != "Z":
            members.append(int(entry.name))
    return members


def end_members(
    session: int, numbers: Sequence[signal.Signals], but: int | None = None, *, shared: Collection[str] = ()
) -> None:
    """Send signals, one after another, to the rest of a session, and await its end within the grace.

    Args:
        session: number of the session.
        numbers: signals in order.
        but: process that gets none.
        shared: beginnings of names of files that its processes share and that are removed with them, beside
            those that they have mapped now.
    """
    jobs = set(shared)
    for _ in range(_MOST_ROUNDS):  # some may be forked meanwhile
        members = set(session_members(session)) - {but}
        if not members:
            break
        jobs |= jobs_of(members)
        _end_members(session, numbers, but)
    remove(jobs)


def _end_members(session: int, numbers: Sequence[signal.Signals], but: int | None) -> None:
    for number in numbers:
        with ExitStack() as opened:
            descriptors = []
            for pid in set(session_members(session)) - {but}:
                with suppress(ProcessLookupError):  # ended meanwhile
                    descriptor = os.pidfd_open(pid)
                    opened.callback(os.close, descriptor)
                    signal.pidfd_send_signal(descriptor, number)
                    descriptors.append(descriptor)
            _await_ends(descriptors)


def _await_ends(descriptors: list[int]) -> None:
    """Return when all processes have ended, or none of them did for the length of the grace."""
    running = descriptors
    while running:
        ended, _, _ = select.select(running, [], [], _TERM_GRACE_S)
        if not ended:
            return
        running = [descriptor for descriptor in running if descriptor not in ended]
