"""What ranks transfer in a step of training is what the simulator says they transfer, mode by mode: nobody may change
one of them alone. Compute, routes and the split are given; who sends what to whom, and after what, is each one's own.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coarse.hardware.compute import compute_profile
from coarse.hardware.models import Precision, resnet50
from coarse.hardware.presets import load_preset
from coarse.protocol.plan import Placement
from coarse.simulation import engine
from coarse.simulation.job import Gradient
from coarse.simulation.scenario import Scenario
from coarse.strategy.builtin import Coarse
from coarse.strategy.rounds import first_to_devices
from tests.mpi.torch.forced_split import SPLITS
from tests.support.claims import takes_all
from tests.support.launch import mpirun
from tests.support.layouts import partition_table
from tests.support.simulated_log import simulated_logs
from tests.support.transfer_log import READY, require_alike

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not engine.__file__.endswith(".py"), reason="compiled, the simulator cannot be recorded"),
]
PROGRAM = Path(__file__).with_name("step_of_training.py")
ROUTES = '[routing]\npolicy = "fixed"\nthreshold_bytes = 4096\npartition_bytes = 16_384\n'
COMMON = 'stall_timeout_s = 20\nbucket_bytes = 8000\nworker_collective = "ring"\n'
MODES = {
    "coarse": ("coarse", "all", ROUTES),
    "coarse, half": ("coarse", "half", ROUTES),
    "coarse, rings": ("coarse", "all", f'collective = "ring"\n{ROUTES}'),
    "dense": ("dense", "", 'mode = "dense"\n'),
    "allreduce": ("allreduce", "", f'mode = "allreduce"\n{ROUTES}'),
}
"""By name the simulator's mode, the share of the buckets that is forced to the devices, and the live settings."""
MODELS = {
    "narrow": [40, 60, 30, 50, 10],
    "one": [64, 64],
    "wide": [32, 1000, 24],
    "odd": [7, 13, 101, 3],
    "deep": [24] * 20,
    "large": [1000, 4000, 3950],
}
"""Widths of linear layers; the last has 20 million parameters."""
LAYOUTS = {"2:2": (2, 2, 1), "3:1": (3, 1, 1), "4:2": (4, 2, 1), "4:4, 2 nodes": (4, 4, 2)}
"""Workers, devices and nodes, which are all on this host."""
IN_MAKE_TEST = {(mode, "narrow", "2:2") for mode in MODES if mode != "coarse, rings"} | {
    ("coarse, rings", "odd", "4:4, 2 nodes")
}
CELLS = [
    (mode, model, layout)
    for mode in MODES
    for model in MODELS
    for layout in LAYOUTS
    if (takes_all() or (mode, model, layout) in IN_MAKE_TEST) and not (mode == "dense" and "nodes" in layout)
]


@pytest.mark.parametrize(("mode", "model", "layout"), CELLS)
def test_a_live_step_transfers_what_the_simulated_one_does(mode, model, layout, tmp_path):
    num_workers, num_devices, num_nodes = LAYOUTS[layout]
    simulated_mode, split, settings = MODES[mode]
    if model == "large":
        settings = settings.replace("16_384", "1_048_576")
    table = tmp_path / "partition.toml"
    table.write_text(partition_table(num_workers, num_devices, num_nodes=num_nodes))
    (tmp_path / "config.toml").write_text(f'partition = "{table}"\n{COMMON}{settings}')
    (tmp_path / "sizes.json").write_text(json.dumps(MODELS[model]))
    environ = {"COARSE_CONFIG": str(tmp_path / "config.toml")}
    num_ranks = num_workers + num_devices
    done = mpirun(num_ranks, PROGRAM, tmp_path, split, env=environ, timeout_s=120.0, preloaded="torch")
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    first = next(one for one in found if one.get("worker") == 0)
    plain = {key: _plain(value) for key, value in first["placement"].items()}
    placement = Placement(**plain, planner=Coarse())
    logs = {
        f"{'worker' if index < num_workers else 'device'} {index - num_workers * (index >= num_workers)}":
        [tuple(event) for event in found[rank]["log"]]
        for index, rank in enumerate(placement.ranks)
    }  # fmt: skip
    job = _simulated_job(simulated_mode, split, first, placement, is_ring="ring" in settings)
    buckets = {event[1] for log in logs.values() for event in log if event[0] == READY}
    logs = {rank: [event for event in log if event[1] in buckets] for rank, log in logs.items()}
    require_alike(logs, simulated_logs(job, 24 if takes_all() else 16))
    assert any(logs.values())


def _simulated_job(mode, split, first, placement, *, is_ring):
    """The job of `coarse predict` for the mode, with the buckets, routes and ranks of a live one."""
    num_devices = 1 if mode == "dense" else placement.num_devices
    machine = replace(load_preset("aws-p3"), num_nodes=len(placement.nodes))
    asked = Scenario(
        machine=machine,
        model=resnet50(),
        profile=compute_profile(resnet50(), "v100", 64, Precision.FP32),
        mode=mode,
        num_workers=placement.num_clients,
        num_devices=num_devices if mode == "coarse" else 0,
        num_nodes=len(placement.nodes),
        policy="devices",
        collective="ring" if is_ring else None,
    )
    job = asked.job()
    facts = tuple(map(tuple, first["facts"]))
    if mode == "dense":
        assert facts == job.facts
        one = {"device_nodes": placement.device_nodes[:1], "local_proxies": (0,) * placement.num_clients}
        placement = replace(placement, **one)  # the simulated job has no idle devices
    count = len(first["buckets"])
    gradients = tuple(
        Gradient(name=name, num_elements=num_elements, ready_s=(number + 1) / count * job.backward_s)
        for number, (name, num_elements) in enumerate(first["buckets"])
    )
    num_proxied = {"allreduce": 0, "dense": count}.get(mode, -int(-count * SPLITS[split or "all"] // 1))
    placement = replace(placement, planner=job.placement.planner)
    everything = replace(job.round, by=first_to_devices(count, count).by)
    told = replace(job, placement=placement, facts=facts, gradients=gradients, round=everything)
    return told.with_split(num_proxied)


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
