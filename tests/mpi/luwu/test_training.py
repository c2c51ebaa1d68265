"""Models in the network on layouts of workers and memory devices: the bits of one place, and what is refused."""

from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports, require_held
from tests.support.launch import mpirun
from tests.support.layouts import parameters

HERE = Path(__file__).parent
PROGRAM = HERE / "training_claims.py"
LAYOUTS = ("2:1", "3:2", "1:1")


@pytest.fixture(scope="module", params=parameters(LAYOUTS, in_make_test=LAYOUTS[:1]))
def reports(request, tmp_path_factory):
    """By claim what each worker found."""
    workers, devices = (int(number) for number in request.param.split(":"))
    folder = tmp_path_factory.mktemp("luwu")
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "{request.param}"\n')
    done = mpirun(workers + devices, PROGRAM, folder, env={"COARSE_CONFIG": str(folder / "config.toml")}, timeout_s=300)
    assert done.returncode == 0, done.stderr
    return read_reports(folder, workers)


@pytest.mark.parametrize("name", claims_of(PROGRAM))
def test_claim(reports, name):
    require_held(reports, [name])
