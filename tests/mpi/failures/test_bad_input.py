"""Bad input and deaths: an error that says enough, in time, on every rank; never a hang, nothing left."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mpi.failures.misuse_claims import CLAIMS
from tests.support.claims import IN_TIME_S, read_reports
from tests.support.launch import REPOSITORY, mpirun, running
from tests.support.layouts import parameters

HERE = Path(__file__).parent
SUPPORT = REPOSITORY / "tests" / "support"
TWO_NODES = "".join(
    f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "node{rank // 2}"\n'
    for rank, role in enumerate(("worker", "memory_device") * 2)
)
TWO_NODES_OF_THREE = "".join(
    f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "node{min(rank, 1)}"\n'
    for rank, role in enumerate(("both", "worker", "memory_device"))
)
DEVICES, WORKERS = (2, 3), (0, 1)
LAYOUTS = {"one node": ("2:2", 4), "one device": ("2:1", 3), "two nodes": (TWO_NODES, 4)}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The error that one rank got."""

    waited_s: float
    kind: str
    dead_rank: int | None
    text: str


def reports_of(folder: Path) -> dict[int, Report]:
    """By MPI rank, what each wrote."""
    found = {}
    for path in sorted(folder.glob("rank*.json")):
        rank = int(path.stem.removeprefix("rank"))
        found[rank] = Report(**json.loads(path.read_text()))
    return found


def environ_of(layout: str, folder: Path) -> tuple[dict[str, str], int]:
    """The environment that chooses a layout, and how many ranks it has."""
    partition, num_ranks = LAYOUTS[layout]
    if partition.startswith("[["):
        (folder / "partition.toml").write_text(partition)
        partition = str(folder / "partition.toml")
    return {"COARSE_PARTITION": partition}, num_ranks


def nobody_runs(folder: Path) -> bool:
    return not running(int(path.read_text()) for path in folder.glob("pid*"))


# --- misuse that a job survives


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    folder = tmp_path_factory.mktemp("misuse")
    environ, num_ranks = environ_of(request.param, folder)
    completed = mpirun(num_ranks, HERE / "misuse_claims.py", folder, env=environ)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 2)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.mark.parametrize("partition", parameters(["2:1", "2:2"], {"2:2"}))
def test_a_worker_that_leaves_early_waits_for_nobody_and_gives_back_what_it_opened(partition):
    num_ranks = sum(map(int, partition.split(":")))
    completed = mpirun(num_ranks, HERE / "leaves_early.py", env={"COARSE_PARTITION": partition})
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("left") == 2


def test_every_call_after_shutdown_is_refused():
    completed = mpirun(2, HERE / "shut_down.py")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "refused\n"


# --- starts that are refused


