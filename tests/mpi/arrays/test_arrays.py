"""push and pull of numpy arrays, live, on several layouts of workers and memory devices."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from coarse.protocol.units import GIB
from coarse.storage.region import available_bytes
from tests.mpi.arrays.array_claims import CLAIMS
from tests.support.claims import read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent
RING = 'collective = "ring"\n'
TINY_SHARDS = '[routing]\npolicy = "fixed"\nthreshold_bytes = 1000\npartition_bytes = 2048\n'


def nodes(*roles_by_node: tuple[str, ...]) -> str:
    """A partition table that splits this host: for each node the roles of its ranks."""
    table, rank = "", 0
    for number, roles in enumerate(roles_by_node):
        for role in roles:
            table += f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "node{number}"\n'
            rank += 1
    return table


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a job is laid out: ranks, those that are workers, and its configuration as TOML."""

    num_ranks: int
    num_workers: int
    config: str = ""
    partition_table: str = ""


PAIR = ("worker", "memory_device")
LAYOUTS = {
    "one process": Layout(num_ranks=1, num_workers=1),
    "1:1": Layout(num_ranks=2, num_workers=1),
    "2:2": Layout(num_ranks=4, num_workers=2),
    "2:1, tiny shards": Layout(num_ranks=3, num_workers=2, config=TINY_SHARDS),
    "4:2": Layout(num_ranks=6, num_workers=4, config='partition = "4:2"\n'),
    "2:3": Layout(num_ranks=5, num_workers=2, config='partition = "2:3"\n'),
    "3:1": Layout(num_ranks=4, num_workers=3, config='partition = "3:1"\n'),
    "ring 2:2": Layout(num_ranks=4, num_workers=2, config=RING),
    "ring 4:3": Layout(
        num_ranks=7, num_workers=4, config='partition = "4:3"\nnum_sync_groups = 3\n' + RING
    ),
    "ring 2:2, tiny shards": Layout(num_ranks=4, num_workers=2, config=RING + TINY_SHARDS),
    "dense 2:2": Layout(num_ranks=4, num_workers=2, config='mode = "dense"\n'),
    "two nodes": Layout(num_ranks=4, num_workers=2, partition_table=nodes(PAIR, PAIR)),
    "uneven nodes": Layout(
        num_ranks=7,
        num_workers=4,
        partition_table=nodes(("worker", *PAIR), ("worker", *PAIR, "memory_device")),
    ),
    "both roles": Layout(num_ranks=2, num_workers=2, partition_table=nodes(("both", "worker"))),
    "both roles on two nodes": Layout(
        num_ranks=3, num_workers=3, partition_table=nodes(("both", "worker"), ("both",))
    ),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    layout = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("layout")
    config = "stall_timeout_s = 20\n" + layout.config
    if layout.partition_table:
        (folder / "partition.toml").write_text(layout.partition_table)
        config = 'partition = "partition.toml"\n' + config
    (folder / "config.toml").write_text(config)
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    completed = mpirun(layout.num_ranks, HERE / "array_claims.py", folder, env=environ)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, layout.num_workers)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.mark.slow
@pytest.mark.parametrize(("way", "num_ranks"), [("in_device_memory", 3), ("copied", 1)])
def test_a_tensor_may_be_larger_than_2_gib(way, num_ranks):
    if available_bytes() < 8 * GIB:  # now, not when tests were collected
        pytest.skip("needs 8 GiB of memory")
    completed = mpirun(num_ranks, HERE / "large_arrays.py", way, timeout_s=120)
    assert completed.returncode == 0, completed.stderr
