"""The first step of `init`: the node's ranks wait for each other before they call MPI, with a time limit.

MPI_Init waits for all ranks, for ever and without letting another thread run. So every rank first
binds a Unix socket whose name follows from the job's, and looks whether the others have bound theirs.
A rank that ends takes its socket with it. Names of sockets are anybody's to bind, so who has come counts only where the
kernel says that it is a process of this user.
"""

import contextlib
import hashlib
import os
import select
import socket
import struct
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from coarse.errors import CoarseError, StallError
from coarse.protocol.clock import Clock
from coarse.transport.launcher import told_to_this_job

_LOOK_AGAIN_S = 0.01
"""Longest sleep between two looks for ranks that do not connect to others."""
_SAY_AFTER_S = 15.0
_MOST_CALLERS = 4096
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
PEER = struct.Struct("3i")
"""Process, user and group at the other end of a Unix socket."""


@dataclass(frozen=True, kw_only=True)
class NodeJob:
    """The part of an mpirun job that runs on this node, as Open MPI's variables tell."""

    name: str
    """Name of the job: one for all its ranks, unlike that of any other job on this machine."""
    world_rank: int
    local_rank: int
    local_size: int
    is_whole: bool
    """True if all ranks of the job are on this node; then local ranks are the world's."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "NodeJob | None":
        """Return the job that this process belongs to; None if Open MPI's mpirun did not start it.

        `coarse run` counts workers alone in Open MPI's variables, and keeps what they were in COARSE_JOB.
        """
        try:
            told = told_to_this_job(environ).get("COARSE_JOB")
            told = told or ",".join(environ[f"OMPI_COMM_WORLD_{name}"] for name in _PLACE)
        except KeyError:
            return None
        rank, size, local_rank, local_size = (int(number) for number in told.split(","))
        servers = [value for name, value in sorted(environ.items()) if name.startswith("PMIX_SERVER_URI")]
        job = "\0".join([environ.get("PMIX_NAMESPACE", ""), *servers])
        return cls(
            name=f"coarse-{hashlib.sha256(job.encode()).hexdigest()[:16]}",
            world_rank=rank,
            local_rank=local_rank,
            local_size=local_size,
            is_whole=size == local_size,
        )

    def address(self, local_rank: int) -> str:
        """Return the address at which a rank of this node shows that it has come."""
        return f"\0{self.name}-arrival-{local_rank}"


def spans_hosts(environ: Mapping[str, str]) -> bool:
    """Return whether Open MPI's mpirun has started ranks of this job on other hosts, too."""
    job = NodeJob.of(environ)
    return job is not None and not job.is_whole


@contextlib.contextmanager
def arrival(job: NodeJob | None, timeout_s: float | None, clock: Clock) -> Iterator[None]:
    """Have come, for as long as the body runs, which begins when all ranks of the node have.

    With None for `timeout_s` it begins at once: a light memory device goes on into MPI_Init, for which
    workers may wait that have started MPI before they called `init`.

    Raises:
        StallError: after `timeout_s`, with the ranks that have not come.
    """
    if job is None:
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as place:
        _show(job, place)
        if timeout_s is not None:
            _await_others(job, place, timeout_s, clock)
        yield


def _show(job: NodeJob, place: socket.socket) -> None:
    """Bind this rank's name; a connection to it says that the rank has come."""
    place.setblocking(False)
    try:
        place.bind(job.address(job.local_rank))
    except OSError as error:
        raise CoarseError(
            f"MPI rank {job.world_rank}: another process of {socket.gethostname()} has the name of this rank's socket, "
            f"{job.address(job.local_rank)[1:]!r} ({error.strerror}); start the job again, and see in /proc/net/unix "
            "which process has it"
        ) from None
    place.listen(_MOST_CALLERS)


