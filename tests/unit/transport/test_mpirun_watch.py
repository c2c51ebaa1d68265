"""A rank finds its mpirun among its ancestors, and ends when that has been killed."""

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest

from coarse.transport.mpirun_watch import MpirunWatch, daemon_above

RANK = """
import os, signal, sys
from coarse.transport.mpirun_watch import MpirunWatch, end_after_abort
if "aborts" in sys.argv:
    end_after_abort({"PMIX_RANK": "0"}, os.getpid(), 0)
if "aborts in time" in sys.argv:
    end_after_abort({"PMIX_RANK": "0"}, os.getpid(), 60)
if "aborts below coarse run" in sys.argv:
    end_after_abort({"PMIX_RANK": "0", "COARSE_LAUNCHER": "@x"}, os.getpid(), 0)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
watch = MpirunWatch.of({"PMIX_RANK": "0"})
if "closed" in sys.argv:
    watch.close()
print(os.getpid(), flush=True)
signal.sigtimedwait([signal.SIGUSR1], 60)
"""
WITHIN_MS = 20_000


@pytest.fixture
def start(tmp_path):
    """Start a rank below a shell, and that below a program of mpirun's name; return it with the rank's id."""
    named = tmp_path / "prterun"
    named.symlink_to("/bin/sh")
    with ExitStack() as opened:

        def start(how: str) -> tuple[subprocess.Popen[str], int]:
            inner = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", RANK, how]
            command = [str(named), "-c", '"$@"; true', "sh", *inner]
            errors = opened.enter_context(open(tmp_path / "errors", "w"))
            process = opened.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True))
            opened.callback(process.kill)
            assert process.stdout is not None
            rank = int(process.stdout.readline())
            opened.callback(end, rank)
            return process, rank

        yield start


def end(rank: int) -> None:
    """End a rank, if it has not ended."""
    with suppress(ProcessLookupError):
        os.kill(rank, signal.SIGKILL)


def has_ended(descriptor: int, within_ms: int) -> bool:
    """Whether the process of a descriptor ends in time."""
    return bool(select.select([descriptor], [], [], within_ms / 1000)[0])


@pytest.mark.parametrize("how", ["heeds", "deaf"])
def test_a_rank_ends_with_an_mpirun_that_is_killed_also_below_a_script_and_deaf_to_sigterm(start, how):
    mpirun, rank = start(how)
    assert daemon_above(rank) == mpirun.pid
    descriptor = os.pidfd_open(rank)
    mpirun.kill()
    assert has_ended(descriptor, WITHIN_MS)
    os.close(descriptor)


def test_an_mpirun_that_does_not_end_after_an_abort_is_killed_and_says_so(start, tmp_path):
    mpirun, _ = start("aborts")
    assert mpirun.wait(WITHIN_MS / 1000) == -signal.SIGKILL
    assert "mpirun waits for a host that does not answer; it is killed" in (tmp_path / "errors").read_text()


@pytest.mark.parametrize("how", ["aborts in time", "aborts below coarse run"])
def test_an_mpirun_that_has_time_or_is_ended_by_coarse_run_is_left_alone(start, how):
    mpirun, rank = start(how)
    descriptor = os.pidfd_open(mpirun.pid)
    assert not has_ended(descriptor, 500)
    os.kill(rank, signal.SIGKILL)
    assert mpirun.wait(WITHIN_MS / 1000) == 0
    os.close(descriptor)


def test_a_rank_that_has_shut_down_outlives_its_mpirun(start):
    mpirun, rank = start("closed")
    descriptor = os.pidfd_open(rank)
    mpirun.kill()
    mpirun.wait()
    assert not has_ended(descriptor, 0)
    os.kill(rank, signal.SIGUSR1)
    assert has_ended(descriptor, WITHIN_MS)
    os.close(descriptor)


@pytest.mark.parametrize("environ", [{}, {"PMIX_RANK": "0", "COARSE_LAUNCHER": "@told"}])
def test_a_process_that_is_no_rank_of_a_plain_mpirun_watches_none(environ):
    assert MpirunWatch.of(environ) is None
