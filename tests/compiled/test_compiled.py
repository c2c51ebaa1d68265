"""Simulations by compiled modules: the same times, to the last bit. `make test-compiled` builds them and runs this."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from coarse.simulation import engine
from tests.support.launch import REPOSITORY, mpirun

pytestmark = pytest.mark.skipif(not engine.__file__.endswith(".so"), reason="no module is compiled: make test-compiled")

JOBS = Path(__file__).parent / "jobs.py"


def compiled_sources() -> list[str]:
    """What setup.py has compiled, by its own words."""
    lines = (REPOSITORY / "setup.py").read_text().splitlines()
    return [line.strip(' ",') for line in lines if line.startswith('    "coarse/')]


def run(source: str) -> list[str]:
    """Lines that a Python prints which has modules in another place first."""
    argv = [sys.executable, str(JOBS)]
    completed = subprocess.run(
        argv, env={"PYTHONPATH": source}, capture_output=True, text=True, timeout=300, check=True
    )
    return completed.stdout.splitlines()


def test_what_is_to_be_compiled_is():
    names = [source.removesuffix(".py").replace("/", ".") for source in compiled_sources()]
    assert len(names) > 10
    assert [name for name in names if not import_module(name).__file__.endswith(".so")] == []


def test_jobs_that_tests_start_have_them_too():
    completed = mpirun(1, JOBS, "--nothing")
    assert completed.stdout.split() == ["compiled"], completed.stderr


def test_simulations_give_the_same_bits():
    interpreted, compiled = run(str(REPOSITORY)), run(str(Path(engine.__file__).parents[2]))
    assert interpreted[0] == "interpreted"
    assert compiled[0] == "compiled"
    assert len(compiled) > 40
    assert compiled[1:] == interpreted[1:]
