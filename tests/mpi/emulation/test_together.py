"""Groups of workers on a machine that is not here: their bits, their times, and errors."""

import json

import pytest

from coarse.hardware.presets import load_preset
from coarse.protocol.run_file import RUN_FILE
from coarse.simulation.cluster import ModelledCluster
from coarse.strategy.builtin import Coarse
from tests.mpi.emulation.test_training import HERE, NO_COMPUTE
from tests.mpi.emulation.together import NUMEL
from tests.support.launch import mpirun

pytestmark = pytest.mark.mpi
NBYTES = 4 * NUMEL


def run(folder, kind, *, machine=None, workers=2, nodes=1, devices=None, scale=None, **environ):
    """What each worker wrote, in a live job or on a machine; by default a memory device on each node."""
    devices = devices or nodes
    env = {"COARSE_PARTITION": f"{workers}:{devices}", **environ}
    if machine is not None:
        env["COARSE_EMULATE"] = f'machine = "{machine}", out = "{folder}", nodes = {nodes}'
        env["COARSE_EMULATE"] += f", compute_scale = {scale!r}" if scale else ""
    done = mpirun(workers + devices, HERE / "together.py", folder, kind, env=env, preloaded="torch")
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{worker}.json").read_text()) for worker in range(workers)], done.stdout


def test_collectives_and_messages_have_their_live_bits_and_the_times_of_their_links(tmp_path):
    live, _ = run(tmp_path / "live", "collectives")
    there, _ = run(tmp_path / "there", "collectives", machine="cxl-cz120", scale=NO_COMPUTE)
    assert [{name: bits for name, (bits, _) in own.items()} for own in there] == [
        {name: bits for name, (bits, _) in own.items()} for own in live
    ]
    machine = load_preset("cxl-cz120")
    site = ModelledCluster(machine=machine, strategy=Coarse(), num_workers=2, num_devices=1, is_exact=True).site()
    path = [site.links[link] for link in site.between_workers[0, 1]]
    latency_s = sum(link.latency_s for link in path)

    def hop_s(nbytes):
        return latency_s + nbytes / min(link.bytes_per_s for link in path)

    own_s = there[0]
    expected_s = {
        "all_reduce": 2 * hop_s(NBYTES / 2), "future": 2 * hop_s(NBYTES / 2), "set": 2 * hop_s(NBYTES / 2),
        "broadcast": hop_s(NBYTES), "reduce": hop_s(NBYTES), "all_gather": hop_s(NBYTES),
        "reduce_scatter": hop_s(NBYTES), "gather": hop_s(NBYTES), "scatter": hop_s(NBYTES),
        "all_to_all": hop_s(NBYTES), "messages": hop_s(NBYTES), "barrier": hop_s(8),
    }  # fmt: skip
    for name, seconds in expected_s.items():
        assert own_s[name][1] == pytest.approx(seconds, rel=1e-6), name
    assert json.loads((tmp_path / "there" / RUN_FILE).read_text())["num_late"] == 0


@pytest.mark.test_all
def test_all_reduces_of_groups_by_the_workers_ring_give_what_mpis_do(tmp_path):
    by_mpi, _ = run(tmp_path / "mpi", "collectives", workers=4)
    (tmp_path / "ring.toml").write_text('worker_collective = "ring"\n')
    by_ring, _ = run(tmp_path / "ring", "collectives", workers=4, COARSE_CONFIG=str(tmp_path / "ring.toml"))
    for one, other in zip(by_mpi, by_ring, strict=True):  # sums of whole numbers, which are exact in any order
        assert {name: bits for name, (bits, _) in one.items()} == {name: bits for name, (bits, _) in other.items()}


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", pytest.param("fsdp", marks=pytest.mark.test_all), "fcdp", "odc"])
def test_training_together_has_its_live_bits_and_is_near_its_own_simulation(kind, tmp_path):
    live, _ = run(tmp_path / "live", kind)
    there, said = run(tmp_path / "there", kind, machine="cxl-cz120")
    assert there == live
    found = json.loads((tmp_path / "there" / RUN_FILE).read_text())
    assert (found["kind"], found["num_late"]) == ("emulated", 0)
    assert found["mode"] == ("torch.distributed" if kind in ("ddp", "fsdp2") else kind)
    assert len(found["iterations"]) >= 2 * 2
    for row in found["iterations"]:
        assert row["end_s"] - row["begin_s"] == pytest.approx(row["compute_s"] + row["exposed_s"], rel=1e-6)
    own_step = found["simulated"]
    assert own_step["emulated_s"] == pytest.approx(own_step["simulated_s"], rel=0.5)  # a small model
    assert "emulated over simulated" in said


@pytest.mark.parametrize(("workers", "devices"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.test_all)])
def test_minibatches_without_compute_take_what_their_simulation_does(workers, devices, tmp_path):
    run(tmp_path, "odc", machine="cxl-cz120", workers=workers, devices=devices, scale=NO_COMPUTE)
    own_step = json.loads((tmp_path / RUN_FILE).read_text())["simulated"]
    assert own_step["emulated_s"] == pytest.approx(own_step["simulated_s"], rel=1e-9)


@pytest.mark.test_all
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hybrid", "zeropp", "fcdp", "odc"])
def test_sharded_modes_know_the_nodes_of_the_machine(kind, tmp_path):
    there, _ = run(tmp_path / "there", kind, machine="fcdp-a40-10gbe", workers=4, nodes=2)
    assert len({tuple(own["losses"]) for own in there}) == 4
    found = json.loads((tmp_path / "there" / RUN_FILE).read_text())
    assert found["num_late"] == 0
    assert any("nic" in name or "network" in name for name, _ in found["link_bytes"])
