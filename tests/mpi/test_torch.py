"""coarse.torch, live: tensors and DistributedOptimizer on several layouts, and with each way to synchronise."""

from dataclasses import dataclass
from importlib import import_module

import pytest

from tests.mpi.claims import read_reports, require_held
from tests.mpi.launch import mpirun
from tests.mpi.programs.torch_claims import NAMES

TRAINING = ("optimizer", "ecosystem")
ALL = ("tensors", *TRAINING)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A job that checks the claims of some modules: its ranks, and how its workers synchronise."""

    partition: str
    modules: tuple[str, ...] = TRAINING
    mode: str = "coarse"
    split: str = ""
    """How many buckets go to the devices, where that is forced."""
    more: str = ""
    """What else stands in the configuration."""

    @property
    def num_workers(self) -> int:
        return int(self.partition.partition(":")[0])

    @property
    def num_ranks(self) -> int:
        return sum(map(int, self.partition.split(":")))


LAYOUTS = {
    "1:1": Layout(partition="1:1", modules=ALL),
    "2:2": Layout(partition="2:2", modules=ALL),
    "4:2": Layout(partition="4:2"),
    "3:1": Layout(partition="3:1", modules=("tensors",)),
    "2:2 in a ring": Layout(partition="2:2", modules=("tensors",), more='collective = "ring"\n'),
    "2:2 paper, profiled": Layout(
        partition="2:2", more='policy = "paper"\n[routing]\nprofile_every_steps = 4\n'
    ),
    "2:2 none to devices": Layout(partition="2:2", split="none"),
    "2:2 half to devices": Layout(partition="2:2", split="half"),
    "2:2 all to devices": Layout(partition="2:2", split="all"),
    "2:2 dense": Layout(partition="2:2", mode="dense"),
    "2:2 all-reduce": Layout(partition="2:2", mode="allreduce"),
}


@pytest.fixture(scope="module")
def job(request, tmp_path_factory):
    """By claim what each worker of a layout's job found."""
    layout = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("job")
    settings = {
        "partition": f'"{layout.partition}"', "mode": f'"{layout.mode}"', "stall_timeout_s": 20, "bucket_bytes": 2000
    }  # fmt: skip
    text = "".join(f"{key} = {value}\n" for key, value in settings.items())
    (folder / "config.toml").write_text(text + layout.more)
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    arguments = (folder, layout.split, *layout.modules)
    completed = mpirun(layout.num_ranks, "torch_claims.py", *arguments, env=environ, timeout_s=180)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, layout.num_workers)


@pytest.mark.parametrize(
    ("job", "module"),
    [(name, module) for name, layout in LAYOUTS.items() for module in layout.modules],
    indirect=["job"],
    scope="module",
)
def test_every_claim_holds_on_every_rank(job, module):
    claims = [claim.__name__ for claim in import_module(NAMES[module]).CLAIMS]
    assert claims
    require_held(job, claims)
