"""The innermost launcher, from environments as they were found under each."""

import pytest

from coarse.transport.launcher import (
    LauncherKind,
    environ_of_new_job,
    innermost_launcher,
    joins_ranks,
    told_to_this_job,
    without_mpis_rank,
)
from coarse.transport.torchrun_start import TorchrunWorker

BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_NNODES": "2"}
SRUN = {**BATCH, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
SRUN_PMIX = {**SRUN, "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "3"}
SRUN_PMI2 = {**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALNRANKS": "2"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "6",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-a-12@1",
    "PMIX_SERVER_URI41": "prterun-a-12@0.0;tcp4://127.0.0.1:1",
}
ALONE_BY_MPIRUN = MPIRUN | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
TORCHRUN = {**BY_HAND, "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
ONE_EACH = {**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "6"}
COARSE_RUN = {
    **MPIRUN,
    "OMPI_COMM_WORLD_SIZE": "1",
    "COARSE_JOB": "1,2,1,2",
    "COARSE_WORKERS": "1",
    "COARSE_NAMESPACE": "prterun-a-12@1",
    "COARSE_LAUNCHER": "@c",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
}


@pytest.mark.parametrize(
    ("environ", "kind", "rank", "num_ranks"),
    [
        (SRUN, LauncherKind.SRUN, 3, 4),
        (SRUN_PMIX, LauncherKind.PMIX, 3, 4),
        (SRUN_PMI2, LauncherKind.PMI, 3, 4),
        (HYDRA, LauncherKind.PMI, 1, 2),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, LauncherKind.PMI, 1, 2),
        ({"PMI_RANK": "0"}, LauncherKind.PMI, 0, 1),
        (MPIRUN, LauncherKind.MPIRUN, 1, 6),
        (BATCH | MPIRUN, LauncherKind.MPIRUN, 1, 6),
        (SRUN | MPIRUN, LauncherKind.MPIRUN, 1, 6),
        (SRUN_PMI2 | ALONE_BY_MPIRUN, LauncherKind.MPIRUN, 0, 1),
        (MPIRUN | SRUN_PMIX, LauncherKind.PMIX, 3, 4),
        (TORCHRUN, LauncherKind.TORCHRUN, 1, 2),
        (BY_HAND, LauncherKind.TORCHRUN, 1, 2),
        ({"PMI_RANK": "0"} | TORCHRUN, LauncherKind.TORCHRUN, 1, 2),
        (MPIRUN | TORCHRUN, LauncherKind.TORCHRUN, 1, 2),
        (SRUN_PMIX | TORCHRUN, LauncherKind.TORCHRUN, 1, 2),
        (SRUN | TORCHRUN, LauncherKind.TORCHRUN, 1, 2),
        (SRUN | BY_HAND, LauncherKind.TORCHRUN, 1, 2),
        (ALONE_BY_MPIRUN | BY_HAND, LauncherKind.TORCHRUN, 1, 2),
        (MPIRUN | BY_HAND, LauncherKind.MPIRUN, 1, 6),
        (MPIRUN | ONE_EACH, LauncherKind.MPIRUN, 1, 6),
        (COARSE_RUN, LauncherKind.MPIRUN, 1, 2),
        (COARSE_RUN | TORCHRUN, LauncherKind.TORCHRUN, 1, 2),
    ],
)
def test_the_launcher_that_started_a_process_itself_is_found(environ, kind, rank, num_ranks):
    found = innermost_launcher(environ)
    assert found is not None
    assert (found.kind, found.rank, found.num_ranks) == (kind, rank, num_ranks)
    assert (TorchrunWorker.of(environ) is not None) is (kind is LauncherKind.TORCHRUN)


@pytest.mark.parametrize("environ", [{}, BATCH, *({**BY_HAND, "WORLD_SIZE": text} for text in ("many", "", "-1"))])
def test_no_launcher_started_a_process_of_which_none_says_a_place(environ):
    assert innermost_launcher(environ) is None
    assert TorchrunWorker.of(environ) is None


def test_mpi_joins_ranks_where_it_finds_a_server_of_pmix():
    assert [joins_ranks(environ) for environ in (MPIRUN, SRUN_PMIX)] == [True] * 2
    assert [joins_ranks(environ) for environ in ({}, BATCH, SRUN, SRUN_PMI2, HYDRA, TORCHRUN)] == [False] * 6


def test_an_mpirun_within_a_worker_is_not_taken_for_the_job_of_that_worker():
    within = {**COARSE_RUN, "PMIX_NAMESPACE": "prterun-a-99@1", "OMPI_COMM_WORLD_SIZE": "3"}
    assert told_to_this_job(COARSE_RUN) == COARSE_RUN
    assert not {"COARSE_JOB", "COARSE_WORKERS", "COARSE_LAUNCHER"} & told_to_this_job(within).keys()
    found = innermost_launcher(within)
    assert found is not None
    assert found.num_ranks == 3


@pytest.mark.parametrize("outer", [{}, SRUN_PMIX, SRUN_PMI2, HYDRA, MPIRUN, TORCHRUN, MPIRUN | TORCHRUN, COARSE_RUN])
def test_a_job_of_its_own_gets_nothing_by_which_its_ranks_could_be_taken_for_those_of_another(outer):
    of_the_users = {
        "OMPI_MCA_btl": "self,tcp",
        "PRTE_MCA_plm_rsh_agent": "x",
        "PMIX_MCA_gds": "hash",
        "COARSE_MODE": "dense",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "PYTHONPATH": "/mine:/other",
    }
    startup = {"PYTHONPATH": "/startup:/mine:/other"} if outer is COARSE_RUN else {}
    kept = environ_of_new_job({**outer, **of_the_users, **startup}, "/startup")
    of_slurm = {name: value for name, value in outer.items() if name.startswith("SLURM_")}
    assert kept == of_the_users | of_slurm


def test_a_partition_is_the_users_own_unless_coarse_run_has_set_it():
    stated = {"COARSE_PARTITION": "2:2"}
    assert environ_of_new_job(stated, "/startup") == stated
    assert "COARSE_PARTITION" not in environ_of_new_job(COARSE_RUN | stated, "/startup")


def test_torchs_variables_that_no_launcher_set_are_the_users_own():
    assert environ_of_new_job({"MASTER_PORT": "4"}, "/startup") == {"MASTER_PORT": "4"}


def test_a_worker_of_torchrun_keeps_its_place_where_it_gives_up_that_in_mpi():
    assert without_mpis_rank(MPIRUN | TORCHRUN) == TORCHRUN
