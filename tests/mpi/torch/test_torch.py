"""coarse.torch, live: tensors and DistributedOptimizer on several layouts, and with each way to synchronise."""

from pathlib import Path

import pytest

from tests.mpi.torch.torch_claims import NAMES
from tests.support.claims import takes_all
from tests.support.layouts import Choice, Layout, choices, covering, parameters, require_claims

HERE = Path(__file__).parent
COMMON = "stall_timeout_s = 20\nbucket_bytes = 2000\n"
WAYS = {
    "": {},
    "paper, profiled": {"settings": 'policy = "paper"\n[routing]\nprofile_every_steps = 4\n'},
    "none to devices": {"argument": "none"},
    "half to devices": {"argument": "half", "settings": 'worker_collective = "ring"\n'},
    "all to devices": {"argument": "all"},
    "dense": {"settings": 'mode = "dense"\n'},
    "all-reduce": {"settings": 'mode = "allreduce"\n'},
}
"""How gradients are synchronised. The argument is how many buckets go to the devices, where that is forced."""
AXES = {"way": tuple(WAYS), "ranks": ("1:1", "4:2", "3:1", "2:2"), "collective": ("in a ring", "")}
RING = 'collective = "ring"\n'


def is_allowed(*, way: str, ranks: str, collective: str) -> bool:
    """Devices that add nothing have no ring, nor has a device alone; a lone worker has nothing to split."""
    return (way == "" or ranks != "1:1") and (
        not collective or (ranks.endswith(":2") and way not in ("none to devices", "dense", "all-reduce"))
    )


def named(choice: Choice) -> str:
    """Such as "2:2 half to devices in a ring"."""
    return " ".join(filter(None, (choice["ranks"], choice["way"], choice["collective"])))


def layout_of(choice: Choice) -> Layout:
    """Tensors, which no optimizer synchronises, are of a way's layout where the way is the usual; collectives
    also where devices are left out."""
    way = dict(WAYS[choice["way"]])
    ring = RING if choice["collective"] else ""
    collectives = ("allreduce", "collectives", "horovod_optimizer")
    left_out = {"": (), "all-reduce": ("tensors",)}.get(choice["way"], ("tensors", *collectives))
    if choice["way"] not in ("", "half to devices") and not takes_all():
        left_out += ("ecosystem",)
    modules = [name for name in NAMES if name not in left_out]
    return Layout(
        partition=choice["ranks"],
        modules=tuple(modules),
        settings=ring + way.pop("settings", ""),
        **way,
    )


EVERY = choices(AXES, is_allowed)
FEW = [
    choice
    for choice in EVERY
    if choice["ranks"] in ("3:1", "2:2") and choice["way"] not in ("none to devices", "all to devices")
]
"""Four workers are in the full product alone, and three show what two do not; so are the ends of what half shows."""
LAYOUTS = {named(choice): layout_of(choice) for choice in EVERY}
IN_MAKE_TEST = {"1:1", *(named(FEW[number]) for number in covering(FEW, strength=1))}
"""Every way, and every number of ranks: pairs of both would be all."""


@pytest.mark.parametrize("name", parameters(LAYOUTS, IN_MAKE_TEST))
def test_every_claim_holds_on_every_rank(name, tmp_path):
    require_claims(
        LAYOUTS[name], HERE / "torch_claims.py", NAMES, tmp_path, common=COMMON, timeout_s=180, preloaded="torch"
    )
