"""What the MPI library needs of a process."""

import os
import pwd
import subprocess
import sys

import pytest

from coarse.transport import mpi_library
from coarse.transport.mpi_library import home_for_mpi, is_open_mpi, is_too_old


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}])
def test_a_process_without_a_home_gets_that_of_its_user(environ):
    assert home_for_mpi(environ) == {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}


def test_a_user_without_an_entry_gets_a_home_that_exists(monkeypatch):
    monkeypatch.setattr(mpi_library.os, "geteuid", lambda: 2**30 + 7)
    assert home_for_mpi({}) == {"HOME": "/"}


def test_a_home_that_is_set_stays():
    assert home_for_mpi({"HOME": "/mine"}) == {}


@pytest.mark.parametrize(
    ("library", "starts_ranks", "is_refused"),
    [
        ("Open MPI 5.0.11", True, False),
        ("Open MPI 6.0.0", True, False),
        ("Open MPI 4.1.8", False, True),
        ("Open MPI 3.1.0", False, True),
        ("MPICH 5.0.2", False, False),
        ("Intel MPI 2021.9.0", False, False),
    ],
)
def test_an_old_open_mpi_is_refused_and_of_other_mpis_coarse_run_starts_no_ranks(library, starts_ranks, is_refused):
    assert is_open_mpi(library) is starts_ranks
    assert is_too_old(library) is is_refused


def test_init_without_an_mpi_library_says_how_to_get_one(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import coarse; coarse.init()"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("coarse.errors.ConfigError: mpi4py finds no MPI library (cannot load MPI library); install")
    assert "install Open MPI 5 beside this Python" in last
