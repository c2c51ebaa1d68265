"""Live, sharded units are gathered, computed and reduced in the order and with the bytes of the simulator, by mode."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coarse.collectives.shape import Collective
from coarse.hardware.presets import load_preset
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.routes import Routes
from coarse.simulation.sharded.units import Unit
from coarse.strategy.named_sharding import sharding_named
from coarse.strategy.sharding import COLLECTIVE
from tests.support.claims import takes_all
from tests.support.launch import REPOSITORY, mpirun
from tests.support.layouts import partition_table
from tests.support.simulated_log import simulated_sharded_logs
from tests.support.transfer_log import require_alike

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("step_of_sharded_training.py")
OWN = f"{REPOSITORY / 'experiments' / 'strategies' / 'frozen_on_host.py'}:FrozenOnHost"
MODES = [*COLLECTIVE, OWN]
SHAPES = {"small": (64, 3), "two blocks": (32, 2), "wide": (512, 4), "deep": (64, 12)}
"""Width, and number of blocks; around them the root has an embedding and a head."""
LAYOUTS = {"2 nodes of 2": (4, 2), "1 node of 2": (2, 1), "2 nodes of 1": (2, 2)}
IN_MAKE_TEST = {(mode, "small", "2 nodes of 2", Collective.HIERARCHICAL) for mode in MODES}
CELLS = [
    (mode, shape, layout, collective)
    for mode in MODES
    for shape in SHAPES
    for layout in LAYOUTS
    for collective in Collective
    if (takes_all() or (mode, shape, layout, collective) in IN_MAKE_TEST)
    and not (mode == "hybrid" and layout == "2 nodes of 1")  # FSDP2 leaves out gathers of a worker alone
]


@pytest.mark.parametrize(("mode", "shape", "layout", "collective"), CELLS)
def test_a_live_step_gathers_and_reduces_as_the_simulated_one(mode, shape, layout, collective, tmp_path):
    num_workers, num_nodes = LAYOUTS[layout]
    width, num_blocks = SHAPES[shape]
    table = partition_table(num_workers, num_workers, num_nodes=num_nodes, is_both=True)
    (tmp_path / "partition.toml").write_text(table)
    (tmp_path / "config.toml").write_text('stall_timeout_s = 20\npartition = "partition.toml"\n')
    (tmp_path / "shape.json").write_text(json.dumps([width, num_blocks]))
    environ = {"COARSE_CONFIG": str(tmp_path / "config.toml")}
    arguments = (tmp_path, mode, collective.value)
    done = mpirun(num_workers, PROGRAM, *arguments, env=environ, timeout_s=120.0, preloaded="torch")
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num_workers)]

    nbytes = found[0]["units"]
    names = ["embedding", *(f"blocks.{number}" for number in range(num_blocks)), "head"]
    units = [
        Unit(name=name, trainable_nbytes=nbytes.get(name, nbytes["root"] // 2), forward_s=1e-4, backward_s=2e-4,
             is_of_root=name not in nbytes)
        for name in names
    ]  # fmt: skip
    machine = replace(load_preset("fcdp-a40-rdma"), num_nodes=2)
    routes = Routes(machine=machine, num_nodes=num_nodes, gpus_per_node=num_workers // num_nodes)
    policy = ShardedPolicy(sharding=sharding_named(mode, COLLECTIVE), collective=collective)
    simulated, report, loaded = simulated_sharded_logs(ShardedJob(units=tuple(units), routes=routes, policy=policy))
    for worker in found:
        require_alike({"worker 0": [tuple(event) for event in worker["log"]]}, simulated)
        assert {what: count for what, count in worker["nbytes"]["from the node"].items() if count} == loaded

    crossed = {}
    for moved in report.moved:
        what = f"{'gradient ' if moved.what == 'reduce-scatter' else ''}{moved.what} of {moved.unit}"
        crossed[what] = crossed.get(what, 0) + moved.crossing_nbytes
    for what, wanted in crossed.items():
        live = sum(worker["nbytes"]["between nodes"].get(what, 0) for worker in found)
        if not (mode == "hybrid" and what.startswith("gradient")):  # torch has replicas all-reduce
            assert live == wanted, what
