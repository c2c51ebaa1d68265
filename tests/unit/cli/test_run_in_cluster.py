"""`coarse run --cluster --dry-run`: what is refused, and what would be done."""

import pytest
from typer.testing import CliRunner

from coarse.cli import run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("COARSE_CONFIG", "COARSE_PARTITION", "COARSE_MODE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "coarse.toml").write_text('partition = "2:2"\n')
    return tmp_path


def planned(folder, *options):
    """Exit status and output of a dry run in a cluster."""
    done = CliRunner().invoke(run.app, ["--dry-run", *options, "train.py"])
    return done.exit_code, done.output


def test_a_cluster_is_shown_command_by_command_before_its_mpirun_line(folder):
    status, output = planned(folder, "--cluster", "2x1", "--rate", "100mbit")
    assert status == 0
    assert "tc qdisc add dev eth0 root tbf rate 100000000bit" in output
    assert "-x COARSE_PARTITION=worker,memory_device,worker,memory_device -x COARSE_WORKERS=0,2 --host node1-" in output


def test_devices_of_a_cluster_are_those_of_each_node(folder):
    assert "COARSE_PARTITION=worker,worker,memory_device " in planned(folder, "--cluster", "1x2", "--devices", "1")[1]


def test_a_cluster_takes_the_configurations_partition_or_refuses_it(folder):
    assert planned(folder, "--config", "coarse.toml", "--cluster", "2x1")[0] == 0
    status, output = planned(folder, "--config", "coarse.toml", "--cluster", "2x2")
    assert status == 2
    assert "--cluster asks for 2 workers and 1 memory devices on each node" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cluster", "5x1"), "--cluster must have 1 to 4 nodes, got 5"),
        (("--cluster", "0x1"), "--cluster must have 1 to 4 nodes, got 0"),
        (("--cluster", "2x2", "--rate", "100mbps"), "tc's bps are bytes per second"),
        (("--cluster", "2x2", "--workers", "4"), "--workers and --cluster 2x2 both say how many workers"),
        (("--rate", "100mbit"), "--rate 100mbit limits the links of a cluster in a box; give --cluster too"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(folder, options, message):
    status, output = planned(folder, *options)
    assert (status, message in output) == (2, True), output
