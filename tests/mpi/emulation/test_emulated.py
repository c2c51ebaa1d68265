"""Emulated runs: real ranks and real bytes take the time that the simulator says, to the last bit."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psutil
import pytest

from coarse.emulation.launch import run_order
from coarse.emulation.order import EmulationOrder
from coarse.errors import DeadRankError, FabricError
from coarse.simulation.training import simulate
from tests.support.claims import IN_TIME_S
from tests.support.emulated import durations
from tests.support.launch import running

pytestmark = pytest.mark.mpi

@pytest.fixture(autouse=True)
def _ranks_may_be_root(monkeypatch):
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


@pytest.mark.parametrize(("mode", "num_devices", "num_nodes", "policy"), [
    ("dense", 1, 1, "devices"), pytest.param("allreduce", 0, 1, "devices", marks=pytest.mark.test_all),
    pytest.param("coarse", 2, 1, "auto", marks=pytest.mark.test_all),
    pytest.param("coarse", 2, 1, "devices", marks=pytest.mark.test_all),
    ("allreduce", 0, 2, "devices"), ("coarse", 2, 2, "auto"),
    pytest.param("coarse", 2, 2, "devices", marks=pytest.mark.test_all),
])  # fmt: skip
def test_an_emulated_iteration_takes_as_long_as_the_simulated_one(mode, num_devices, num_nodes, policy):
    require_as_long(mode=mode, num_devices=num_devices, num_nodes=num_nodes, policy=policy)


def test_a_sum_in_place_takes_as_long_as_the_simulated_one():
    require_as_long(mode="coarse", num_devices=2, num_nodes=1, policy="devices", collective="in_place")


def require_as_long(*, mode, num_devices, num_nodes, policy, collective="ring"):
    order = EmulationOrder(
        machine="aws-p3", model="resnet50", gpu="v100", batch=64, precision="fp32", mode=mode, num_workers=2,
        num_devices=num_devices, num_iterations=2, num_nodes=num_nodes, collective=collective, policy=policy,
    ).decided()  # fmt: skip
    emulated = run_order(order)  # every sum is checked by the ranks
    assert durations(emulated) == durations(simulate(order.job()))
    assert emulated.num_transfers > 0
    assert emulated.num_late == 0


@pytest.mark.test_all
@pytest.mark.parametrize(("machine", "model", "num_workers", "mode"), [
    ("cxl-cz120", "bert-large", 4, "coarse"), ("aws-p3", "resnet50", 8, "allreduce"),
    pytest.param("cxl-cz120", "bert-large", 4, "dense", marks=pytest.mark.test_all),
    pytest.param("cxl-niagara2", "resnet50", 2, "coarse", marks=pytest.mark.test_all),
    ("cxl-type3-asic", "resnet50", 4, "coarse"),
    pytest.param("aws-p3", "resnet50", 8, "coarse", marks=pytest.mark.test_all),
])  # fmt: skip
def test_so_it_does_on_other_machines(machine, model, num_workers, mode):
    order = EmulationOrder(
        machine=machine, model=model, batch=2, mode=mode, num_workers=num_workers, policy="devices", num_iterations=2,
        num_nodes=2 if num_workers == 8 else 1,
    ).decided()  # fmt: skip
    assert durations(run_order(order)) == durations(simulate(order.job()))


def test_neighbours_that_want_the_same_cores_change_no_time():
    order = EmulationOrder(machine="aws-p3", batch=64, num_workers=2, mode="coarse", policy="devices").decided()
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        emulated = run_order(order)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert durations(emulated) == durations(simulate(order.job()))


# --- deaths


LONG = EmulationOrder(
    machine="aws-p3", model="resnet50", gpu="v100", batch=64, precision="fp32", mode="coarse", num_workers=2,
    num_devices=2, num_iterations=2000,
)  # fmt: skip
"""Runs for minutes."""
FABRIC = "fabric"
TO_START_S = 60.0
POLL_S = 0.02
"""Between two looks at all processes, which cost those that are looked at their cores."""
TO_END_S = 5.0
"""How long mpirun and the interpreters may take to end, on cores that others use too."""


def in_mid_run(victim):
    """The process of a rank, or of the fabric, and those of all, once workers have filled their gradients."""
    gradients = LONG.scenario().gradients
    deadline_s = time.monotonic() + TO_START_S
    while time.monotonic() < deadline_s:
        found = {}
        for process in psutil.Process().children(recursive=True):
            try:
                command, rank = process.cmdline(), process.environ().get("PMIX_RANK")
                if "coarse.emulation.run" in command and "-I" not in command:
                    found[int(rank)] = process
                elif "coarse.emulation.fabric_process" in command:
                    found[FABRIC] = process
            except psutil.Error:  # ended meanwhile, or is yet to start
                continue
        filled_bytes = sum(gradient.nbytes for gradient in gradients)
        if victim in found and 0 in found and found[0].memory_info().shared > filled_bytes:
            return found[victim], [process.pid for process in found.values()]
        time.sleep(POLL_S)
    raise AssertionError(f"no {victim} in mid-run after {TO_START_S} s")


@pytest.mark.parametrize(("victim", "mode", "name"), [
    pytest.param(
        FABRIC, "coarse", "the fabric process (process PID), which says when transfers arrive,",
        marks=pytest.mark.test_all,
    ),
    (FABRIC, "allreduce", "the fabric process (process PID), which says when transfers arrive,"),
    (0, "coarse", "worker 0 (MPI rank 0) of the emulated run"),
    pytest.param(1, "allreduce", "worker 1 (MPI rank 1) of the emulated run", marks=pytest.mark.test_all),
    (3, "coarse", "memory device 1 (MPI rank 3) of the emulated run"),
])  # fmt: skip
def test_a_death_ends_the_run_at_once_and_is_named(victim, mode, name):
    num_devices = 2 if mode == "coarse" else 0
    order = replace(LONG, mode=mode, num_devices=num_devices, policy="devices").decided()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_order, order)
        process, everybody = in_mid_run(victim)
        process.kill()
        killed_s = time.monotonic()
        with pytest.raises(FabricError if victim == FABRIC else DeadRankError) as error:
            run.result()
        assert time.monotonic() - killed_s < IN_TIME_S + TO_END_S
    assert f"{name.replace('PID', str(process.pid))} was killed by signal 9" in str(error.value)
    assert "start the run again" in str(error.value)
    assert not running(everybody)


def heed_ctrl_c():
    """Tests that run in the background of a shell ignore it, and what they start would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.test_all)])
def test_ending_coarse_emulate_ends_all_of_the_run(number):
    command = [sys.executable, "-m", "coarse", "emulate", "--modes", "allreduce", "--iterations", "2000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    ) as emulating:
        try:
            _, everybody = in_mid_run(0)
            emulating.send_signal(number)
            emulating.communicate(timeout=TO_START_S)
        finally:
            emulating.terminate()
    assert emulating.returncode == 128 + number
    assert not running(everybody)


def test_coarse_emulate_says_of_a_death_one_thing_and_shows_no_traceback():
    command = [sys.executable, "-m", "coarse", "emulate", "--modes", "allreduce", "--iterations", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as emulating:
        process, everybody = in_mid_run(FABRIC)
        process.send_signal(signal.SIGKILL)
        _, errors = emulating.communicate(timeout=TO_START_S)
    assert emulating.returncode == 2
    assert errors.count("coarse: ") == 1
    *progress, last = errors.splitlines()
    assert last.startswith("coarse: ")
    assert [line.split(":")[0] for line in progress] == ["allreduce"] * 2
    assert "the fabric process" in errors
    assert not running(everybody)
