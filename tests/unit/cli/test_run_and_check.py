"""`coarse check` and `coarse run --dry-run`: what they refuse, and the line they would start."""

import platform
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import coarse
from coarse.cli import check, run
from coarse.gpu.available import use
from coarse.storage.numa import memory_nodes
from tests.support.gpu_stand_in import StandInGpus

APPS = {"run": run.app, "check": check.app}
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
    done = CliRunner().invoke(APPS[command[0]], ["--config", "coarse.toml", *command[1:]])
    return done.exit_code, done.output


@pytest.mark.parametrize("partition", ["2:2", "table.toml", "worker,both"])
def test_a_partition_that_a_job_could_run_with_passes_the_check(folder, partition):
    assert status_with(folder, partition, "check")[0] == 0


@pytest.mark.parametrize("partition", ["absent.toml", "2:x", "0:2", "worker,wrker", "gap.toml", "worker"])
@pytest.mark.parametrize("command", [("check",), ("run", "--dry-run", "train.py")])
def test_a_partition_that_no_job_could_run_with_is_refused(folder, partition, command):
    assert status_with(folder, partition, *command)[0] == 2


def test_a_check_shows_where_each_device_that_names_a_place_would_have_its_memory_here(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    (folder / "placed.toml").write_text(
        TABLE.format(device=1)
        + 'memory = "folder:/dev/shm"\n[[rank]]\nrank = 2\nrole = "memory_device"\nmemory = "numa:977"\n'
    )
    status, output = status_with(folder, "placed.toml", "check")
    assert status == 0
    assert re.search(r"rank 1 │ folder:/dev/shm, up to \d+\.\d GiB", output)
    assert re.search(r"rank 2 │ refused: .*placed\.toml:11: memory of rank 2 is 'numa:977': this machine has", output)


def test_a_check_of_one_node_leaves_out_the_devices_of_others(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    devices = "".join(
        f'[[rank]]\nrank = {rank}\nrole = "both"\nnode = "{node}"\nmemory = "folder:/dev/shm"\n'
        for rank, node in enumerate("ab")
    )
    (folder / "two.toml").write_text(devices)
    for node, here, elsewhere in (("a", "rank 0", "rank 1"), ("b", "rank 1", "rank 0")):
        status, output = status_with(folder, "two.toml", "check", "--node", node)
        assert status == 0
        assert here in output
        assert elsewhere not in output
    status, output = status_with(folder, "two.toml", "check", "--node", "c")
    assert status == 2
    assert "--node c is no node of the partition table, which has a, b" in output


def test_a_check_lists_the_numa_nodes_of_the_machine(folder):
    status, output = status_with(folder, "2:2", "check")
    assert status == 0
    listed = rf"{memory_nodes()[0].number}: \d+ MiB free of \d+ MiB, " if memory_nodes() else "none"
    assert re.search(rf"NUMA nodes *│ {listed}", output)
    assert "memory of the devices" not in output


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


def test_a_misspelt_option_is_not_taken_for_the_script(folder):
    status, output = status_with(folder, "2:2", "run", "--dry-run", "--worker", "2", "train.py")
    assert status == 2
    assert "No such option: --worker" in output


def test_options_after_the_script_are_the_scripts_own(folder):
    status, output = status_with(folder, "2:2", "run", "--dry-run", "train.py", "--workers", "9", "-x", "--", "--help")
    assert status == 0
    assert output.count("train.py --workers 9 -x -- --help") == 1


@pytest.fixture
def two_gpus():
    """Stand-ins, one of which is in exclusive mode, and which do not reach one another."""
    use(StandInGpus(2, total_bytes=4 << 30, strangers=[(0, 1)], lacks=["", "it is in exclusive mode"]))
    yield
    use(None)


def test_a_check_lists_gpus_with_what_they_reach_and_lack(folder, two_gpus):
    status, output = status_with(folder, "2:2", "check")
    assert status == 0
    said = " ".join(re.sub("[│\n]", " ", output).split())
    assert "GPUs 0: Stand-in at 0000:00:00.0, 4.0 GiB; peer access to no other 1: Stand-in" in said
    assert "it is in exclusive mode; peer access to no other" in said


def test_a_check_says_which_gpu_each_device_has(folder, two_gpus):
    (folder / "gpu.toml").write_text(
        '[[rank]]\nrank = 0\nrole = "worker"\n'
        + "".join(f'[[rank]]\nrank = {r}\nrole = "memory_device"\nmemory = "cuda:{r - 1}"\n' for r in (1, 2, 3))
    )
    status, output = status_with(folder, "gpu.toml", "check")
    assert status == 0
    said = " ".join(re.sub("[│\n]", " ", output).split())
    assert "rank 1 cuda:0, up to 2.0 GiB" in said
    assert "rank 2 refused: gpu.toml:11: memory of rank 2 is 'cuda:1': GPU 1 (Stand-in) cannot be" in said
    assert "rank 3 refused: gpu.toml:15: memory of rank 3 is 'cuda:2': this process sees no GPU 2" in said


def test_a_check_without_gpus_says_why(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "coarse.gpu.cupy_gpus", raising=False)
    use(None)
    status, output = status_with(folder, "2:2", "check")
    use(None)
    assert status == 0
    said = " ".join(re.sub("[│\n]", " ", output).split())
    assert "GPUs none: GPUs need CuPy" in said
    assert "'coarse-cxl[cuda]'" in said


def test_a_check_without_an_mpi_library_says_so(folder):
    program = "import sys; sys.modules['mpi4py.MPI'] = None; from coarse.cli.app import main; main()"
    command = [sys.executable, "-c", program, "check"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "finds no MPI library" in line


def test_a_check_names_versions_and_refuses_a_processor_on_which_no_job_runs(folder, monkeypatch):
    status, output = status_with(folder, "2:2", "check")
    assert status == 0
    said = " ".join(re.sub("[│\n]", " ", output).split())
    assert f"coarse {coarse.__version__} in " in said
    assert f"Python {platform.python_version()} (" in said
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    status, output = status_with(folder, "2:2", "check")
    assert status == 2
    assert "is a aarch64 machine; run on x86_64" in output


def test_the_help_of_a_script_is_printed_once_and_starts_no_ranks(folder, monkeypatch):
    (folder / "train.py").write_text("import sys; print('usage:', sys.argv[1:], flush=True)")
    command = [sys.executable, "-m", "coarse", "run", "train.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "usage: ['--help']\n", "")


def test_a_check_refuses_an_mpi_of_which_coarse_run_can_start_no_ranks(folder, monkeypatch):
    monkeypatch.setattr(check, "loaded_library", lambda: "MPICH 5.0.2")
    status, output = status_with(folder, "2:2", "check")
    assert status == 2
    assert "mpi4py has loaded MPICH 5.0.2, and coarse run starts ranks of Open MPI 5; install" in output


def test_a_check_says_what_a_plain_mpirun_lacks_that_coarse_run_brings(folder, monkeypatch):
    monkeypatch.setattr(check, "parameter_files", lambda mpirun: {})
    status, output = status_with(folder, "2:2", "check")
    assert status == 0
    assert "plain mpirun               │ lacks what coarse run sets" in output
    assert "     export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe\n" in output


def test_a_run_by_the_mpirun_of_another_mpi_is_refused_with_what_it_is(folder, monkeypatch):
    mpirun = folder / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n")
    mpirun.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    status, output = status_with(folder, "2:2", "run", "--dry-run", "train.py")
    assert status == 2
    assert f"{mpirun} belongs to Open MPI 4.1.8" in output


@pytest.mark.parametrize(("options", "said"), [
    (("--modes", "coarse,dense"), "give --machine too"),
    (("--machine", "cxl-cz120", "--modes", "coarse", "--mode", "dense"), "give one of the two"),
    (("--machine", "cxl-cz120", "--modes", "coarse", "--save-compute", "a"), "leave out --save-compute"),
    (("--machine", "cxl-cz120", "--modes", "coarse,dens"), "dens"),
    (("--machine", "cxl-cz120", "--save-compute", "a", "--compute", "b"), "give one of the two"),
    (("--machine", "cxl-cz120", "--cluster", "2x2"), "give one of the two"),
])  # fmt: skip
def test_options_of_an_emulated_run_that_do_not_go_together_are_refused(folder, monkeypatch, options, said):
    monkeypatch.setenv("COLUMNS", "1000")
    done = CliRunner().invoke(run.app, ["--dry-run", *options, "train.py"])
    assert done.exit_code == 2
    assert said in done.output


def test_modes_of_an_emulated_run_are_as_many_lines(folder):
    done = CliRunner().invoke(
        run.app, ["--dry-run", "--machine", "cxl-cz120", "--modes", "coarse,allreduce", "train.py"]
    )
    assert done.exit_code == 0
    assert re.findall(r"COARSE_MODE=(\w+)", done.output) == ["coarse", "allreduce"]
