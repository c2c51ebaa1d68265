"""Sharded training whose collectives are on GPUs, for which stand-ins stand here: the bits of the same on the CPU."""

import json
from pathlib import Path

from tests.support.claims import read_reports, require_held, takes_all
from tests.support.launch import mpirun
from tests.support.layouts import partition_table

HERE = Path(__file__).parent
NUM_WORKERS = 4
LEAST_CLAIMS = 25 if takes_all() else 14


def test_every_mode_has_the_bits_of_the_cpu(tmp_path):
    (tmp_path / "partition.toml").write_text(partition_table(NUM_WORKERS, NUM_WORKERS, num_nodes=2, is_both=True))
    (tmp_path / "config.toml").write_text('stall_timeout_s = 10\npartition = "partition.toml"\n')
    environ = {
        "COARSE_CONFIG": str(tmp_path / "config.toml"),
        "COARSE_TEST_GPUS": json.dumps({"num_gpus": 1, "total_bytes": 1 << 30}),
    }
    completed = mpirun(NUM_WORKERS, HERE / "gpu_claims.py", tmp_path, env=environ, timeout_s=300, preloaded="torch")
    assert completed.returncode == 0, completed.stderr
    reports = read_reports(tmp_path, NUM_WORKERS)
    assert len(reports) >= LEAST_CLAIMS
    require_held(reports, reports)
