"""DistributedOptimizer, live: on several layouts, and with the workers' all-reduce instead of devices."""

import pytest

from tests.mpi.claims import read_reports
from tests.mpi.launch import mpirun
from tests.mpi.programs import torch_ecosystem_claims, torch_optimizer_claims

PROGRAMS = {
    "torch_optimizer_claims.py": torch_optimizer_claims.CLAIMS,
    "torch_ecosystem_claims.py": torch_ecosystem_claims.CLAIMS,
}
JOBS = {
    "1:1": (1, "coarse"),
    "2:2": (2, "coarse"),
    "4:2": (4, "coarse"),
    "2:2 all-reduce": (2, "allreduce"),
}
"""Workers and mode of each job."""


@pytest.fixture(scope="module", params=[(job, program) for job in JOBS for program in PROGRAMS], ids=" ".join)
def reports(request, tmp_path_factory):
    """The program and what each worker found of each of its claims, in one job."""
    job, program = request.param
    num_workers, mode = JOBS[job]
    partition = job.partition(" ")[0]
    folder = tmp_path_factory.mktemp("job")
    settings = {"partition": f'"{partition}"', "mode": f'"{mode}"', "stall_timeout_s": 20, "bucket_bytes": 2000}
    (folder / "config.toml").write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    num_ranks = sum(map(int, partition.split(":")))
    completed = mpirun(num_ranks, program, folder, env={"COARSE_CONFIG": str(folder / "config.toml")}, timeout_s=120)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


def test_every_claim_holds_on_every_rank(reports):
    failed = {claim: failures for claim, failures in reports.items() if any(failures)}
    assert not failed, "\n".join(text for failures in failed.values() for text in failures)
