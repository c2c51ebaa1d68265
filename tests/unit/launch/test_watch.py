"""What the launcher hears from ranks, which tests stand for here."""

import contextlib
import os
import socket
import threading

import pytest

from coarse.launch.mpirun import run_forwarding_signals
from coarse.launch.rank_exits import Departures
from coarse.launch.watch import Doorstep, Watch
from coarse.protocol.clock import WallClock
from coarse.transport.node_rendezvous import LauncherLine

IN_TIME_S = 10.0


def environ(watch: Watch, rank: int) -> dict[str, str]:
    return {"COARSE_LAUNCHER": watch.name, "PMIX_RANK": str(rank)}


@pytest.mark.parametrize("has_path", [False, True])
def test_what_ranks_moved_is_known_once_the_watch_is_over(tmp_path, has_path):
    path = str(tmp_path / "launcher")
    with Watch(Departures(3, frozenset({1, 2})), Doorstep(path, path) if has_path else None) as watch:
        watch.start(lambda verdict: None)
        for rank in (1, 2):
            with LauncherLine(environ(watch, rank)) as line:
                line.say_moved((10 * rank, 7), 3 if rank == 2 else None)
        with LauncherLine(environ(watch, 0)) as line:
            line.say_moved((0, 0), 4)
    assert watch.carried == {0: (0, 0), 1: (10, 7), 2: (20, 7)}
    assert watch.reduced == {0: 4, 2: 3}
    assert watch.verdict is None


def test_a_path_may_be_bound_in_one_place_and_told_as_another(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "seen").symlink_to(tmp_path / "real")
    bound, told = str(tmp_path / "real" / "l"), str(tmp_path / "seen" / "l")
    ended = threading.Event()
    with Watch(Departures(2, frozenset({1})), Doorstep(bound, told)) as watch:
        watch.start(lambda verdict: ended.set())
        assert watch.name == told
        with socket.socket(socket.AF_UNIX) as watching:
            watching.connect(told)
            watching.sendall(b"1 runs\n")
            watching.sendall(b"1 ended 5\n")
            with LauncherLine(environ(watch, 0)) as line:
                line.say_waits()
                assert ended.wait(IN_TIME_S)
    assert watch.verdict is not None
    assert "MPI rank 1 ended with status 5 before" in watch.verdict.text


def test_a_ctrl_c_is_told_to_processes_that_watch_ranks_as_long_as_they_do():
    with Watch(Departures(2, frozenset({1}))) as watch:
        watch.start(lambda verdict: None)
        assert not watch.interrupt()
        address = watch.name.replace("@", "\0", 1)
        with socket.socket(socket.AF_UNIX) as watching, LauncherLine(environ(watch, 0)) as line:
            line.say_waits()
            watching.connect(address)
            watching.sendall(b"0 runs\n")
            until_s = WallClock().now_s() + IN_TIME_S
            while not watch.interrupt():
                assert WallClock().now_s() < until_s
            watching.settimeout(IN_TIME_S)
            assert watching.recv(64).startswith(b"interrupt\n")
            watching.sendall(b"0 ended 0\n")
        while watch.interrupt():
            assert WallClock().now_s() < until_s


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\n",
        b"\n",
        b"0\n",
        b"0 ended\n",
        b"0 ended x\n",
        b"3 ended 9\n",
        b"-1 ended 9\n",
        b"0 runs\n1 ended 9\n",
        b"0 is here\n",
        b"0 waits" + b" " * 1000,
        b"9" * 10000,
    ],
    ids=lambda said: repr(said[:16]),
)
def test_what_no_rank_says_closes_its_connection_and_changes_nothing(said):
    with Watch(Departures(3, frozenset({2}))) as watch:
        watch.start(lambda verdict: None)
        with connected(watch) as stranger:
            stranger.sendall(said)
            assert is_closed(stranger)
        with connected(watch) as rank:  # the watch goes on
            rank.sendall(b"1 carried 5 6\n")
    assert watch.carried == {1: (5, 6)}
    assert watch.departures.first_failure() in (0, 1)  # "0 runs" and a hang-up is a rank that was lost
    assert watch.verdict is None


def test_a_connection_of_another_user_is_closed_unheard(monkeypatch):
    with Watch(Departures(2, frozenset({1}))) as watch:
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        watch.start(lambda verdict: None)
        with connected(watch) as stranger:
            with contextlib.suppress(OSError):  # it may be closed by now
                stranger.sendall(b"0 ended 9\n")
            assert is_closed(stranger)
    assert watch.departures.first_failure() == 0


def test_a_job_ends_though_nobody_reads_what_the_launcher_says(tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    watch = Watch(Departures(2, frozenset()))
    clock = WallClock()
    began_s = clock.now_s()
    with (
        open(writer, "w") as broken,
        contextlib.closing(connected(watch)) as waiting,
        contextlib.closing(connected(watch)) as watching,
    ):
        monkeypatch.setattr("sys.stderr", broken)
        waiting.sendall(b"0 waits\n")
        watching.sendall(b"1 runs\n1 ended 5\n")
        assert run_forwarding_signals(["sleep", "30"], os.environ, watch) == 5
    assert clock.now_s() - began_s < IN_TIME_S


def is_closed(channel: socket.socket) -> bool:
    """Whether the other end closes a connection, with something unread or without."""
    try:
        return channel.recv(1) == b""
    except ConnectionError:
        return True


def connected(watch: Watch) -> socket.socket:
    """A connection to the launcher's socket."""
    channel = socket.socket(socket.AF_UNIX)
    channel.settimeout(IN_TIME_S)
    channel.connect(watch.name.replace("@", "\0", 1))
    return channel
