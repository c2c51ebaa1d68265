"""The same scripts of events, the same outcomes, on the drivers with real ranks; tests/unit/drivers has the others."""

import json
from pathlib import Path

import pytest

from tests.support.launch import mpirun
from tests.support.scripts import NUM_CLIENTS, NUM_DEVICES, SCRIPTS

PROGRAM = Path(__file__).with_name("scripted.py")


@pytest.mark.parametrize("kind", ["live", "emulated"])
@pytest.mark.parametrize("collective", ["in_place", "ring"])
def test_every_script_comes_to_what_it_must(kind, collective, tmp_path):
    done = mpirun(NUM_CLIENTS + NUM_DEVICES, PROGRAM, tmp_path, kind, collective, timeout_s=120.0)
    assert done.returncode == 0, done.stderr
    for client in range(NUM_CLIENTS):
        found = json.loads((tmp_path / f"{client}.json").read_text())
        for script in SCRIPTS:
            wanted = [list(outcome) for outcome in script.wanted[client]]
            assert found[script.name] == wanted, f"{script.name}, client {client}"


def test_the_workers_ring_sums_alike_on_all_of_them_and_in_every_run():
    done = mpirun(4, Path(__file__).with_name("ring_of_workers.py"), timeout_s=120.0)
    assert done.returncode == 0, done.stderr
