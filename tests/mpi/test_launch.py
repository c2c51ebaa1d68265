"""What `mpirun` is started with here does what the tests and `coarse run` rely on."""

import os
import signal
import sys

import pytest

from coarse.launch import Job
from tests.mpi.launch import PROGRAMS, complete, mpirun, running


@pytest.mark.parametrize("nprocs", [1, 2, 4])
def test_a_token_of_every_rank_passes_every_rank(nprocs):
    completed = mpirun(nprocs, "ring_of_tokens.py")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == f"{nprocs} ranks, complete True\n"


def test_a_job_out_of_time_shows_where_each_rank_stands():
    with pytest.raises(AssertionError) as failure:
        mpirun(2, "stuck.py", timeout_s=4)
    assert str(failure.value).count("in wait_for_nothing") == 2


@pytest.mark.parametrize("ulfm", [False, True])
def test_no_rank_outlives_an_abort(ulfm, tmp_path):
    completed = mpirun(3, "abort.py", tmp_path, ulfm=ulfm)
    assert completed.returncode == 7
    ranks = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(ranks) == 3
    assert not running(ranks)


def test_coarse_run_ends_with_the_status_of_mpirun(tmp_path):
    script = tmp_path / "leave.py"
    script.write_text("import coarse, sys\ncoarse.init()\ncoarse.shutdown()\nsys.exit(3 * (coarse is not None))\n")
    completed = complete([sys.executable, "-m", "coarse", "run", "--workers", "1", "--devices", "1", str(script)])
    assert completed.returncode == 3, completed.stderr
    assert completed.stdout.splitlines()[0].endswith(f"{script} : -n 1 {sys.executable} -m coarse.device")


def test_ctrl_c_on_coarse_run_leaves_no_rank(tmp_path):
    command = [sys.executable, "-m", "coarse", "run", "--workers", "2", "--devices", "1"]
    completed = complete([*command, str(PROGRAMS / "press_ctrl_c.py"), str(tmp_path)])
    assert completed.returncode != 0
    ranks = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(ranks) == 2, completed.stderr
    assert not running(ranks)


def test_a_launcher_that_outlives_its_last_rank_is_ended():
    script = "import subprocess, time; subprocess.run(['sleep', '2.5']); time.sleep(60)"
    with Job([sys.executable, "-c", script], os.environ) as job:
        assert job.wait() == 128 + signal.SIGKILL
