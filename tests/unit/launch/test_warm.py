"""The process that ranks are forked from when a job starts again: what it imports, its end, and what is said of it."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from coarse.launch.warm import ranks, stand_in
from coarse.launch.warm.ranks import WarmRanks, stand_in_arguments
from coarse.protocol.clock import WallClock

IN_TIME_S = 30.0
NEEDS = {"modules": ["json", "xml.dom.minidom", "a_module_that_is_nowhere"], "variables": {"OMP_NUM_THREADS": "3"}}


@pytest.fixture
def told(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(ranks, "tell", lines.append)
    return lines


def warmed(further: tuple[str, ...] = ()) -> WarmRanks:
    made = WarmRanks({**os.environ, "PYTHONHASHSEED": "0"}, further)
    made.start(NEEDS)
    return made


def until(is_so: Callable[[], object]) -> None:
    """Look again and again until something is so, in time."""
    clock = WallClock()
    end_s = clock.now_s() + IN_TIME_S
    while not is_so():
        assert clock.now_s() < end_s
        clock.sleep_s(0.02)


def awaited(warm: WarmRanks) -> str:
    """The socket, once it is there."""
    until(warm.socket_path)
    path = warm.socket_path()
    assert path is not None
    return path


def run(path: str, *program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *stand_in_arguments(path), *program]
    return subprocess.run(
        command, env={"PMIX_RANK": "0", **environ}, capture_output=True, text=True, timeout=IN_TIME_S, check=False
    )


def test_ranks_run_scripts_and_modules_as_new_interpreters_do(tmp_path, told):
    (tmp_path / "beside.py").write_text("FOUND = 'beside'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, beside\n"
        "print(__name__, sys.argv[1:], beside.FOUND, 'xml.dom.minidom' in sys.modules, os.environ.get('OF_RANK'))\n"
    )
    warm = warmed()
    try:
        path = awaited(warm)
        done = run(path, str(script), "one", OF_RANK="x")
        assert done.stdout == "__main__ ['one'] beside True x\n", done.stderr
        done = run(path, "-m", "platform", PYTHONPATH="")
        assert done.stdout.startswith("Linux"), done.stderr
    finally:
        warm.close()
    assert not told
    assert not Path(path).exists()


def test_a_module_that_users_name_and_that_is_nowhere_is_said(told):
    warm = warmed(("a_module_of_the_user",))
    until(lambda: warm.socket_path() or told)
    assert told == [
        "the process that imports for ranks has ended (ModuleNotFoundError: No module named 'a_module_of_the_user'); "
        "they import themselves now"
    ]
    assert warm.socket_path() is None


def test_one_that_is_killed_is_started_again(told):
    warm = warmed()
    try:
        awaited(warm)
        assert warm._process is not None
        os.kill(warm._process.pid, signal.SIGKILL)
        warm._process.wait()
        assert warm.socket_path() is None
        assert told == ["the process that imports for ranks has ended (killed); they import themselves now"]
        awaited(warm)
    finally:
        warm.close()


def test_what_stands_for_a_rank_is_killed_where_the_process_that_forked_it_is(tmp_path, told):
    script = tmp_path / "waits.py"
    script.write_text("import signal\nprint('here', flush=True)\nsignal.pause()\n")
    warm = warmed()
    try:
        command = [sys.executable, *stand_in_arguments(awaited(warm)), str(script)]
        with subprocess.Popen(
            command, env={"PMIX_RANK": "0"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as rank:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "here\n"
            assert warm._process is not None
            os.kill(warm._process.pid, signal.SIGKILL)
            rank.communicate(timeout=IN_TIME_S)
        assert rank.returncode == -signal.SIGKILL
    finally:
        warm.close()


WAITS = """
import signal
signal.signal(signal.SIGUSR2, lambda *_: print("came", flush=True))
print("waits", flush=True)
while True:
    signal.pause()
"""


def test_a_signal_that_comes_before_the_rank_is_known_goes_on_to_it(tmp_path):
    address = str(tmp_path / "server")
    command = [sys.executable, stand_in.__file__, address, "script.py"]
    with ExitStack() as ends:
        server = ends.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        server.bind(address)
        server.listen()
        rank = ends.enter_context(subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True))
        ends.callback(rank.kill)
        process = ends.enter_context(subprocess.Popen(command, env={**os.environ, "PMIX_RANK": "0"}))
        ends.callback(process.kill)
        channel = ends.enter_context(server.accept()[0])
        channel.recv(1 << 16)
        assert rank.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGUSR2)
        channel.send(str(rank.pid).encode())
        assert select.select([rank.stdout], [], [], IN_TIME_S)[0], "the signal did not come"
        assert rank.stdout.readline() == "came\n"
        channel.send(b"0")
        assert process.wait(timeout=IN_TIME_S) == 0
