"""Scripts that train on a machine that is not here: their times, their bits, and what is refused."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from statistics import median

import pytest

from coarse.cli.report.run import read_run
from coarse.hardware.presets import load_preset
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor, key_of
from coarse.protocol.run_file import RUN_FILE
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.devices import SimulatedDevices
from coarse.simulation.engine import Engine
from coarse.simulation.profiling import measured_facts
from coarse.strategy.builtin import Coarse, Dense
from tests.mpi.emulation.pushes import SIZES
from tests.support.launch import REPOSITORY, mpirun

pytestmark = pytest.mark.mpi
HERE = REPOSITORY / "tests" / "mpi" / "emulation"
NO_COMPUTE = 1e15
"""A scale by which compute takes no time."""
NUM_WORKERS = 2
NUMEL = 1 << 20
"""Elements of the parameter in device memory of touched.py."""


def emulated(folder, script, *arguments, machine="cxl-cz120", devices=2, num_ranks=None, settings="", **environ):
    """How a job on an emulated machine ended; settings are those of [emulate]."""
    stated = f'machine = "{machine}", out = "{folder}"' + (f", {settings}" if settings else "")
    env = {"COARSE_EMULATE": stated, "COARSE_PARTITION": f"{NUM_WORKERS}:{devices}", "COARSE_POLICY": "devices"}
    return mpirun(
        num_ranks or NUM_WORKERS + devices, HERE / script, *arguments, env={**env, **environ}, preloaded="torch"
    )


def simulated_s(machine, strategy, num_devices, in_order):
    """When each worker has the sums of all arrays: pushed at once, or each when it has the one before."""
    cluster = ModelledCluster(
        machine=load_preset(machine), strategy=strategy, num_workers=NUM_WORKERS, num_devices=num_devices, is_exact=True
    )
    placement, site, engine = cluster.placement, cluster.site(), Engine(cluster.site().links)
    ends_s, begun = [0.0] * NUM_WORKERS, [0] * NUM_WORKERS
    descriptors = [Descriptor(f"a{n}", int(DType.FLOAT32), int(Op.AVERAGE), (size,), 0) for n, size in enumerate(SIZES)]
    keys = [key_of(descriptor.name) for descriptor in descriptors]

    def push_next(client):
        begun[client] += 1
        devices.push(client, keys[begun[client] - 1])

    def on_pulled(client, _):
        ends_s[client] = engine.now_s
        if in_order and begun[client] < len(keys):
            push_next(client)

    devices = SimulatedDevices(engine, site, placement, on_pulled)
    facts = measured_facts(site, placement.cluster, strategy) if strategy.probes else ((),) * NUM_WORKERS
    for client, protocol in enumerate(devices.clients):
        devices.deliver(protocol.on_profiled(facts[client]))
    for protocol in devices.clients:
        for descriptor in descriptors:
            devices.deliver(protocol.register(descriptor))
    for client in range(NUM_WORKERS):
        for _ in range(1 if in_order else len(keys)):
            engine.at(0.0, partial(push_next, client))
    engine.run()
    return ends_s


@pytest.mark.parametrize(("kind", "in_order"), [("wait_for_each", True), ("wait_for_all", False)])
@pytest.mark.parametrize(
    ("mode", "strategy", "devices"),
    [("coarse", Coarse(), 2), pytest.param("dense", Dense(), 1, marks=pytest.mark.test_all)],
)
@pytest.mark.parametrize("machine", ["cxl-cz120", pytest.param("cxl-niagara2", marks=pytest.mark.test_all)])
def test_pushes_take_what_the_simulation_of_their_links_says(
    kind, in_order, mode, strategy, devices, machine, tmp_path
):
    done = emulated(
        tmp_path, "pushes.py", tmp_path, kind, machine=machine, devices=devices,
        settings=f"compute_scale = {NO_COMPUTE!r}", COARSE_MODE=mode,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected_s = simulated_s(machine, strategy, devices, in_order)
    for rank in range(NUM_WORKERS):
        rounds = json.loads((tmp_path / f"{rank}.json").read_text())
        for sums, _ in rounds:
            assert sums == [1.5] * len(SIZES)
        assert [seconds for _, seconds in rounds[1:]] == pytest.approx([expected_s[rank]] * 2, rel=1e-9)
    assert json.loads((tmp_path / RUN_FILE).read_text())["num_late"] == 0


def test_who_looks_until_it_is_there_sees_it_when_it_is(tmp_path):
    done = emulated(tmp_path, "pushes.py", tmp_path, "look_until_done", settings=f"compute_scale = {NO_COMPUTE!r}")
    assert done.returncode == 0, done.stderr
    expected_s = simulated_s("cxl-cz120", Coarse(), 2, in_order=False)
    for rank in range(NUM_WORKERS):
        last = json.loads((tmp_path / f"{rank}.json").read_text())[-1]
        assert 0 <= last[1] - expected_s[rank] < 1e-3  # a look takes 10 us, and there are many


def test_sleep_is_emulated_and_the_slowest_is_waited_for(tmp_path):
    done = emulated(tmp_path, "pushes.py", tmp_path, "sleep_between", settings=f"compute_scale = {NO_COMPUTE!r}")
    assert done.returncode == 0, done.stderr
    transfers_s = simulated_s("cxl-cz120", Coarse(), 2, in_order=True)
    slowest_s = 100.0 * NUM_WORKERS * len(SIZES)
    for rank in range(NUM_WORKERS):
        for _, seconds in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert slowest_s <= seconds <= slowest_s + 2 * transfers_s[rank]


@pytest.mark.parametrize(
    ("mode", "devices"), [("coarse", 2), ("allreduce", 2), pytest.param("dense", 1, marks=pytest.mark.test_all)]
)
def test_weights_are_those_of_a_live_run_to_the_bit_and_the_account_is_whole(mode, devices, tmp_path):
    live, there = tmp_path / "live", tmp_path / "there"
    partition = f"{NUM_WORKERS}:{devices}"
    env = {"COARSE_PARTITION": partition, "COARSE_POLICY": "devices", "COARSE_MODE": mode}
    done = mpirun(NUM_WORKERS + devices, HERE / "trained.py", live, env=env, preloaded="torch")
    assert done.returncode == 0, done.stderr
    done = emulated(tmp_path, "trained.py", there, devices=devices, COARSE_MODE=mode)
    assert done.returncode == 0, done.stderr
    assert there.read_text() == live.read_text()
    run = json.loads((tmp_path / RUN_FILE).read_text())
    assert (run["kind"], run["num_late"]) == ("emulated", 0)
    for row in run["iterations"]:
        assert row["end_s"] - row["begin_s"] == pytest.approx(row["compute_s"] + row["exposed_s"], rel=1e-6)
        assert min(row["compute_s"], row["exposed_s"]) > 0
    assert "(emulated; " in done.stdout


def test_runs_by_a_file_of_compute_times_are_equal_and_other_modes_compute_by_it_too(tmp_path):
    times, runs = tmp_path / "step.json", {}
    settings = f'save_compute = "{times}"'
    for kind, mode, devices in (
        ("saved", "coarse", 2), ("first", "coarse", 2), ("again", "coarse", 2), ("dense", "dense", 1),
    ):  # fmt: skip
        folder = tmp_path / kind
        done = emulated(
            folder, "trained.py", tmp_path / "weights", devices=devices, settings=settings, COARSE_MODE=mode
        )
        assert done.returncode == 0, done.stderr
        runs[kind] = (folder / RUN_FILE).read_text()
        settings = f'compute = "{times}"'
    assert runs["first"] == runs["again"] != runs["saved"]
    found = {kind: json.loads(text) for kind, text in runs.items()}
    assert [found[kind]["missing_share"] for kind in ("first", "dense")] == [0.0, pytest.approx(0.0, abs=0.05)]
    computed_s = {kind: [row["compute_s"] for row in run["iterations"]] for kind, run in found.items()}
    assert len(computed_s["first"]) > NUM_WORKERS
    assert median(computed_s["dense"]) == pytest.approx(median(computed_s["first"]), rel=0.5)  # a small model


def test_modes_are_compared_by_the_same_times_of_compute(tmp_path):
    command = [
        sys.executable, "-m", "coarse", "run", "--machine", "cxl-cz120", "--modes", "coarse,allreduce", "--out",
        str(tmp_path / "out"), str(HERE / "trained.py"), str(tmp_path / "weights"),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path,
        env={**os.environ, "COARSE_POLICY": "devices"},
    )  # fmt: skip
    compared = read_run(tmp_path / "out")
    assert [(row.name, row.policy) for row in compared.results] == [("coarse", "devices"), ("allreduce", "")]
    assert all(row.iteration_s == pytest.approx(row.compute_s + row.exposed_s) for row in compared.results)
    for mode in ("coarse", "allreduce"):
        assert json.loads((tmp_path / "out" / mode / RUN_FILE).read_text())["compute_of"].startswith("trained.py")
    assert "speed-up over coarse" in done.stdout
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 0


def test_a_worker_that_is_killed_ends_the_job_and_is_named(tmp_path):
    done = emulated(tmp_path, "trained.py", tmp_path / "weights", DIES="1")
    assert done.returncode != 0
    assert "DeadRankError" in done.stderr
    assert "worker 1 (MPI rank 1) died" in done.stderr
    assert not (tmp_path / RUN_FILE).exists()


@pytest.mark.parametrize(("changes", "said"), [
    ({"settings": "nodes = 2"}, "network"),
    ({"COARSE_PARTITION": "both,both,both,both"}, "worker and memory device at once"),
    *(
        pytest.param(*row, marks=pytest.mark.test_all)
        for row in (
            ({"machine": "cxl-cz121"}, "cxl-cz120"),
            ({"settings": 'compute = "/none.json"'}, "no compute times in /none.json"),
        )
    ),
])  # fmt: skip
def test_what_cannot_be_emulated_is_refused_on_all_ranks(changes, said, tmp_path):
    done = emulated(tmp_path, "trained.py", tmp_path / "weights", **changes)
    assert done.returncode != 0
    assert "ConfigError" in done.stderr
    assert said in done.stderr


def test_who_waits_in_mpis_own_world_goes_on_with_the_last_that_has_come(tmp_path):
    command = ["run", "--machine", "cxl-cz120", "--compute-scale", str(NO_COMPUTE), "--out", str(tmp_path)]
    command = [sys.executable, "-m", "coarse", *command, str(HERE / "elsewhere.py"), str(tmp_path), "by_mpi"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(re.search("took (.*)", done.stdout)[1]) == pytest.approx(6 * 2.0, rel=1e-3)
    assert "MPI.COMM_WORLD.Allreduce (12 calls)" in done.stdout


def test_time_goes_on_without_a_worker_that_waits_elsewhere_and_its_line_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = emulated(tmp_path, "elsewhere.py", tmp_path, "by_a_file", settings=f"compute_scale = {NO_COMPUTE!r}")
    assert done.returncode == 0, done.stderr
    line = 1 + (HERE / "elsewhere.py").read_text().splitlines().index("            pipe.read_text()")
    assert f"worker 1 has waited for 2 s where emulation cannot see it (elsewhere.py:{line})" in done.stderr
    assert json.loads((tmp_path / RUN_FILE).read_text())["absences"] == [[1, 1, f"elsewhere.py:{line}"]]


@pytest.mark.parametrize(("what", "said"), [
    ("anybody", "name the sender in place of any rank"),
    ("callback", "is called from a future's callback"),
    ("luwu", "no cost is stated of Paged"),
    ("snapshots", "no cost is stated of SnapshotBegin"),
])  # fmt: skip
def test_what_has_no_emulated_time_is_refused_by_name(what, said, tmp_path):
    done = emulated(tmp_path, "refused.py", what)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused: ") == done.stdout.count(said) == NUM_WORKERS


@pytest.mark.parametrize("touches", ["tensors", pytest.param("off", marks=pytest.mark.test_all)])
def test_parameters_in_device_memory_are_loaded_and_stored_once_by_each_operation(touches, tmp_path):
    settings = f'compute_scale = {NO_COMPUTE!r}, touches = "{touches}"'
    done = emulated(tmp_path, "touched.py", tmp_path, settings=settings)
    assert done.returncode == 0, done.stderr
    (tmp_path / "live").mkdir()
    live = mpirun(4, HERE / "touched.py", tmp_path / "live", env={"COARSE_PARTITION": "2:2"}, preloaded="torch")
    assert live.returncode == 0, live.stderr
    found, lived = (json.loads((folder / "0.json").read_text()) for folder in (tmp_path, tmp_path / "live"))
    assert found["weight"] == lived["weight"]
    cluster = ModelledCluster(
        machine=load_preset("cxl-cz120"), strategy=Coarse(), num_workers=2, num_devices=2, is_exact=True
    )
    site = cluster.site()
    nbytes, charged = 4 * NUMEL, touches == "tensors"

    def path_s(path, size):
        links = [site.links[link] for link in path]
        return sum(link.latency_s for link in links) + size / min(link.bytes_per_s for link in links)

    load_s, store_s = path_s(site.load[0, 0], nbytes), path_s(site.store[0, 0], nbytes)
    expected_s = {
        "load": load_s, "twice": path_s(site.load[0, 0], 2 * nbytes), "view": 0.0, "store": store_s,
        "rows": path_s(site.load[0, 0], 16 * 64 * 4),
    }  # fmt: skip
    for name, seconds in expected_s.items():
        assert found[name] == pytest.approx(seconds if charged else 0.0, rel=1e-6, abs=1e-12), name
    least_s, most_s = max(load_s, store_s) * (1 - 1e-9), (load_s + store_s) * (1 + 1e-9)
    assert (least_s <= found["both"] <= most_s) is charged
    assert ("MiB loaded" in done.stdout) is charged
