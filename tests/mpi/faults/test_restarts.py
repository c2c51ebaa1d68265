"""A job whose processes die, is started again, and ends with the bits of one that nobody disturbed."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.launch import Completed, complete, mpirun

HERE = Path(__file__).parent
PROGRAM = HERE / "training.py"
STEPS = 12


def coarse_run(folder: Path, *words: str, options: tuple[str, ...] = (), **environ: str) -> Completed:
    """The program under `coarse run`."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "coarse", "run", "--workers", "2", "--devices", "1", *options, str(PROGRAM)]
    with pytest.MonkeyPatch.context() as patched:
        if not environ:
            patched.delenv("OMP_NUM_THREADS", raising=False)  # libraries choose, forked ranks' as others'
        for name, value in environ.items():
            patched.setenv(name, value)
        return complete([*command, words[0], str(folder), *words[1:]], timeout_s=120)


def digests(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Digests of an undisturbed run, by mode."""
    known: dict[str, list[str]] = {}

    def of(mode: str, **environ: str) -> list[str]:
        key = f"{mode}{environ}"
        if key not in known:
            folder = tmp_path_factory.mktemp("quiet")
            done = coarse_run(folder, mode, **environ)
            assert done.returncode == 0, done.stderr
            known[key] = digests(folder)
            assert len(known[key]) == 2
        return known[key]

    return of


SOME = {"worker:1": None, "device:5": 4, "mpirun:9": 8}
"""By what is killed and when, the step that is gone on from; None: there was no commit."""
ALL = {"worker:1": None, "worker:3": 2, "device:5": 4, "watcher:7": 6, "importer:8": 7, "mpirun:9": 8, "worker:12": 11}


@pytest.mark.parametrize("kinds", [SOME, pytest.param(ALL, marks=pytest.mark.test_all)], ids=["some", "all"])
def test_whatever_is_killed_the_bits_are_the_same(quiet, tmp_path, kinds):
    done = coarse_run(tmp_path, "coarse", *kinds, options=("--restarts", "9"))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path) == quiet("coarse")
    assert done.stderr.count("the job starts again") == len(kinds), done.stderr
    steps = [int(step) for step in re.findall(r"went on from step (\d+); seconds: noticed", done.stderr)]
    wanted = [step for step in kinds.values() if step is not None]
    assert steps == [step for step in wanted if step in steps], done.stderr  # mpirun may die before it passes one on


@pytest.mark.test_all
def test_a_worker_that_stops_for_ever_is_killed_and_the_job_goes_on(quiet, tmp_path):
    config = tmp_path / "short.toml"
    config.write_text("stall_timeout_s = 4\n")
    done = coarse_run(tmp_path / "out", "coarse", "stops:6", options=("--restarts", "1", "--config", str(config)))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == quiet("coarse")
    assert "raised an error; the job starts again, 1 of 1" in done.stderr


@pytest.mark.test_all
def test_an_exception_before_the_first_commit_ends_the_job(tmp_path):
    done = coarse_run(tmp_path, "coarse", "raises:1", options=("--restarts", "5"))
    assert done.returncode == 1
    assert "ArithmeticError: broken" in done.stderr
    assert "raised an error before the first commit; the job ends" in done.stderr
    assert "starts again" not in done.stderr


@pytest.mark.test_all
def test_the_same_exception_twice_at_one_step_ends_the_job(tmp_path):
    done = coarse_run(tmp_path, "coarse", "raises:4", "raises:4", "raises:4", options=("--restarts", "5"))
    assert done.returncode == 1
    assert done.stderr.count("the job starts again") == 1
    assert "raised an error, again at the same step; the job ends" in done.stderr


@pytest.mark.test_all
@pytest.mark.parametrize("mode", ["fcdp", "fsdp", "hybrid", "zeropp", "odc"])
def test_sharded_models_go_on(quiet, tmp_path, mode):
    done = coarse_run(tmp_path, mode, "worker:3", "device:7", options=("--restarts", "2"))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path) == quiet(mode)


@pytest.mark.test_all
@pytest.mark.parametrize("mode", ["luwu", "luwu in memory"])
def test_a_model_in_the_network_carries_all_else(quiet, tmp_path, mode):
    kinds = ("worker:3", "device:7", "mpirun:9", "worker:11")
    done = coarse_run(tmp_path / "out", mode, *kinds, options=("--restarts", "4"))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == quiet("luwu")
    assert "begins anew" not in done.stderr
    assert done.stderr.count("the job starts again") == len(kinds), done.stderr


@pytest.mark.test_all
def test_accumulation_scaling_and_validation_go_on(quiet, tmp_path):
    kinds = ("worker:2", "validation:0", "worker:4", "validation:1")
    done = coarse_run(tmp_path, "accumulated", *kinds, options=("--restarts", "4"))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path) == quiet("accumulated")
    assert done.stderr.count("the job starts again") == len(kinds), done.stderr


@pytest.mark.test_all
def test_batches_that_processes_read_come_again(quiet, tmp_path):
    done = coarse_run(tmp_path, "coarse", "worker:3", "worker:9", options=("--restarts", "2"), READERS="2")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path) == quiet("coarse", READERS="2")


def test_a_folder_carries_states_from_one_mpirun_to_the_next(quiet, tmp_path):
    (tmp_path / "out").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'partition = "2:1"\n[faults]\nmemory = "folder:{tmp_path / "kept"}"\n')
    environ = {"COARSE_CONFIG": str(config), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    words = ("coarse", tmp_path / "out", "worker:5")
    died = mpirun(3, PROGRAM, *words, env={**environ, "START": "0"}, preloaded="torch")
    assert died.returncode != 0
    assert not digests(tmp_path / "out")
    done = mpirun(3, PROGRAM, *words, env={**environ, "START": "1"}, preloaded="torch")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == quiet("coarse", OMP_NUM_THREADS="1")
    three = {**environ, "COARSE_PARTITION": "3:1", "COARSE_POLICY": "devices"}
    others = mpirun(4, PROGRAM, *words, env=three, preloaded="torch")
    assert "StorageError" in others.stderr
    assert "2 workers made the states that are kept, and this job has 3" in others.stderr
    (tmp_path / "kept").chmod(0o755)
    open_to_all = mpirun(3, PROGRAM, *words, env=environ, preloaded="torch")
    assert "name a folder of your own with mode 700" in open_to_all.stderr


def test_a_preempted_job_goes_on_from_disk(quiet, tmp_path):
    """SIGTERM at a step, by the script; what a scheduler sends."""
    out, kept = tmp_path / "out", str(tmp_path / "kept")
    preempted = coarse_run(out, "coarse", "preempted:5", options=("--keep", kept))
    assert preempted.returncode == 75, preempted.stderr
    assert "SIGTERM received; the job has ended" in preempted.stderr
    assert re.search(r"version 4 of the states is in .*/kept", preempted.stderr), preempted.stderr
    done = coarse_run(out, "coarse", options=("--resume", kept))
    assert done.returncode == 0, done.stderr
    assert digests(out) == quiet("coarse")
