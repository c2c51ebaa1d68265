"""Ranks that are forked where a library was imported are what mpirun would have started."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.launch import REPOSITORY
from tests.support.preloaded import servers

IN_TIME_S = 30.0


@pytest.fixture(scope="module")
def command():
    """That of a rank where nothing large was imported."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(servers.LIBRARIES, "little", ("xml.dom.minidom",))
        return servers.rank_command("little", {**os.environ, "PYTHONPATH": str(REPOSITORY)})


@pytest.fixture
def start(command, tmp_path):
    """Starts a program as mpirun would, and returns its process."""

    def started(program: str, *args: str, rank: int = 0) -> subprocess.Popen[str]:
        (tmp_path / "program.py").write_text(program)
        return subprocess.Popen(
            [*command, str(tmp_path / "program.py"), *args], env={"PMIX_RANK": str(rank), "OF_ITS_OWN": "x"},
            cwd=tmp_path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return started


REPORT = """
import json, os, sys
assert "xml.dom.minidom" in sys.modules and __name__ == "__main__"
print("an error", file=sys.stderr)
print(json.dumps([sys.argv[1:], os.environ.get("OF_ITS_OWN"), "HOME" in os.environ, os.getcwd(), sys.stdin.read()]))
print(sorted({hash("a"), hash("b"), hash("c")}))
"""


def test_arguments_environment_folder_and_streams_are_those_of_the_rank(start, tmp_path):
    outputs = [start(REPORT, "one", "two", rank=rank).communicate("given", timeout=IN_TIME_S) for rank in (0, 1)]
    for output, errors in outputs:
        assert json.loads(output.splitlines()[0]) == [["one", "two"], "x", False, str(tmp_path), "given"]
        assert errors == "an error\n"
    assert outputs[0][0].splitlines()[1] != outputs[1][0].splitlines()[1]  # seeds of hashes differ


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("raise ArithmeticError('broken')", 1, "ArithmeticError: broken"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import atexit; atexit.register(print, 'at exit')", 0, ""),
    ],
)
def test_what_stands_for_a_rank_ends_as_the_rank_does(start, program, status, words):
    process = start(program)
    output, errors = process.communicate(timeout=IN_TIME_S)
    assert process.returncode == status
    assert words in errors
    assert output == ("at exit\n" if "atexit" in program else "")


def end_of(pid: int) -> Callable[[], bool]:
    """Whether this process, which runs now, ends in time."""
    descriptor = os.pidfd_open(pid)
    return lambda: bool(select.select([descriptor], [], [], IN_TIME_S)[0])


WAITS = """
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: os.write(1, b"came\\n"))  # print may not be interrupted by itself
os.write(1, b"%d\\n" % os.getpid())
while True:
    signal.pause()
"""


def test_signals_go_on_to_the_rank(start):
    process = start(WAITS)
    process.stdout.readline()
    process.send_signal(signal.SIGUSR2)
    assert process.stdout.readline() == "came\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=IN_TIME_S)
    assert process.returncode == -signal.SIGTERM


def test_a_rank_ends_with_what_stands_for_it(start):
    process = start(WAITS)
    rank = int(process.stdout.readline())
    ends = end_of(rank)
    process.kill()
    process.communicate(timeout=IN_TIME_S)
    assert ends()


def test_ranks_end_with_the_process_that_tests(tmp_path):
    """One that is killed at that."""
    testing = tmp_path / "testing.py"
    testing.write_text(
        "import os, subprocess, sys, time\nfrom tests.support.preloaded import servers\n"
        "servers.LIBRARIES['little'] = ('json',)\n"
        "command = servers.rank_command('little', os.environ)\n"
        f"subprocess.run([*command, {str(tmp_path / 'rank.py')!r}], env={{'PMIX_RANK': '0'}})\n"
    )
    (tmp_path / "rank.py").write_text(WAITS)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, str(testing)], env=environ, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        rank = int(process.stdout.readline())
        server = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
        rank_ends, server_ends = end_of(rank), end_of(server)
        process.kill()
        assert rank_ends()
        assert server_ends()
