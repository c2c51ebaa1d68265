"""What holds on stand-ins holds on CUDA's GPUs: push and pull, tensors and models, COARSE's prototype."""

from pathlib import Path

import pytest

from coarse.errors import ConfigError
from coarse.gpu.available import gpus
from tests.gpu.jobs import REPOSITORY, run_job
from tests.support.claims import claims_of, read_reports
from tests.support.layouts import partition_table

ROOMS = REPOSITORY / "tests" / "mpi"
PROGRAMS = {
    "arrays": ROOMS / "arrays" / "gpu_claims.py",
    "tensors": ROOMS / "torch" / "gpu_torch_claims.py",
    "groups": ROOMS / "torch" / "gpu_group_claims.py",
    "scripts": ROOMS / "torch" / "gpu_pattern_claims.py",
}
LAYOUTS = ("devices on GPUs", "rings of GPUs", "devices on the host")
RING = 'collective = "ring"\nnum_sync_groups = 2\n'


def num_gpus() -> int:
    try:
        return len(gpus().infos())
    except ConfigError:
        return 1  # all is skipped


def start(folder: Path, layout: str, program: Path) -> dict[str, list[str]]:
    """What each of two workers found of each claim; devices are dealt to the GPUs after the workers."""
    entries = partition_table(2, 2).split("[[rank]]")
    if layout != "devices on the host":
        entries[3:] = [f'{entry}memory = "cuda:{place % num_gpus()}"\n' for place, entry in enumerate(entries[3:], 2)]
    (folder / "partition.toml").write_text("[[rank]]".join(entries))
    settings = RING if layout.startswith("rings") else 'policy = "devices"\n'
    (folder / "config.toml").write_text(
        f'stall_timeout_s = 60\npartition = "partition.toml"\ndevice_capacity_bytes = {1 << 30}\n{settings}'
    )
    environ = {"COARSE_CONFIG": str(folder / "config.toml"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = run_job(4, program, folder, env=environ)
    assert done.returncode == 0, done.stderr
    return read_reports(folder, 2)


@pytest.fixture(scope="module", params=[(layout, name) for layout in LAYOUTS for name in PROGRAMS], ids=" of ".join)
def reports(request, tmp_path_factory):
    layout, name = request.param
    return name, start(tmp_path_factory.mktemp("job"), layout, PROGRAMS[name])


@pytest.mark.parametrize("claim", sorted({claim for program in PROGRAMS.values() for claim in claims_of(program)}))
def test_on_every_layout(reports, claim):
    name, found = reports
    if claim not in found:
        pytest.skip(f"{claim} is none of {name}")
    for rank, failure in enumerate(found[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


def test_the_prototype_runs_on_the_gpus_that_are_here(tmp_path):
    script = REPOSITORY / "experiments" / "coarse_prototype.py"
    done = run_job(4, script, "--iterations", 2, "--out", tmp_path / "rows.json")
    assert done.returncode in (0, 1), done.stderr
    assert "(emulated; simulated" in done.stdout
