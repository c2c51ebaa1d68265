"""`make test` leaves out the tests marked `test_all` and most layouts; `make test-all` takes them by --test-all.

Files that take longest come first, and those whose ranks import the same library are one worker's of pytest-xdist, so
that only one imports it for them. Each run ends with the ten that took longest, and their seconds: what a change adds
is seen there. So are the seconds of each room, which CONTRIBUTING.md keeps.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import claims

# Threads of OpenMP wait for one another by spinning: two thirds of the processor time of torch's jobs, which have more
# ranks than there are cores. Read when torch is imported, here and in whatever tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).parent
LONGEST = (
    "mpi/tf/test_training.py",
    "mpi/failures/test_launch.py",
    "mpi/torch/test_torch.py",
    "mpi/cluster/test_cluster.py",
    "mpi/odc/test_odc.py",
    "mpi/sharding/test_sharding.py",
    "mpi/tf/test_data.py",
    "mpi/torch/test_torchrun.py",
    "mpi/arrays/test_arrays.py",
    "mpi/luwu/test_network.py",
    "mpi/failures/test_bad_input.py",
    "mpi/experiments/test_keras.py",
    "mpi/emulation/test_emulated.py",
    "mpi/arrays/test_snapshot.py",
    "unit/luwu/device/test_hosts.py",
    "mpi/luwu/test_training.py",
    "mpi/tf/test_bad_input.py",
    "mpi/arrays/test_gpu.py",
    "mpi/experiments/test_finetune.py",
    "mpi/docs/test_tutorial.py",
    "unit/luwu/many_to_one/test_model.py",
    "mpi/sharding/test_gpu_sharding.py",
    "mpi/torch/test_gpu_torch.py",
    "unit/cli/test_sweep.py",
    "mpi/luwu/test_resume.py",
    "mpi/emulation/test_prototype.py",
    "unit/luwu/device/test_all_reduce.py",
    "unit/programs/test_programs.py",
    "unit/cli/test_predict.py",
    "mpi/emulation/test_profiling.py",
    "mpi/arrays/test_pool.py",
    "unit/cli/own_model/test_own_model.py",
    "unit/experiments/test_many_to_one.py",
    "mpi/tf/test_keras_claims.py",
    "unit/cli/own_model/test_kineto.py",
)
"""Files in descending order of their time, so that no core ends with a long one while the other has nothing left."""

IMPORTS = {
    "torch": ("mpi/torch/", "mpi/sharding/", "mpi/odc/", "mpi/luwu/", "mpi/experiments/test_finetune.py",
              "mpi/drivers/test_same_", "mpi/strategies/"),
    "tensorflow": ("mpi/tf/", "mpi/experiments/test_keras.py"),
}
"""By library the rooms and files whose ranks are forked from a process that has imported it."""

NUM_SLOWEST = 10
FEW_S = 10.0
"""Runs whose tests take less in all name no files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-all", action="store_true", help="run the tests marked test_all and every layout")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--test-all"):
        os.environ[claims.TAKES_ALL] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class ByLibrary(LoadFileScheduling):
        """Of --dist loadfile: each worker goes through a file, or through all files of a library."""

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return library_of(file.removeprefix("tests/")) or file

    return ByLibrary(config, log) if config.getoption("dist") == "loadfile" else None


def library_of(file: str) -> str:
    """The library that ranks of a file are forked with, by its path below tests; empty: coarse alone."""
    return next((library for library, rooms in IMPORTS.items() if file.startswith(rooms)), "")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what was imported, and nine thousand tests, out of each later search for garbage."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_left_out_of_searches() -> Iterator[None]:
    """Leave what each file of tests has imported and kept out of later searches too: a search of all takes a second."""
    yield
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort: files of a library first, since they are one worker's, and of each kind the longest."""
    places = {name: number for number, name in enumerate(LONGEST)}
    libraries = [*IMPORTS, ""]

    def place(item: pytest.Item) -> tuple[int, int]:
        file = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        return libraries.index(library_of(file)), places.get(file, len(places))

    items.sort(key=place)
    if config.getoption("--test-all"):
        return
    left_out = [item for item in items if item.get_closest_marker("test_all")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("test_all")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds = seconds_by_file(terminalreporter.stats)
    if seconds.total() >= FEW_S:
        terminalreporter.section("slowest files")
        for file, spent_s in seconds.most_common(NUM_SLOWEST):
            terminalreporter.write_line(f"{spent_s:8.1f} s  {file}")
        rooms: Counter[str] = Counter()
        for file, spent_s in seconds.items():
            rooms[room_of(file)] += spent_s
        terminalreporter.write_line("rooms: " + ", ".join(f"{room} {s:.0f} s" for room, s in rooms.most_common()))


def room_of(file: str) -> str:
    """Return the folder below tests/mpi that a file is in, or else the one below tests, or tests itself."""
    parts = Path(file).parent.parts
    return "/".join(parts[1:3] if parts[1:2] == ("mpi",) else parts[1:2] or parts)


def seconds_by_file(stats: dict[str, list[object]]) -> Counter[str]:
    """Return the seconds of all phases of all tests, by their file."""
    seconds: Counter[str] = Counter()
    for reports in stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    return seconds
