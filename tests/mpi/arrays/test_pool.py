"""Devices that send over a pool which their nodes share: as over MPI, and what is wrong is named by file and line."""

import fcntl
from pathlib import Path

import pytest

from coarse.protocol.units import MIB
from tests.mpi.arrays.array_claims import CLAIMS
from tests.support.claims import read_reports
from tests.support.launch import mpirun
from tests.support.layouts import parameters, partition_table

HERE = Path(__file__).parent


def configured(folder, coherence, *, nbytes=32 * MIB, devices=2, ring_bytes=MIB, is_both=False):
    """The environment of a job of two nodes that share a file as a pool."""
    pool = folder / "pool"
    if nbytes is not None:
        pool.touch()
        with pool.open("r+b") as file:
            file.truncate(nbytes)
    (folder / "partition.toml").write_text(partition_table(2, devices, num_nodes=2, is_both=is_both))
    (folder / "config.toml").write_text(
        'stall_timeout_s = 20\nstartup_timeout_s = 20\npartition = "partition.toml"\n[pool]\n'
        f'path = "{pool}"\ncoherence = "{coherence}"\nring_bytes = {ring_bytes}\n'
    )
    return {"COARSE_CONFIG": str(folder / "config.toml")}


LAYOUTS = {
    "flushed": {"coherence": "software"},
    "checked": {"coherence": "checked", "devices": 3},
    "checked, both roles, small rings": {"coherence": "checked", "is_both": True, "ring_bytes": 4096},
}


@pytest.fixture(scope="module", params=parameters(LAYOUTS, set(LAYOUTS) - {"checked"}))
def reports(request, tmp_path_factory):
    """What each worker found of each claim."""
    folder = tmp_path_factory.mktemp("pool")
    environ = configured(folder, **LAYOUTS[request.param])
    num_ranks = (folder / "partition.toml").read_text().count("[[rank]]")
    completed = mpirun(num_ranks, HERE / "array_claims.py", folder, env=environ)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 2)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_all_that_holds_over_mpi_holds_over_a_pool(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


def test_a_flush_that_a_device_leaves_out_ends_the_job_and_is_named(tmp_path):
    completed = mpirun(4, HERE / "forgetful_device.py", env=configured(tmp_path, "checked"))
    assert completed.returncode != 0
    assert "CoherenceError" in completed.stderr
    assert "coarse/pool/ring.py:" in completed.stderr
    assert "has not flushed; call flush after that store" in completed.stderr


WRONG = {
    "no such file": (None, "hardware", "there is no such file"),
    "too short": (MIB, "hardware", "are wanted but the file has 1048576"),
    "in use": (32 * MIB, "hardware", "another process uses the file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pool_that_cannot_be_used_is_refused_on_all_ranks(tmp_path, case):
    nbytes, coherence, said = WRONG[case]
    environ = configured(tmp_path, coherence, nbytes=nbytes)
    pool = tmp_path / "pool"
    with open(pool if pool.exists() else "/dev/null", "rb") as file:
        if case == "in use":
            fcntl.flock(file, fcntl.LOCK_EX)
        completed = mpirun(4, HERE / "array_claims.py", tmp_path, env=environ)
    assert completed.returncode != 0
    assert said in completed.stderr
    assert str(pool) in completed.stderr
