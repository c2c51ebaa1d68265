"""`coarse check` and `coarse run --dry-run`: what they refuse, and the line they would start."""

import pytest
from typer.testing import CliRunner

from coarse.cli import app

TABLE = '[[rank]]\nrank = 0\nrole = "worker"\n[[rank]]\nrank = {device}\nrole = "memory_device"\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("COARSE_CONFIG", "COARSE_PARTITION", "COARSE_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "table.toml").write_text(TABLE.format(device=1))
    (tmp_path / "gap.toml").write_text(TABLE.format(device=7))
    return tmp_path


def status_with(folder, partition, *command):
    """Exit status and output of a command whose configuration has the partition."""
    (folder / "coarse.toml").write_text(f'partition = "{partition}"\n')
    done = CliRunner().invoke(app, [command[0], "--config", "coarse.toml", *command[1:]])
    return done.exit_code, done.output


@pytest.mark.parametrize("partition", ["2:2", "table.toml", "worker,both"])
def test_a_partition_that_a_job_could_run_with_passes_the_check(folder, partition):
    assert status_with(folder, partition, "check")[0] == 0


@pytest.mark.parametrize("partition", ["absent.toml", "2:x", "0:2", "worker,wrker", "gap.toml", "worker"])
@pytest.mark.parametrize("command", [("check",), ("run", "--dry-run", "train.py")])
def test_a_partition_that_no_job_could_run_with_is_refused(folder, partition, command):
    assert status_with(folder, partition, *command)[0] == 2


def test_the_partition_of_a_file_says_how_many_ranks_are_started(folder):
    status, output = status_with(folder, "table.toml", "run", "--dry-run", "train.py")
    assert status == 0
    assert f"-x COARSE_PARTITION={folder / 'table.toml'}" in output
    assert output.count("-n 1 ") == 2


def test_workers_and_devices_may_repeat_the_file_but_not_contradict_it(folder):
    assert status_with(folder, "2:2", "run", "--dry-run", "--workers", "2", "--devices", "2", "train.py")[0] == 0
    status, output = status_with(folder, "2:2", "run", "--dry-run", "--workers", "3", "train.py")
    assert status == 2
    assert "--workers asks for 3, but the configuration's partition '2:2' has 2" in output
