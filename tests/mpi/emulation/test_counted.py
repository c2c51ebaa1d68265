"""Bytes that an emulated run has charged, held against those that workers and devices have counted, by mode."""

import json

import pytest

from coarse.protocol.codec import RING_HEADER_BYTES
from coarse.protocol.run_file import RUN_FILE
from tests.mpi.emulation.test_training import HERE
from tests.support.launch import mpirun

pytestmark = pytest.mark.mpi
AGREEMENTS = 16 << 10
"""Bytes of a node's agreements and barriers, which are charged, and counted under no unit."""


def counted(folder, kind, *, workers=2, devices=2, nodes=1, **environ):
    """What was charged by way and by link, and each worker's counters."""
    stated = f'machine = "aws-p3", out = "{folder}", nodes = {nodes}'
    env = {"COARSE_EMULATE": stated, "COARSE_PARTITION": f"{workers}:{devices}", "COARSE_POLICY": "devices"}
    done = mpirun(workers + devices, HERE / "counted.py", folder, kind, env={**env, **environ}, preloaded="torch")
    assert done.returncode == 0, done.stderr
    account = json.loads((folder / RUN_FILE).read_text())
    found = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(workers)]
    assert account["num_late"] == 0
    return dict(account["charged"]), dict(account["link_bytes"]), found


def of_devices(found, name):
    return sum(each[name] for each in found[0]["devices"].values())


@pytest.mark.parametrize(("mode", "devices"), [("coarse", 2), pytest.param("dense", 1, marks=pytest.mark.test_all)])
def test_on_a_node_what_is_pushed_and_added_is_charged_once(mode, devices, tmp_path):
    charged, _, found = counted(tmp_path, "push", devices=devices, COARSE_MODE=mode)
    pushed = sum(each["bytes"] for each in found)
    assert (charged["push"], charged["pull"]) == (pushed, pushed)
    assert charged["adder"] == of_devices(found, "folded_bytes") == pushed
    assert charged.get("fetch", 0) == charged.get("write", 0)


def test_between_nodes_rings_send_what_is_charged_and_add_half_of_it(tmp_path):
    charged, _, found = counted(tmp_path, "push", workers=4, nodes=2)
    pushed = sum(each["bytes"] for each in found)
    assert (charged["push"], charged["pull"]) == (pushed, pushed)
    heads = of_devices(found, "mpi_sent_bytes") - charged["devices"]
    assert heads >= 0
    assert heads % RING_HEADER_BYTES == 0
    assert charged["adder"] == of_devices(found, "folded_bytes") + charged["devices"] // 2


@pytest.mark.test_all
def test_what_workers_reduce_among_themselves_is_charged_as_joint(tmp_path):
    charged, _, found = counted(tmp_path, "optimizer", COARSE_MODE="allreduce")
    assert charged["joint"] == sum(each["reduced"] for each in found) > 0
    assert charged["push"] + charged["joint"] == sum(each["bytes"] for each in found)


@pytest.mark.parametrize("kind", [
    "odc", *(pytest.param(mode, marks=pytest.mark.test_all) for mode in ("fsdp", "hybrid", "zeropp", "fcdp")),
])  # fmt: skip
def test_between_nodes_sharded_modes_send_what_is_charged(kind, tmp_path):
    charged, links, found = counted(tmp_path, kind, workers=4, nodes=2)
    sent = sum(
        nbytes for each in found[:2] for purpose, (nbytes, _) in each["between_nodes"].items()
        if " of " in purpose
    )  # fmt: skip
    sent += sum(each["reduced"] for each in found[:2])  # hybrid: among replicas
    if kind == "odc":
        heads = of_devices(found, "mpi_sent_bytes") - charged["devices"]
        assert 0 <= heads < 0.01 * charged["devices"]
        stored = charged["adder"] - of_devices(found, "odc_added_bytes") - of_devices(found, "folded_bytes")
        assert 0 < stored < charged["devices"]  # shards that have come from the other node
        sent = charged["devices"] / 2
    assert sent > 10 * AGREEMENTS
    assert 0 <= links["node0 network up"] - sent < AGREEMENTS