def _await_others(job: NodeJob, place: socket.socket, timeout_s: float, clock: Clock) -> None:
    until_s = clock.now_s() + timeout_s
    absent = set(range(job.local_size)) - {job.local_rank}
    say_s = clock.now_s() + _SAY_AFTER_S
    while absent := {rank for rank in absent if not _has_come(job.address(rank))}:
        if clock.now_s() >= say_s and job.local_rank == min(set(range(job.local_size)) - absent):
            _say_who_is_absent(job, absent, until_s - clock.now_s())
            say_s += _SAY_AFTER_S
        if clock.now_s() >= until_s:
            raise StallError(
                f"MPI rank {job.world_rank}: {_names(job, absent)} have not called coarse.init() in the "
                f"{timeout_s:g} s that this rank waited there; let all ranks call it, or raise startup_timeout_s "
                "if they need longer until then"
            )
        _sleep_until_one_comes(place)


def _sleep_until_one_comes(place: socket.socket) -> None:
    """Sleep until a rank connects, as each does once it has come; at most a moment, since light devices do not.

    The connections are taken: with one left, no later sleep would last.
    """
    callers, _, _ = select.select([place], [], [], _LOOK_AGAIN_S)
    while callers:
        try:
            caller, _ = place.accept()
        except BlockingIOError:
            return
        caller.close()


def _names(job: NodeJob, ranks: Collection[int]) -> str:
    which = "MPI ranks" if job.is_whole else f"local ranks (of {socket.gethostname()})"
    return f"{which} {sorted(ranks)}"


def _say_who_is_absent(job: NodeJob, absent: Collection[int], left_s: float) -> None:
    """Tell a user who waits, once for all ranks of the node: importing TensorFlow on a busy machine takes a while."""
    sys.stderr.write(
        f"coarse: MPI rank {job.world_rank} waits in coarse.init() for {_names(job, absent)}, which have not called it "
        f"yet; {left_s:.0f} s of startup_timeout_s are left\n"
    )
    sys.stderr.flush()


def _has_come(address: str) -> bool:
    """Return whether a process of this user has bound a rank's name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(address)
        except (ConnectionRefusedError, BlockingIOError):  # nobody, or a crowd that is no job's
            return False
        return user_of(asking) == os.geteuid()


def process_and_user_of(channel: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a connected Unix socket, from the kernel."""
    process, user, _ = PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return process, user


def user_of(channel: socket.socket) -> int:
    """Return the user at the other end of a connected Unix socket."""
    return process_and_user_of(channel)[1]


class LauncherLine:
    """Tells `coarse run`, where it started this rank, how far the rank has come."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._rank = environ.get("PMIX_RANK")
        self._channel: socket.socket | None = None
        launcher = told_to_this_job(environ).get("COARSE_LAUNCHER")
        if launcher is None or self._rank is None:
            return
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.connect(launcher.replace("@", "\0", 1))
        except OSError:  # the launcher is gone, or on another host
            channel.close()
        else:
            self._channel = channel

    def __enter__(self) -> "LauncherLine":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._channel is not None:
            self._channel.close()

    def say_waits(self) -> None:
        """Say that this rank has called `init`; it waits until it has joined or hangs up."""
        self._say("waits")

    def say_starts(self) -> None:
        """Say that this rank's script starts MPI, which waits for all ranks, until this hangs up."""
        self._say("starts")

    def say_left(self) -> None:
        """Say that this rank's script has ended without `init`."""
        self._say("left")

    def say_met(self) -> None:
        """Say that this rank's script joined the others without coarse."""
        self._say("met")

    def say_joined(self) -> None:
        """Say that the start has succeeded."""
        self._say("joined")

    def say_fails(self, status: int, error: int = 0) -> None:
        """Say that this rank ends the job with a status, for an error of its own, of which `error` is a digest."""
        self._say(f"fails {status} {error}")

    def say_follows(self) -> None:
        """Say that this rank ends because another has."""
        self._say("follows")

    def say_moved(self, carried_bytes: tuple[int, int], reduced_bytes: int | None) -> None:
        """Say what this rank sent to and received from other nodes, and what as a worker it left to MPI to sum."""
        self._say("carried {} {}".format(*carried_bytes))
        if reduced_bytes is not None:
            self._say(f"reduced {reduced_bytes}")

    def _say(self, verb: str) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the launcher is gone and needs no word
                self._channel.sendall(f"{self._rank} {verb}\n".encode())
