"""Which of the interpreters that have a rank's variables is the rank."""

import pytest

from coarse.transport.launcher import is_below_rank, note_start

RANK = {"PMIX_NAMESPACE": "prterun-a-1@1", "PMIX_RANK": "1"}
SCRIPT = ["python", "train.py", "-c", "spawn"]
SPAWNED = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)", "--x"]
FORK_SERVER = ["python", "-c", "from multiprocessing.forkserver import main; main(5, 6, [])"]


def test_before_mpi_has_started_any_interpreter_may_become_the_rank():
    assert not is_below_rank(RANK, 10, SCRIPT)


def test_once_mpi_has_started_the_rank_is_the_process_that_started_it():
    environ = dict(RANK)
    note_start(environ, 10)
    assert not is_below_rank(environ, 10, SCRIPT)
    assert is_below_rank(environ, 11, SCRIPT)


def test_a_rank_of_a_job_that_a_rank_starts_is_one():
    environ = dict(RANK)
    note_start(environ, 10)
    for inner in ({"PMIX_NAMESPACE": "prterun-a-2@1"}, {"PMIX_RANK": "0"}):
        assert not is_below_rank({**environ, **inner}, 11, SCRIPT)


@pytest.mark.parametrize("command", [SPAWNED, FORK_SERVER])
def test_an_interpreter_of_multiprocessings_is_never_the_rank(command):
    assert is_below_rank(RANK, 11, command)
    assert not is_below_rank({}, 11, command)


def test_a_process_alone_has_no_rank_to_be_below():
    environ = {}
    note_start(environ, 10)
    assert not is_below_rank(environ, 11, SCRIPT)
