"""What may be called before `init`: nothing that needs a runtime."""

import io
import subprocess
import sys

import numpy as np
import pytest

import coarse
from coarse import session
from coarse.errors import UnsupportedError

CALLS = {
    "rank": coarse.rank,
    "size": coarse.size,
    "local_rank": coarse.local_rank,
    "local_size": coarse.local_size,
    "barrier": coarse.barrier,
    "statistics": coarse.statistics,
    "push": lambda: coarse.push(np.ones(3), "x"),
    "pull": lambda: coarse.pull("x"),
    "push_pull": lambda: coarse.push_pull(np.ones(3), "x"),
    "push_pull_async": lambda: coarse.push_pull_async(np.ones(3), "x"),
    "device_array": lambda: coarse.device_array("x", (3,), np.float32),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_before_init_is_refused(name):
    with pytest.raises(coarse.NotInitializedError, match=r"before coarse\.init\(\); call coarse\.init\(\) first"):
        CALLS[name]()


def test_shutdown_before_init_does_nothing():
    coarse.shutdown()
    assert not coarse.is_initialized()


def test_importing_coarse_starts_no_mpi_and_loads_no_framework():
    program = "import sys, coarse; print(*(name in sys.modules for name in ('mpi4py.MPI', 'torch')))"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False False\n"


def test_an_error_is_shown_though_a_hook_around_ours_holds_stderr_back(capfd, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    session._on_uncaught(ValueError, ValueError("what went wrong"), None)
    assert "what went wrong" in capfd.readouterr().err


def test_a_start_that_is_refused_for_what_a_file_says_names_the_file_that_is_not_read(monkeypatch):
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "COARSE_CONFIG": "there.toml"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(coarse.ConfigError, match=r"no memory devices beside them[^$]*COARSE_CONFIG=there\.toml is"):
        coarse.init({"mode": "coarse"})


def test_a_processor_that_reorders_stores_is_refused_before_anything_is_started(monkeypatch):
    monkeypatch.setattr(session.platform, "machine", lambda: "aarch64")
    with pytest.raises(UnsupportedError, match="is a aarch64 machine; run on x86_64"):
        session.init()
    assert not session.is_initialized()
