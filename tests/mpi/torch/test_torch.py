"""coarse.torch, live: tensors and DistributedOptimizer on several layouts, and with each way to synchronise."""

from pathlib import Path

import pytest

from tests.mpi.torch.torch_claims import NAMES
from tests.support.layouts import Layout, require_claims

HERE = Path(__file__).parent
COMMON = "stall_timeout_s = 20\nbucket_bytes = 2000\n"
TRAINING = ("optimizer", "ecosystem")
ALL = ("tensors", *TRAINING)
LAYOUTS = {
    "1:1": Layout(partition="1:1", modules=ALL),
    "2:2": Layout(modules=ALL),
    "4:2": Layout(partition="4:2", modules=TRAINING),
    "3:1": Layout(partition="3:1", modules=("tensors",)),
    "2:2 in a ring": Layout(modules=("tensors",), settings='collective = "ring"\n'),
    "2:2 paper, profiled": Layout(
        modules=TRAINING, settings='policy = "paper"\n[routing]\nprofile_every_steps = 4\n'
    ),
    "2:2 none to devices": Layout(modules=TRAINING, argument="none"),
    "2:2 half to devices": Layout(modules=TRAINING, argument="half", settings='worker_collective = "ring"\n'),
    "2:2 all to devices": Layout(modules=TRAINING, argument="all"),
    "2:2 dense": Layout(modules=TRAINING, settings='mode = "dense"\n'),
    "2:2 all-reduce": Layout(modules=TRAINING, settings='mode = "allreduce"\n'),
}
"""The argument is how many buckets go to the devices, where that is forced."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_claim_holds_on_every_rank(name, tmp_path):
    require_claims(LAYOUTS[name], HERE / "torch_claims.py", NAMES, tmp_path, common=COMMON, timeout_s=180)
