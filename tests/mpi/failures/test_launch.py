"""What `mpirun` is started with here does what the tests and `coarse run` rely on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from coarse.launch import mpirun as launch
from coarse.launch.mpirun import AppContext, MpirunJob, has_children, mpirun_argv, mpirun_beside
from tests.support.claims import IN_TIME_S
from tests.support.launch import Completed, complete, mpirun, running
from tests.support.layouts import parameters

HERE = Path(__file__).parent
TWO_AND_ONE = ("--workers", "2", "--devices", "1")
LAUNCHER_S = 10.0
"""How soon the launcher ends a job whose rank has failed."""
TO_END_S = 10.0
"""How long mpirun and the interpreters may take to end, on cores that others use too; coarse.init() waits for 60 s."""


@pytest.mark.parametrize("nprocs", parameters([1, 2, 4], {1, 4}))
def test_a_token_of_every_rank_passes_every_rank(nprocs):
    completed = mpirun(nprocs, HERE / "plain_mpi.py", "ring")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == f"{nprocs} ranks, complete True\n"


def test_a_job_out_of_time_shows_where_each_rank_stands(tmp_path):
    with pytest.raises(AssertionError) as failure:
        mpirun(2, HERE / "plain_mpi.py", "stuck", tmp_path, gives_up=lambda: len(list(tmp_path.iterdir())) == 2)
    assert str(failure.value).count("in wait_for_nothing") == 2


@pytest.mark.parametrize("ulfm", [False, True])
def test_no_rank_outlives_an_abort(ulfm, tmp_path):
    completed = mpirun(3, HERE / "plain_mpi.py", "abort", tmp_path, ulfm=ulfm)
    assert completed.returncode == 7
    ranks = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(ranks) == 3
    assert not running(ranks)


def test_coarse_run_ends_with_the_status_of_mpirun(tmp_path):
    script = tmp_path / "leave.py"
    script.write_text("import coarse, sys\ncoarse.init()\ncoarse.shutdown()\nsys.exit(3 * (coarse is not None))\n")
    completed = complete([sys.executable, "-m", "coarse", "run", "--workers", "1", "--devices", "1", str(script)])
    assert completed.returncode == 3, completed.stderr
    assert completed.stdout == ""


def test_a_check_starts_the_smallest_job_whatever_the_environment_says_of_others(monkeypatch):
    monkeypatch.setenv("COARSE_PARTITION", "1:3")
    completed = complete([sys.executable, "-m", "coarse", "check", "--start"])
    assert completed.returncode == 0, completed.stderr
    said = r"^2 workers and a memory device added 1 MiB, rightly, in [\d.]+ ms \(measured\)$"
    assert re.search(said, completed.stdout, re.MULTILINE)


def test_a_device_that_ends_for_a_worker_is_not_named_as_the_cause(tmp_path):
    completed = coarse_run(HERE / "ended_rank.py", "exit", tmp_path)
    assert completed.returncode == 1, completed.stderr
    assert "rank 1 (MPI rank 1) has shut down without pushing 'awaited'" in completed.stderr
    assert "MPI rank 2" not in completed.stderr


def test_ctrl_c_on_coarse_run_leaves_no_rank(tmp_path):
    completed = coarse_run(HERE / "signal_launcher.py", "SIGINT", tmp_path)
    assert completed.returncode == 128 + signal.SIGINT
    assert "coarse: SIGINT received; the job has ended" in completed.stderr
    ranks = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(ranks) == 2, completed.stderr
    assert not running(ranks)


def test_ctrl_c_on_coarse_run_is_a_keyboard_interrupt_for_scripts_while_devices_serve_on(tmp_path):
    completed = coarse_run(HERE / "signal_launcher.py", "SIGINT", tmp_path, "sums")
    assert completed.returncode == 0, completed.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["[2.0, 2.0, 2.0]"] * 2
    assert not completed.stderr


@pytest.mark.parametrize("is_plain", [False, pytest.param(True, marks=pytest.mark.test_all)])
def test_a_users_signal_reaches_every_worker_and_ends_nothing(tmp_path, is_plain):
    program = HERE / "signal_launcher.py"
    if is_plain:
        completed = mpirun(3, program, "SIGUSR2", tmp_path, preloaded="")  # a child of the launcher's
    else:
        completed = coarse_run(program, "SIGUSR1", tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["[2.0, 2.0, 2.0]"] * 2


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("raise", 1, "MPI rank 1 ended with status 1 before coarse.init()"),
        pytest.param("exit 5", 5, "MPI rank 1 ended with status 5 before coarse.init()", marks=pytest.mark.test_all),
        pytest.param("exit 0", 1, "MPI rank 1 ended with status 0 before coarse.init()", marks=pytest.mark.test_all),
        ("kill itself", 137, "MPI rank 1 was killed by signal 9 before coarse.init()"),
        pytest.param("kill its watcher", 1, "MPI rank 1 was ended before coarse.init()", marks=pytest.mark.test_all),
        ("kill a device", 137, "MPI rank 2 was killed by signal 9"),
        pytest.param("exit late", 7, "MPI rank 1 ended with status 7 before coarse.init()", marks=pytest.mark.test_all),
    ],
)
def test_a_rank_that_ends_before_init_ends_coarse_run(tmp_path, how, status, words):
    completed = coarse_run(HERE / "ended_before_init.py", how, tmp_path)
    assert words in completed.stderr
    assert completed.returncode == status
    ranks = [int(path.read_text()) for path in tmp_path.glob("pid*")]
    assert len(ranks) == 2
    assert not running(ranks)
    ended_s = float((tmp_path / "ended").read_text())
    assert time.perf_counter() - ended_s < IN_TIME_S + TO_END_S


@pytest.mark.parametrize("how", ["never", pytest.param("one is late", marks=pytest.mark.test_all)])
def test_a_script_that_never_calls_init_runs_to_its_end_and_is_told_that_each_worker_was_alone(tmp_path, how):
    completed = coarse_run(HERE / "ended_before_init.py", how, tmp_path)
    assert completed.returncode == 1
    assert "The 2 workers ran the script each by itself: call coarse.init()" in completed.stderr
    assert completed.stdout.count("the end\n") == 2
    assert "no worker has called coarse.init(); the memory devices end" in completed.stderr


def test_workers_may_start_mpi_before_they_call_init(tmp_path):
    completed = coarse_run(HERE / "ended_before_init.py", "MPI first", tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("the end\n") == 2


def test_a_start_that_all_ranks_refuse_is_shown_once_with_its_rank(tmp_path):
    completed = coarse_run(HERE / "ended_before_init.py", "wrong config", tmp_path)
    assert completed.returncode == 1
    assert completed.stderr.count("Traceback") == 1
    assert "coarse: MPI rank 0 raised ConfigError\n" in completed.stderr
    for rank in (1, 2):
        assert f"coarse: MPI rank {rank} raised ConfigError, as rank 0 shows" in completed.stderr


def test_coarse_run_takes_a_partition_table_in_which_devices_stand_between_workers(tmp_path):
    roles = ("worker", "memory_device", "worker")
    (tmp_path / "table.toml").write_text(
        "".join(f'[[rank]]\nrank = {rank}\nrole = "{role}"\n' for rank, role in enumerate(roles))
    )
    (tmp_path / "coarse.toml").write_text('partition = "table.toml"')
    completed = coarse_run(HERE / "shut_down.py", options=["--config", str(tmp_path / "coarse.toml")])
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("refused\n") == 2


HANGS = ("sleeps", "loops", "holds the GIL", "is stopped")


def test_a_rank_that_fails_ends_the_job_whatever_the_others_do(tmp_path):
    """Of all ways at once: what a job waits for costs no core, but for the loop."""
    commands = {how: run_command(HERE / "hanging_rank.py", how, tmp_path) for how in HANGS}
    jobs = {how: subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for how, command in commands.items()}
    for how, job in jobs.items():
        _, errors = job.communicate(timeout=60)
        assert job.returncode == 1, errors
        assert errors.count("Traceback") == 1, errors
        assert "coarse: MPI rank 0 raised StallError" in errors
        raised_s = float((tmp_path / f"{how} raised").read_text())
        assert time.perf_counter() - raised_s < 2 * LAUNCHER_S, errors
        assert not running(int((tmp_path / f"{how} {rank}").read_text()) for rank in range(2))


def test_nothing_outlives_a_launcher_that_is_killed_coarse_run_or_plain_mpirun(tmp_path):
    """Of both at once."""
    program = (str(HERE / "hanging_rank.py"), "sleeps")
    four = [AppContext(num_ranks=4, command=(sys.executable, *program, str(tmp_path / "plain"), "--nobody raises"))]
    found = mpirun_beside(sys.executable, os.environ)
    plain = mpirun_argv(found, four, exports={}, as_root=os.geteuid() == 0, fault_tolerant=False)
    commands = {"run": run_command(*program, tmp_path / "run", "--nobody raises"), "plain": plain}
    for folder in commands:
        (tmp_path / folder).mkdir()
    launchers = {folder: subprocess.Popen(command) for folder, command in commands.items()}
    started = [pid for folder in commands for pid in pids_of(tmp_path / folder, "sleeps")]
    for launcher in launchers.values():
        started += [process.pid for process in psutil.Process(launcher.pid).children(recursive=True)]
        launcher.kill()
        launcher.wait()
    until_s = time.perf_counter() + LAUNCHER_S
    while (left := running(started)) and time.perf_counter() < until_s:
        signal.sigtimedwait([], 0.05)
    commands_left = [psutil.Process(pid).cmdline() for pid in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not commands_left


def pids_of(folder: Path, how: str) -> list[int]:
    """The workers' process ids, once they have written them."""
    files = [folder / f"{how} {rank}" for rank in range(2)]
    until_s = time.perf_counter() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.perf_counter() < until_s
        signal.sigtimedwait([], 0.05)
    return [int(file.read_text()) for file in files]


