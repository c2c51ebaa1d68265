"""What the MPI library needs of a process."""

import os
import pwd

import pytest

from coarse.transport import mpi_library
from coarse.transport.mpi_library import home_for_mpi


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}])
def test_a_process_without_a_home_gets_that_of_its_user(environ):
    assert home_for_mpi(environ) == {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}


def test_a_user_without_an_entry_gets_a_home_that_exists(monkeypatch):
    monkeypatch.setattr(mpi_library.os, "geteuid", lambda: 2**30 + 7)
    assert home_for_mpi({}) == {"HOME": "/"}


def test_a_home_that_is_set_stays():
    assert home_for_mpi({"HOME": "/mine"}) == {}
