"""`make test` leaves out the tests marked `test_all` and most layouts; `make test-all` takes them by --test-all.

Files that take longest come first. Each run ends with the ten that took longest, and their seconds: what a change adds
is seen there. So are the seconds of each room, which CONTRIBUTING.md keeps.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support import claims

# Threads of OpenMP wait for one another by spinning: two thirds of the processor time of torch's jobs, which have more
# ranks than there are cores. Read when torch is imported, here and in whatever tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).parent
LONGEST = (
    "mpi/tf/test_training.py",
    "mpi/failures/test_launch.py",
    "mpi/odc/test_odc.py",
    "mpi/cluster/test_cluster.py",
    "mpi/tf/test_bad_input.py",
    "mpi/sharding/test_sharding.py",
    "mpi/experiments/test_finetune.py",
    "mpi/torch/test_torch.py",
    "mpi/torch/test_torchrun.py",
    "mpi/tf/test_data.py",
    "mpi/experiments/test_keras.py",
    "mpi/luwu/test_network.py",
    "mpi/arrays/test_snapshot.py",
    "mpi/arrays/test_arrays.py",
    "mpi/emulation/test_emulated.py",
    "unit/proxy/paged/test_hosts.py",
    "mpi/failures/test_late_start.py",
    "mpi/luwu/test_training.py",
    "mpi/failures/test_bad_input.py",
    "mpi/emulation/test_profiling.py",
    "mpi/docs/test_tutorial.py",
    "mpi/arrays/test_pool.py",
    "mpi/tf/test_keras_claims.py",
    "mpi/emulation/test_prototype.py",
    "mpi/luwu/test_resume.py",
    "mpi/sharding/test_gpu_sharding.py",
    "mpi/arrays/test_memory_places.py",
    "unit/transport/many_to_one/test_model.py",
    "unit/cli/test_sweep.py",
    "mpi/docs/test_tf_page.py",
    "mpi/drivers/test_conformance.py",
    "mpi/arrays/test_collectives.py",
    "unit/proxy/paged/test_all_reduce.py",
    "mpi/torch/test_gpu_torch.py",
)
"""Files in descending order of their time, so that no core ends with a long one while the other has nothing left."""

NUM_SLOWEST = 10
FEW_S = 10.0
"""Runs whose tests take less in all name no files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-all", action="store_true", help="run the tests marked test_all and every layout")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--test-all"):
        os.environ[claims.TAKES_ALL] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
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