def test_workers_find_their_place_in_torchs_variables_without_a_home_and_get_a_colon_as_an_argument(tmp_path):
    two_and_two = ["--workers", "2", "--devices", "2"]
    command = run_command(HERE / "torchs_variables.py", tmp_path, ":", "a", options=two_and_two)
    completed = complete(["env", "-u", "HOME", "-u", "USER", *command])
    assert completed.returncode == 0, completed.stderr
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.iterdir())]
    for rank, told in enumerate(found):
        port = told.pop("MASTER_PORT")
        assert told.pop("arguments") == [":", "a"]
        assert 1024 <= int(port) < 65536
        assert told == {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
        }  # fmt: skip


def test_a_worker_may_start_jobs_of_its_own(monkeypatch):
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")  # for an mpirun of the script's
    completed = coarse_run(HERE / "nested.py", "starts two")
    assert completed.returncode == 0, completed.stderr
    own = ["worker 0 of 1, 2 devices", "worker 0 of 2, 1 devices", "worker 1 of 2, 1 devices"]
    by_mpirun = ["worker 0 of 2, 1 devices", "worker 1 of 2, 1 devices"]
    assert sorted(completed.stdout.splitlines()) == sorted(own + by_mpirun)
    assert not completed.stderr


UNUSED = "coarse: no worker has called coarse.init(); the memory devices end\n"


