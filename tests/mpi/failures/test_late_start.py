"""Ranks that never call init: those that wait for them there end in time, and name them."""

import sys
from pathlib import Path

import pytest

from tests.support.launch import complete, mpirun

HERE = Path(__file__).parent


@pytest.mark.parametrize(("ulfm", "first"), [(False, "coarse first"), (False, "MPI first"), (True, "MPI first")])
def test_ranks_that_never_call_init_are_named_after_the_startup_timeout(ulfm, first):
    completed = mpirun(3, HERE / "late_rank.py", 2, first, ulfm=ulfm)
    assert completed.returncode != 0
    assert "StallError: MPI rank" in completed.stderr
    assert "MPI ranks [2] have not called coarse.init() in the 1 s that this rank waited" in completed.stderr


def test_ranks_of_which_no_word_comes_over_mpi_are_named_by_rank_0_within_the_limit():
    """As where a firewall lets mpirun's daemons through and no message of MPI: `init` meets so, between hosts."""
    completed = mpirun(3, HERE / "no_word.py")
    assert completed.returncode != 0
    assert "StallError: MPI rank 0 on host" in completed.stderr
    assert "no word over MPI came from MPI ranks [2], on other hosts, in 0.5 s" in completed.stderr
    assert completed.stdout.count("have met") == 3  # where all take part


def test_coarse_run_ends_where_a_rank_never_calls_init():
    command = [sys.executable, "-m", "coarse", "run", str(HERE / "late_rank.py"), "1", "coarse first"]
    completed = complete(command)
    assert completed.returncode == 1
    assert "StallError: MPI rank 0: MPI ranks [1] have not called coarse.init() in the 1 s" in completed.stderr
    assert "coarse: MPI rank 0 ended with status 1 in coarse.init(), where ranks [2, 3] wait" in completed.stderr
