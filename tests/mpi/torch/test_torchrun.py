"""torchrun starts workers, and the first of them an mpirun with memory devices; nothing of it stays."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.claims import IN_TIME_S
from tests.support.launch import Completed, complete

HERE = Path(__file__).parent
TO_END_S = 20.0
"""How long torchrun, which notices an end after up to five seconds, and the interpreters may take to end."""


def torchrun(tmp_path: Path, how: str, settings: str | None, *, above: tuple[str, ...] = ()) -> Completed:
    """Run the worker's program under torchrun, with a configuration's text or without one; `above` is set before."""
    (tmp_path / "coarse.toml").write_text(settings or "")
    named = () if settings is None else (f"COARSE_CONFIG={tmp_path}/coarse.toml",)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return complete(["env", *named, *above, sys.executable, *torchrun, str(HERE / "torchrun_worker.py"), how])


def left_of(tmp_path: Path) -> list[str]:
    """What still runs of a job that had its configuration in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"COARSE_CONFIG={tmp_path}/coarse.toml" in Path(f"/proc/{process.pid}/environ").read_text():
                found.append(" ".join(process.cmdline()))
        except (OSError, psutil.Error):
            continue
    return found


RANK_OF_MPIRUN = (
    *("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE=1", "PMIX_RANK=0", "PMIX_NAMESPACE=prterun-gone-1@1"),
    *("PMIX_SERVER_URI41=prterun-gone-1@0.0;tcp4://127.0.0.1:1", "PMI_RANK=0", "PMI_SIZE=1"),
)
"""A torchrun may itself be a rank, that of a launcher of MPI."""


@pytest.mark.parametrize(
    ("how", "settings", "above"),
    [
        ("process group", "[launch]\ndevices = 2\n", ()),
        pytest.param("arrays", 'partition = "2:1"\n', RANK_OF_MPIRUN, marks=pytest.mark.test_all),
    ],
)
def test_workers_of_torchrun_are_workers_beside_memory_devices(tmp_path, how, settings, above):
    completed = torchrun(tmp_path, how, settings, above=above)
    assert completed.returncode == 0, completed.stderr
    assert sorted(completed.stdout.split("\n")[:2]) == ["worker 0 ends", "worker 1 ends"]
    assert "coarse:" not in completed.stderr


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "coarse: MPI rank 1 raised ArithmeticError"),
        ("is killed", "DeadRankError: rank 0: worker 1 (MPI rank 1) died"),
        ("dies after 0.0 s", "exitcode  : 5"),  # while placeholders come
        pytest.param("dies after 0.4 s", "exitcode  : 5", marks=pytest.mark.test_all),
        pytest.param("dies after 0.8 s", "exitcode  : 5", marks=pytest.mark.test_all),
    ],
)
def test_a_worker_that_ends_badly_ends_all_that_was_started(tmp_path, how, words):
    began_s = time.perf_counter()
    completed = torchrun(tmp_path, how, "[launch]\ndevices = 2\n")
    assert completed.returncode == 1
    assert words in completed.stderr
    while left := left_of(tmp_path):
        assert time.perf_counter() - began_s < IN_TIME_S + TO_END_S, left


@pytest.mark.parametrize(
    ("how", "settings", "words"),
    [
        ("arrays", None, "2 workers were started without mpirun, and no memory devices beside them; name in"),
        pytest.param(
            "arrays", 'partition = "3:1"\n',
            "torchrun started 2 workers, but the configuration's partition '3:1' has 3", marks=pytest.mark.test_all,
        ),
        ("MPI first", "[launch]\ndevices = 1\n", "the script has imported mpi4py.MPI, so MPI runs in this process"),
        pytest.param(
            "arrays", "[launch]\ndevices = 0\n", "devices must be a whole number of at least 1, got 0",
            marks=pytest.mark.test_all,
        ),
    ],
)
def test_a_start_that_cannot_be_is_explained(tmp_path, how, settings, words):
    completed = torchrun(tmp_path, how, settings)
    assert completed.returncode == 1
    assert words in completed.stderr


def test_one_worker_without_a_configuration_is_alone(tmp_path):
    program = tmp_path / "alone.py"
    program.write_text("import coarse\ncoarse.init()\nassert coarse.size() == 1\nprint('ends')\n")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    completed = complete([sys.executable, *torchrun, str(program)])
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "ends\n"