@pytest.mark.parametrize(
    ("how", "remark"),
    [
        ("plain", UNUSED),
        *(
            pytest.param(how, UNUSED, marks=pytest.mark.test_all)
            for how in ("is executed anew", "runs in a child", "starts MPI itself", "finalizes", "was looked for")
        ),
        pytest.param("joins", "", marks=pytest.mark.test_all),
        ("joins and finalizes", ""),
    ],
)
def test_comm_world_of_a_script_is_the_workers_and_mpi_ends_with_or_without_coarse(how, remark):
    completed = coarse_run(HERE / "own_world.py", how)
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == remark
    assert sorted(completed.stdout.splitlines()) == ["worker 0 ends", "worker 1 ends"]


def test_interpreters_that_a_worker_starts_are_no_ranks():
    completed = coarse_run(HERE / "child_interpreters.py")
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    assert sorted(completed.stdout.splitlines()) == ["worker 0 ends", "worker 1 ends"]


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("raises", 1, "coarse: MPI rank 1 raised ArithmeticError"),
        pytest.param("hooks", 1, "coarse: MPI rank 1 raised ArithmeticError", marks=pytest.mark.test_all),
        pytest.param(
            "finalizes and joins", 1, "the script has ended MPI (MPI.Finalize), which cannot start again",
            marks=pytest.mark.test_all,
        ),
        ("aborts", 5, "MPI rank 1 ended with status 5"),
        ("one leaves", 1, "MPI rank 1 ended with status 0 before MPI_Init, where ranks [0] wait"),
        pytest.param(
            "one stays", 1, "MPI rank 1 ended with status 0 before coarse.init(), where ranks [0] wait",
            marks=pytest.mark.test_all,
        ),
    ],
)
def test_a_worker_that_leaves_others_in_mpi_ends_the_job(how, status, words):
    began_s = time.perf_counter()
    completed = coarse_run(HERE / "own_world.py", how)
    assert completed.returncode == status, completed.stderr
    assert words in completed.stderr
    assert ("my hook" in completed.stdout) is (how == "hooks")
    assert time.perf_counter() - began_s < IN_TIME_S + LAUNCHER_S