REFUSALS = {
    "unknown key": (
        "stal_timeout_s = 1",
        "ConfigError",
        ["unknown key.config:1", "'stal_timeout_s'", "stall_timeout_s"],
    ),
    "wrong value": ("\nmode = 7", "ConfigError", ["wrong value.config:2", "mode must be", "got 7"]),
    "not toml": ("mode = ", "ConfigError", ["not toml.config:1", "not TOML"]),
    "too few ranks": (
        'partition = "2:2"',
        "ConfigError",
        ["2 workers and 2 memory devices", "3 ranks"],
    ),
    "no device": ('partition = "worker,worker,worker"', "ConfigError", ["no memory device"]),
    "no partition": (
        'partition = "absent.toml"',
        "ConfigError",
        ["absent.toml", "cannot be read"],
    ),
    "wrong partition": (
        'partition = "wrong.toml"',
        "ConfigError",
        ["wrong.toml:3", "role must be", "'proxy'"],
    ),
    "too large": (
        "device_capacity_bytes = 1_000_000_000_000",
        "CapacityError",
        ["1000000000000 bytes", "this machine has", "lower device_capacity_bytes"],
    ),
    "far proxy": (
        '[routing]\npolicy = "fixed"\nthreshold_bytes = 1\npartition_bytes = 1\nlatency_proxy = 5',
        "ConfigError",
        ["latency_proxy", "(0,)", "got 5"],
    ),
    "dense on two nodes": (
        'mode = "dense"\npartition = "two_nodes.toml"',
        "ConfigError",
        ["one node, got 2", "no coherent link", 'use mode "coarse"'],
    ),
    "differing": (
        "",
        "ConfigError",
        ["stall_timeout_s is 6.0 on rank 1 but 5.0 on rank 0", "give all ranks the same"],
    ),
    "a variable on one rank": (
        "",
        "ConfigError",
        ["COARSE_MODE is not set on ranks [0, 2] and 'allreduce' on ranks [1]", "mpirun -x COARSE_MODE"],
    ),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """For each configuration, the error of every rank: one job that tries all starts."""
    folder = tmp_path_factory.mktemp("starts")
    (folder / "two_nodes.toml").write_text(TWO_NODES_OF_THREE)
    (folder / "wrong.toml").write_text('[[rank]]\nrank = 0\nrole = "proxy"\n')
    for name, (config, _, _) in REFUSALS.items():
        (folder / name).mkdir()
        if config:
            (folder / f"{name}.config").write_text(config)
    completed = mpirun(3, SUPPORT / "refused_start.py", folder)
    assert completed.returncode == 0, completed.stderr
    return {name: reports_of(folder / name) for name in REFUSALS}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_start_that_cannot_be_is_refused_on_every_rank(refusals, name):
    _, kind, words = REFUSALS[name]
    assert refusals[name].keys() == {0, 1, 2}
    for report in refusals[name].values():
        assert report.kind == kind
        assert report.waited_s < IN_TIME_S
        assert not [word for word in words if word not in report.text], report.text


def test_an_mpi_that_takes_calls_of_one_thread_alone_is_refused_on_every_rank(tmp_path):
    completed = mpirun(2, HERE / "serialized_mpi.py", tmp_path)
    assert completed.returncode == 0, completed.stderr
    for rank, report in reports_of(tmp_path).items():
        assert report.kind == "UnsupportedError"
        assert "MPI was started with MPI_THREAD_SERIALIZED" in report.text, rank


def test_a_start_that_fails_on_one_rank_alone_ends_the_job():
    completed = mpirun(3, HERE / "failed_start.py")
    assert completed.returncode != 0
    assert "out of file descriptors" in completed.stderr


# --- ranks that die


@pytest.mark.parametrize(
    ("layout", "victim", "name"),
    [
        ("one node", 1, "worker 1 (MPI rank 1) died"),
        pytest.param("one node", 2, "memory device 0 (MPI rank 2) died", marks=pytest.mark.test_all),
        ("one node", 3, "memory device 1 (MPI rank 3) died"),
        ("one device", 0, "worker 0 (MPI rank 0) died"),
        ("two nodes", 0, "worker 0 (MPI rank 0) died"),
        ("two nodes", 3, "memory device 1 (MPI rank 3) died"),
    ],
)
def test_under_ulfm_every_survivor_names_the_rank_that_died(tmp_path, layout, victim, name):
    environ, num_ranks = environ_of(layout, tmp_path)
    mpirun(num_ranks, HERE / "killed_rank.py", tmp_path, victim, env=environ, ulfm=True)
    found = reports_of(tmp_path)
    workers = {0, 2} if layout == "two nodes" else {0, 1}
    assert found.keys() == workers - {victim}
    for report in found.values():
        assert report.kind == "DeadRankError"
        assert report.dead_rank == victim
        assert name in report.text
        assert "snapshot" in report.text
        assert report.waited_s < IN_TIME_S
    assert nobody_runs(tmp_path)


def test_under_plain_mpirun_a_death_ends_the_job_and_nobody_else_is_accused(tmp_path):
    completed = mpirun(4, HERE / "computing.py", tmp_path)
    assert completed.returncode != 0
    assert "rank 3" in completed.stderr
    # mpirun kills survivors at once after it asks them to end: not all have the time for last words
    for words in [line for line in completed.stderr.splitlines() if "ends because" in line]:
        assert "memory device 1 (MPI rank 3) died" in words
    assert nobody_runs(tmp_path)


def test_a_survivor_that_is_asked_to_end_prints_who_died(tmp_path):
    completed = mpirun(4, HERE / "computing.py", tmp_path, "ask to end", ulfm=True)
    for rank in WORKERS:
        assert f"MPI rank {rank} ends because rank {rank}: memory device 1 (MPI rank 3) died" in completed.stderr
    assert nobody_runs(tmp_path)


def test_a_device_that_hangs_is_named_and_no_rank_is_blamed(tmp_path):
    completed = mpirun(4, HERE / "hung_device.py", env={"COARSE_PARTITION": "2:2"})
    assert completed.returncode == 0, completed.stderr
    for rank in WORKERS:
        assert f"rank {rank}: 'shared' was not complete" in completed.stdout
    assert completed.stdout.count("memory device 1 (MPI rank 3) did not answer") == 2
    assert "have not pushed" not in completed.stdout


# --- ranks that end


@pytest.mark.parametrize("ulfm", [False, True])
def test_an_uncaught_exception_is_shown_and_ends_the_job(tmp_path, ulfm):
    completed = mpirun(4, HERE / "ended_rank.py", "raise", tmp_path, ulfm=ulfm, preloaded="")
    assert completed.returncode != 0
    assert "MPI rank 1 raised" in completed.stderr
    assert "ArithmeticError: the worker is broken" in completed.stderr
    require_prompt_end(tmp_path, "MPI rank 1 raised ArithmeticError: the worker is broken", 1)


@pytest.mark.parametrize(
    ("layout", "how"),
    [
        ("one node", "exit"),
        ("two nodes", "shut down"),
        pytest.param("one node", "shut down", marks=pytest.mark.test_all),
        pytest.param("two nodes", "exit", marks=pytest.mark.test_all),
    ],
)
def test_who_waits_for_a_worker_that_has_left_is_told_at_once(tmp_path, how, layout):
    environ, num_ranks = environ_of(layout, tmp_path)
    completed = mpirun(num_ranks, HERE / "ended_rank.py", how, tmp_path, env=environ, preloaded="")
    assert completed.returncode != 0
    dead_rank = 2 if layout == "two nodes" else 1
    words = f"rank 1 (MPI rank {dead_rank}) has shut down without pushing 'awaited'"
    assert words in completed.stderr
    require_prompt_end(tmp_path, words, dead_rank)


@pytest.mark.parametrize("layout", parameters(["one node", "two nodes"], {"two nodes"}))
def test_who_joins_is_told_at_once_of_a_worker_that_has_left_without(tmp_path, layout):
    environ, num_ranks = environ_of(layout, tmp_path)
    completed = mpirun(num_ranks, HERE / "ended_rank.py", "exit without join", tmp_path, env=environ, preloaded="")
    assert completed.returncode != 0
    dead_rank = 2 if layout == "two nodes" else 1
    require_prompt_end(tmp_path, f"rank 1 (MPI rank {dead_rank}) has shut down without join()", dead_rank)
    assert reports_of(tmp_path).keys() == {0}


@pytest.mark.parametrize("num_ranks", [4, 1])
def test_a_fault_in_a_device_is_shown_and_ends_the_job(tmp_path, num_ranks):
    completed = mpirun(num_ranks, HERE / "ended_rank.py", "fault", tmp_path, preloaded="")
    assert completed.returncode != 0
    assert "ArithmeticError: the sync core is broken" in completed.stderr
    require_prompt_end(tmp_path, "raised ArithmeticError: the sync core is broken", None)


@pytest.mark.parametrize("how", ["interrupt", "interrupt itself"])
def test_an_interrupt_ends_the_job(tmp_path, how):
    completed = mpirun(4, HERE / "ended_rank.py", how, tmp_path, preloaded="")
    assert completed.returncode != 0
    assert " died" not in completed.stderr
    require_prompt_end(tmp_path, "KeyboardInterrupt", 1)


def require_prompt_end(folder: Path, words: str, dead_rank: int | None) -> None:
    """Worker 0 was told in time (or ended by mpirun before), and nobody runs any more."""
    for report in reports_of(folder).values():
        assert report.kind == "DeadRankError"
        assert dead_rank in (None, report.dead_rank)
        assert words in report.text
        assert report.waited_s < IN_TIME_S
    assert nobody_runs(folder)


# --- what is left


@pytest.mark.parametrize("how", ["kill all", "raise", "interrupt"])
def test_nothing_is_left_of_a_job(tmp_path, monkeypatch, how):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = set(Path("/dev/shm").iterdir())
    completed = mpirun(4, HERE / "ended_rank.py", how, tmp_path, preloaded="")
    assert completed.returncode != 0
    assert nobody_runs(tmp_path)
    assert not list(temporary.rglob("*"))
    assert not abandoned(set(Path("/dev/shm").iterdir()) - before)


def test_nothing_is_left_of_a_process_without_mpirun(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = set(Path("/dev/shm").iterdir())
    for how, status in (("kill", -9), ("raise", 1), ("exit", 3), ("end", 0)):
        assert lone(how, tmp_path) == status
        assert not list(temporary.rglob("*"))
        assert not abandoned(set(Path("/dev/shm").iterdir()) - before)


def test_a_rank_that_its_launcher_started_with_others_and_mpi_joined_with_none_is_refused_unless_it_may_be_alone():
    program = """if True:
        import coarse
        try:
            coarse.init()
        except coarse.ConfigError as error:
            print(error)
        coarse.init({"launch": {"alone": True}})
        print(coarse.size())
    """
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=True)
    refused, size = done.stdout.splitlines()
    assert refused.startswith("rank 1: srun started 4 ranks (SLURM_STEP_NUM_TASKS), and MPI (Open MPI ")
    assert "start it by srun --mpi=pmix" in refused
    assert "alone = true in [launch]" in refused
    assert size == "1"


def test_an_error_at_the_prompt_of_the_only_worker_is_shown_and_ends_nothing():
    sums = "print(coarse.push_pull(numpy.ones(1), 'after'), flush=True)"
    program = ("import coarse, numpy", "coarse.init()", "1 / 0", sums)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-i", "-c", ""]
    done = subprocess.run(command, input="\n".join(program), env=environ, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1.]\n"
    assert done.stderr.count("ZeroDivisionError") == 1


def lone(how: str, folder: Path) -> int:
    """The exit status of a process that no launcher started, nor gave a home."""
    command = [sys.executable, str(HERE / "alone.py"), how, str(folder)]
    environ = {name: value for name, value in os.environ.items() if name not in ("HOME", "USER")}
    environ |= {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, env=environ, capture_output=True, timeout=20).returncode


def abandoned(files: set[Path]) -> set[Path]:
    """Those that no process has mapped: other jobs may run on this machine."""
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped += maps.read_text()
        except OSError:  # ended meanwhile
            continue
    return {path for path in files if path.exists() and str(path) not in mapped}
