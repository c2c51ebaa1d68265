"""CoarseStrategy, live: training equals one process's on the global batch, and ranks stay equal to the bit."""

from dataclasses import dataclass
from importlib import import_module

import pytest

from tests.mpi.claims import read_reports, require_held
from tests.mpi.launch import mpirun
from tests.mpi.programs.tf_claims import NAMES

pytest.importorskip("tensorflow")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A job that checks the claims of some modules."""

    modules: tuple[str, ...]
    partition: str = "2:2"
    settings: str = ""
    threads: int = 0
    """How many operations TensorFlow runs at once; 0 for as many as it likes."""

    @property
    def num_workers(self) -> int:
        return int(self.partition.partition(":")[0])

    @property
    def num_ranks(self) -> int:
        return sum(map(int, self.partition.split(":")))


LAYOUTS = {
    "auto": Layout(modules=("fit", "modes", "callbacks")),
    "devices, one thread": Layout(modules=("order", "loops"), settings='policy = "devices"\n', threads=1),
    "paper": Layout(modules=("modes", "layers"), settings='policy = "paper"\n'),
    "dense, one device": Layout(modules=("modes",), partition="2:1", settings='mode = "dense"\n'),
    "all-reduce, four workers": Layout(modules=("modes",), partition="4:2", settings='mode = "allreduce"\n'),
}


@pytest.fixture(scope="module")
def job(request, tmp_path_factory):
    """By claim what each worker of a layout's job found."""
    layout = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("job")
    common = f'partition = "{layout.partition}"\nstall_timeout_s = 60\nbucket_bytes = 100000\n'
    (folder / "config.toml").write_text(common + layout.settings)
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    arguments = (folder, layout.threads, *layout.modules)
    completed = mpirun(layout.num_ranks, "tf_claims.py", *arguments, env=environ, timeout_s=600)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, layout.num_workers)


@pytest.mark.parametrize(
    ("job", "module"),
    [(name, module) for name, layout in LAYOUTS.items() for module in layout.modules],
    indirect=["job"],
    scope="module",
)
def test_every_claim_holds_on_every_rank(job, module):
    claims = [claim.__name__ for claim in import_module(NAMES[module]).CLAIMS]
    assert claims
    require_held(job, claims)