@pytest.mark.test_all
def test_a_sitecustomize_of_the_users_own_runs_and_may_fail(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("from mpi4py import MPI\nprint('mine')\nraise ValueError('broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    completed = coarse_run(HERE / "own_world.py", "plain")
    assert completed.returncode == 0, completed.stderr
    assert "ValueError: broken" in completed.stderr
    assert completed.stdout.count("worker") == 2
    assert "mine" in completed.stdout


@pytest.mark.parametrize(
    ("how", "options", "backend", "remark"),
    [
        pytest.param("gloo", TWO_AND_ONE, "gloo", UNUSED, marks=pytest.mark.test_all),
        pytest.param("gloo by a store", TWO_AND_ONE, "gloo", UNUSED, marks=pytest.mark.test_all),
        pytest.param("any", TWO_AND_ONE, "coarse", "", marks=pytest.mark.test_all),
        ("gloo", (*TWO_AND_ONE, "--replaces", "nccl,gloo"), "coarse", ""),
    ],
)
def test_a_script_of_torchs_own_runs_by_its_backend_or_by_coarse(how, options, backend, remark):
    completed = coarse_run(HERE / "torchs_world.py", how, options=options)
    assert completed.returncode == 0, completed.stderr
    for line in completed.stdout.splitlines():
        assert f"cpu:{backend}" in line
    assert completed.stdout.count("cpu:") == 2
    assert UNUSED in completed.stderr if remark else UNUSED not in completed.stderr


def test_under_plain_mpirun_workers_have_a_communicator_of_their_own():
    completed = mpirun(4, HERE / "shared_world.py")
    assert completed.returncode == 0, completed.stderr
    assert sorted(completed.stdout.splitlines()) == ["worker 0 ends", "worker 1 ends"]


ALLOCATION = {
    "SLURM_JOBID": "7",
    "SLURM_JOB_ID": "7",
    "SLURM_NODELIST": "elsewhere[1-2]",
    "SLURM_JOB_NODELIST": "elsewhere[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}


def test_ranks_of_one_machine_listen_to_no_network_and_are_on_no_other_node_of_an_allocation(monkeypatch):
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    completed = coarse_run(HERE / "listening.py")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "[]\n"
    assert "all ranks are on this machine, one of the 2 nodes of the allocation" in completed.stderr


def run_command(program: Path | str, *args: object, options: Sequence[str] = TWO_AND_ONE) -> list[str]:
    """The command line of `coarse run`."""
    return [sys.executable, "-m", "coarse", "run", *options, str(program), *map(str, args)]


def coarse_run(program: Path, *args: object, options: Sequence[str] = TWO_AND_ONE) -> Completed:
    """Run a program by `coarse run`."""
    return complete(run_command(program, *args, options=options))


def test_a_launcher_that_outlives_its_last_rank_is_ended(tmp_path, monkeypatch):
    """The rank ends once two looks were taken at it; its launcher would go on for ever."""
    monkeypatch.setattr(launch, "_POLL_S", 0.05)
    looks = []

    def look(pid):
        found = has_children(pid)
        looks.append(found)
        if sum(looks) == 2:
            (tmp_path / "seen").touch()
        return found

    monkeypatch.setattr(launch, "has_children", look)
    rank = f"until [ -e {tmp_path}/seen ]; do sleep 0.01; done"
    launcher = tmp_path / "mpirun"
    launcher.write_text(
        f"#!{sys.executable}\nimport signal, subprocess\nsubprocess.run(['sh', '-c', '{rank}'])\nsignal.pause()\n"
    )
    launcher.chmod(0o755)
    with MpirunJob([str(launcher)], os.environ) as job:
        assert job.wait() == 128 + signal.SIGKILL


def test_a_command_that_goes_on_after_its_children_is_left_alone(monkeypatch):
    """A program in one process may start others while it is imported; that they have ended says nothing of it."""
    monkeypatch.setattr(launch, "_POLL_S", 0.02)
    program = "import subprocess, time; subprocess.run(['sleep', '0.3']); time.sleep(1.0)"
    with MpirunJob([sys.executable, "-c", program], os.environ) as job:
        assert job.wait() == 0


def test_what_a_killed_mpirun_of_the_same_number_left_keeps_none_from_starting(tmp_path):
    """Numbers of processes come again; left here as if by one that had whichever of the next numbers this has."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    with subprocess.Popen(["true"]) as last:
        pass
    for number in range(last.pid + 1, last.pid + 500):
        (tmp_path / f"ompi.{number % most}").mkdir()
        (tmp_path / f"ompi.{number % most}" / f"pmix.{os.uname().nodename}.tool").touch()
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    found = mpirun_beside(sys.executable, environ)
    job = AppContext(num_ranks=1, command=("true",))
    argv = mpirun_argv(found, [job], exports={}, as_root=os.geteuid() == 0, fault_tolerant=False)
    with MpirunJob(argv, environ) as running:
        assert running.wait() == 0
