"""The mpirun beside torchrun: what it is started with."""

import pytest

from coarse.launch import device_mpirun


@pytest.fixture
def started(monkeypatch):
    """Command lines and environments of what would be started."""
    found = []

    def start(argv, environ, watch):
        with watch:
            found.append((argv, environ))

    monkeypatch.setattr(device_mpirun, "run_forwarding_signals", start)
    monkeypatch.setattr(device_mpirun, "parameter_files", lambda mpirun: {})
    return found


def test_on_several_nodes_it_shares_processors_with_torchruns_step_and_brings_the_parameters_of_make(started):
    device_mpirun.main("job", "1@a", 2, "worker,memory_device,worker,memory_device", "a", "b")
    ((argv, environ),) = started
    assert environ["SLURM_OVERLAP"] == "1"
    assert (environ["OMPI_MCA_btl"], environ["OMPI_MCA_btl_tcp_eager_limit"]) == ("^ofi", "1048576")
    assert argv.count("--host") == 4
    assert "ras" not in argv


def test_on_one_machine_no_scheduler_places_its_ranks(started):
    device_mpirun.main("job", "1@a", 2, "2:1")
    ((argv, _),) = started
    assert argv[argv.index("ras") + 1].startswith("^slurm,")
