"""Models in the network on layouts of workers and memory devices: the bits of one place, and what is refused."""

from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports, require_held
from tests.support.launch import mpirun
from tests.support.layouts import parameters

HERE = Path(__file__).parent
PROGRAM = HERE / "training_claims.py"
OTHERS = (HERE / "shape_claims.py", HERE / "offloaded_claims.py")
"""Whose claims the program reports too."""
LAYOUTS = ("2:1", "3:2", "1:1")


MISUSE = HERE / "misuse_claims.py"


@pytest.fixture(scope="module", params=parameters(LAYOUTS, in_make_test=LAYOUTS[:1]))
def reports(request, tmp_path_factory):
    """By claim what each worker found."""
    workers, devices = (int(number) for number in request.param.split(":"))
    return run(PROGRAM, tmp_path_factory.mktemp("luwu"), workers, devices, stall_timeout_s=20)


@pytest.fixture(scope="module")
def misuse_reports(tmp_path_factory):
    """The same of what does not fit."""
    return run(MISUSE, tmp_path_factory.mktemp("misuse"), 2, 1, stall_timeout_s=8)


def run(program, folder, workers, devices, stall_timeout_s):
    config = f'stall_timeout_s = {stall_timeout_s}\npartition = "{workers}:{devices}"\n'
    (folder / "config.toml").write_text(config)
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    done = mpirun(workers + devices, program, folder, env=environ, timeout_s=300, preloaded="torch")
    assert done.returncode == 0, done.stderr
    return read_reports(folder, workers)


@pytest.mark.parametrize("name", [name for module in (PROGRAM, *OTHERS) for name in claims_of(module)])
def test_claim(reports, name):
    require_held(reports, [name])


@pytest.mark.parametrize("name", claims_of(MISUSE))
def test_misuse(misuse_reports, name):
    require_held(misuse_reports, [name])
