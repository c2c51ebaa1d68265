"""When a job is started again, when not, and what is told of it."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from coarse.errors import StorageError
from coarse.launch import restarts
from coarse.launch.mpirun import JobEnd
from coarse.launch.rank_exits import Failure
from coarse.launch.restarts import run_with_restarts
from coarse.launch.state_memory import HeldFiles
from coarse.protocol.endurance import Endurance
from coarse.protocol.place import Anywhere


class Memory:
    """State memory whose versions a test says."""

    told = "/proc/1/fd/7"

    def __init__(self, places: list[Anywhere]) -> None:
        assert len(places) == 2

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    lock = nullcontext()
    files = HeldFiles()

    def lose(self, workers) -> None:
        Memory.lost += [*workers]

    def progress(self) -> tuple[int, int]:
        return self.versions()

    def versions(self) -> tuple[int, int]:
        return (Memory.version, Memory.version)

    version = 0
    lost: ClassVar[list[int]] = []


class Copies:
    """A folder with a copy of a version that a test says, 0 for none."""

    version = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        pass

    def write(self, memory: Memory) -> int:
        return 0

    def read(self, memory: Memory, num_workers: int) -> tuple[int, list[str]]:
        if not Copies.version:
            raise StorageError("no whole copy")
        return Copies.version, []


def end(status: int, failure: Failure | None = None, *, was_asked: bool = False) -> JobEnd:
    return JobEnd(status=status, said="", was_asked=was_asked, failure=failure, noticed_s=0.1, ended_s=0.2)


KILLED = end(137, Failure(1, -9, None))
ENDED = end(137)
RAISED = end(1, Failure(0, 1, 77))
OTHER = end(1, Failure(1, 1, 78))
STALLED = end(1, Failure(0, 1, 0))
EXITED = end(3, Failure(0, 3, None))
WELL = end(0)


@pytest.fixture
def run(monkeypatch):
    """Runs a job whose starts end as said, with versions recorded by then; returns its status, what starts were told,
    and what the user was."""
    monkeypatch.setattr(restarts, "HeldMemory", Memory)
    monkeypatch.setattr(restarts, "DiskCopies", Copies)
    monkeypatch.setattr(Memory, "lost", [])
    told: list[str] = []
    monkeypatch.setattr(restarts, "tell", told.append)

    def run_job(*ends: tuple[int, JobEnd], most: int = 9, keep: str | None = None, outlives_nodes: bool = True):
        waiting, seen = list(ends), []

        def attempt(variables, forked_at, end_others):
            seen.append(variables)
            Memory.version, ended = waiting.pop(0)
            return ended

        endures = Endurance(restarts=most, cold=True, keep=keep)
        status = run_with_restarts(attempt, [Anywhere()] * 2, endures, {}, outlives_nodes=outlives_nodes)
        assert not waiting
        return status, seen, told

    return run_job


def test_a_death_starts_the_job_again_whether_something_was_committed_or_not(run):
    status, seen, told = run((0, KILLED), (4, ENDED), (9, WELL))
    assert status == 0
    assert [each["COARSE_RESTARTS"] for each in seen] == ["0", "1", "2"]
    assert {each["COARSE_STATE_MEMORY"] for each in seen} == {"/proc/1/fd/7"}
    assert {each["PYTHONHASHSEED"] for each in seen} == {"0"}
    assert "COARSE_RESTARTED" not in seen[0]
    assert seen[1]["COARSE_RESTARTED"].startswith("0.1,0.2,")
    assert told == [
        "MPI rank 1 was killed by signal 9; the job starts again, 1 of 9; nothing was committed, so that it begins "
        "anew",
        "mpirun was killed by signal 9; the job starts again, 2 of 9",
    ]


def test_an_exception_is_tried_again_once_at_a_step(run):
    assert run((3, RAISED), (3, OTHER), (5, OTHER), (5, OTHER))[0] == 1
    assert run((3, EXITED), (3, EXITED))[0] == 3


def test_stalls_are_tried_again(run):
    assert run((3, STALLED), (3, STALLED), (3, STALLED), (4, WELL))[0] == 0


@pytest.mark.parametrize("ended", [RAISED, STALLED, EXITED])
def test_a_script_that_fails_before_its_first_commit_is_not_started_again(run, ended):
    status, seen, told = run((0, ended))
    assert (status, len(seen)) == (ended.status, 1)
    assert "before the first commit; the job ends" in told[-1]


def test_so_many_restarts_and_no_more(run):
    status, seen, told = run((1, KILLED), (2, KILLED), (3, KILLED), most=2)
    assert (status, len(seen)) == (137, 3)
    assert told[-1] == "MPI rank 1 was killed by signal 9, and the job was started again 2 times; it ends"


def test_whoever_asks_for_the_end_gets_it(run):
    assert run((5, end(130, KILLED.failure, was_asked=True)))[0] == 130


LOST = replace(end(137, Failure(2, None, None)), lost_nodes=("node2",), lost_workers=(1,))


def test_states_in_a_pool_outlive_their_node(run):
    status, _, told = run((7, LOST), (9, WELL))
    assert (status, Memory.lost) == (0, [])
    assert told == ["node2 was lost; the job starts again, 1 of 9"]


def test_the_copy_on_disk_is_gone_on_from_where_a_node_is_lost_with_its_memory(run, monkeypatch):
    monkeypatch.setattr(Copies, "version", 4)
    status, _, told = run((7, LOST), (9, WELL), keep="/kept", outlives_nodes=False)
    assert (status, Memory.lost) == (0, [0, 1])
    assert told == [
        "node2 was lost; the job goes on from version 4 of /kept, and 3 committed later are made again; the job starts "
        "again, 1 of 9"
    ]


@pytest.mark.parametrize(("keep", "words"), [(None, "is no copy on disk; give --keep"), ("/kept", "no whole copy")])
def test_without_memory_and_copy_the_job_ends(run, keep, words):
    status, seen, told = run((7, LOST), keep=keep, outlives_nodes=False)
    assert (status, len(seen)) == (1, 1)
    assert told[-1].startswith("node2 was lost")
    assert words in told[-1]


def test_a_node_that_is_lost_before_the_first_commit_costs_nothing(run):
    status, _, told = run((0, LOST), (9, WELL), outlives_nodes=False)
    assert (status, Memory.lost) == (0, [1])
    assert told == ["node2 was lost; the job starts again, 1 of 9; nothing was committed, so that it begins anew"]
