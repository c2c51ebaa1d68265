"""When a job that is starting must be ended: two workers, 0 and 1, and a light device, 2."""

import pytest

from coarse.launch.rank_exits import Departures, Failure, Verdict


def starting(*events: tuple[str, int] | tuple[str, int, int | None]) -> Verdict | None:
    departures = Departures(3, frozenset({2}))
    for name, *values in events:
        getattr(departures, f"on_{name}")(*values)
    return departures.verdict()


@pytest.mark.parametrize(
    ("status", "words", "job_status"),
    [
        (5, "MPI rank 1 ended with status 5 before", 5),
        (0, "MPI rank 1 ended with status 0 before", 1),
        (-9, "MPI rank 1 was killed by signal 9 before", 137),
        (None, "MPI rank 1 was ended before", 1),
    ],
)
def test_a_rank_that_ends_before_init_is_named_once_a_worker_waits(status, words, job_status):
    verdict = starting(("ended", 1, status), ("waits", 0))
    assert verdict is not None
    assert words in verdict.text
    assert verdict.status == job_status


def test_a_rank_that_ends_in_init_is_said_to_have_been_there():
    verdict = starting(("waits", 0), ("waits", 1), ("ended", 1, 1))
    assert verdict is not None
    assert verdict.text == "MPI rank 1 ended with status 1 in coarse.init(), where ranks [0] wait; the job ends"


def test_the_first_rank_that_did_not_end_well_gives_its_status():
    departures = Departures(3, frozenset({2}))
    assert departures.first_failure() == 0
    for rank, status in ((0, 0), (2, -9), (1, 4)):
        departures.on_ended(rank, status)
    assert departures.first_failure() == 137


def test_a_rank_that_was_lost_did_not_end_well():
    departures = Departures(1, frozenset())
    departures.on_ended(0, None)
    assert departures.first_failure() == 1


@pytest.mark.parametrize("at_once", [False, True])
def test_ranks_that_have_not_ended_when_mpirun_has_are_lost(at_once):
    departures = Departures(3, frozenset({2}), at_once=at_once)
    departures.on_over()
    assert departures.first_failure() == int(at_once)  # a job that may start again has all its ranks watched
    for rank in range(3):
        departures.on_runs(rank)
    departures.on_ended(0, 0)
    departures.on_over()
    assert departures.first_failure() == 1
    assert departures.failure() == Failure(0 if at_once else 1, None, None)


def test_a_job_whose_ranks_have_all_ended_well_has_lost_none():
    departures = Departures(3, frozenset({2}), at_once=True)
    for rank in range(3):
        departures.on_runs(rank)
        departures.on_ended(rank, 0)
    departures.on_over()
    assert departures.first_failure() == 0
    assert departures.failure() is None


def test_a_worker_may_end_well_while_only_devices_wait_and_another_still_works():
    assert starting(("waits", 2), ("ended", 1, 0)) is None


def test_a_worker_that_fails_ends_the_devices_that_wait():
    assert starting(("waits", 2), ("ended", 1, 4)) is not None


def test_workers_that_all_end_without_init_have_each_done_all_the_work():
    assert starting(("ended", 0, 0), ("ended", 1, 0)) is None
    verdict = starting(("ended", 0, 0), ("ended", 1, 0), ("waits", 2))
    assert verdict is not None
    assert verdict.status == 1
    assert verdict.text.startswith("no worker has called coarse.init(); the memory devices end. The 2 workers ran")


def test_workers_that_met_without_coarse_have_not_each_done_all_the_work():
    verdict = starting(("met", 0), ("left", 0), ("left", 1), ("ended", 0, 0), ("ended", 1, 0), ("waits", 2))
    assert verdict == Verdict("no worker has called coarse.init(); the memory devices end", 0)


def test_a_rank_that_ends_without_mpi_is_named_once_another_starts_it():
    assert starting(("starts", 0)) is None
    verdict = starting(("starts", 0), ("left", 1), ("ended", 1, 0))
    assert verdict is not None
    assert verdict.text == "MPI rank 1 ended with status 0 before MPI_Init, where ranks [0] wait; the job ends"
    assert starting(("starts", 0), ("started", 0), ("ended", 1, 0)) is None


def test_a_rank_that_starts_mpi_in_init_waits_in_init():
    verdict = starting(("waits", 0), ("starts", 0), ("ended", 1, 5))
    assert verdict is not None
    assert verdict.text == "MPI rank 1 ended with status 5 before coarse.init(), where ranks [0] wait; the job ends"


def test_a_script_that_has_ended_counts_though_its_process_waits_in_mpi():
    verdict = starting(("waits", 0), ("left", 1))
    assert verdict is not None
    assert (verdict.status, "MPI rank 1 ended with status 0 before coarse.init()" in verdict.text) == (1, True)
    verdict = starting(("waits", 0), ("fails", 1, 3), ("left", 1))
    assert verdict is not None
    assert verdict.status == 3


def test_devices_are_ended_that_outlast_workers_which_used_mpi_alone():
    """Workers that started MPI themselves may end without MPI_Finalize, in which a device then waits."""
    left = [event for rank in (0, 1) for event in (("left", rank), ("ended", rank, 0))]
    verdict = starting(*left)
    assert verdict == Verdict("no worker has called coarse.init(); the memory devices end", 0, 4.0)
    assert starting(*left, ("ended", 2, 0)) is None


@pytest.mark.parametrize(("joined", "remark"), [(set(), True), ({0, 1, 2}, False)])
def test_devices_that_nobody_used_are_remarked_on(joined, remark):
    departures = Departures(3, frozenset({2}))
    for rank in joined:
        departures.on_joined(rank)
    assert (departures.unused() is not None) is remark
    assert Departures(2, frozenset()).unused() is None


def test_one_worker_may_do_without_init():
    departures = Departures(2, frozenset({1}))
    departures.on_ended(0, 0)
    departures.on_waits(1)
    assert departures.verdict() == Verdict("no worker has called coarse.init(); the memory devices end", 0)


JOINED = [event for rank in range(3) for event in (("waits", rank), ("joined", rank), ("waits_no_longer", rank))]


def test_a_rank_that_ends_badly_leaves_the_others_a_while_to_end_by_themselves():
    verdict = starting(*JOINED, ("ended", 1, -9))
    assert verdict is not None
    assert (verdict.status, verdict.grace_s) == (137, 4.0)
    assert "MPI rank 1 was killed by signal 9, and others have not ended in the 4 s since" in verdict.text
    assert starting(*JOINED, ("ended", 1, -9), ("ended", 0, 3), ("ended", 2, 1)) is None


def test_a_rank_that_has_raised_counts_before_its_process_has_ended():
    verdict = starting(*JOINED, ("fails", 1, 1))
    assert verdict is not None
    assert verdict.status == 1
    assert "MPI rank 1 has raised an error" in verdict.text


def test_a_rank_that_ends_for_one_that_left_ends_the_others_too():
    verdict = starting(*JOINED, ("ended", 1, 0), ("follows", 0), ("ended", 0, 1))  # the device still runs
    assert verdict is not None
    assert (verdict.status, verdict.grace_s) == (1, 4.0)


def test_a_rank_that_ends_well_ends_nobody():
    assert starting(*JOINED, ("ended", 1, 0)) is None


def test_the_status_is_that_of_the_rank_that_failed_by_itself():
    departures = Departures(3, frozenset({2}))
    departures.on_follows(0)
    departures.on_ended(0, 1)
    assert departures.first_failure() == 1
    departures.on_fails(1, 3)
    departures.on_ended(1, -6)  # by MPI_Abort
    assert departures.first_failure() == 3


def test_ranks_that_are_refused_together_end_by_themselves():
    refused = [event for rank in range(3) for event in (("waits", rank), ("waits_no_longer", rank))]
    verdict = starting(*refused, ("ended", 0, 1), ("ended", 2, 1))
    assert verdict is not None
    assert verdict.grace_s == 4.0


def test_whoever_mpirun_kills_for_a_rank_that_follows_is_no_cause():
    departures = Departures(3, frozenset({2}))
    departures.on_follows(0)
    for rank, status in ((2, None), (1, None), (0, 1)):
        departures.on_ended(rank, status)
    assert departures.unsaid_cause() is None
    assert departures.first_failure() == 1


def test_a_rank_that_nobody_saw_end_is_the_cause_where_others_follow_later():
    departures = Departures(3, frozenset({2}))
    departures.on_ended(1, None)
    departures.on_follows(0)
    departures.on_ended(0, 1)
    assert departures.unsaid_cause() == "MPI rank 1 was ended"


def ending(*events: tuple[str, int] | tuple[str, int, int | None], at_once: bool = True) -> Departures:
    """Two workers and a device that have joined, of a job that ends at once where it dies."""
    departures = Departures(3, frozenset({2}), at_once=at_once)
    for rank in range(3):
        departures.on_joined(rank)
    for name, *values in events:
        getattr(departures, f"on_{name}")(*values)
    return departures


def test_a_death_ends_the_job_at_once():
    verdict = ending(("ended", 1, -9)).verdict()
    assert verdict == Verdict("MPI rank 1 was killed by signal 9", 137, 0.0)


def test_a_rank_that_raised_may_print_its_error():
    departures = ending(("fails", 1, 1, 77))
    assert departures.verdict() == Verdict("MPI rank 1 has raised an error", 1, 1.0)
    departures.on_ended(1, 1)
    assert departures.verdict() == Verdict("MPI rank 1 ended with status 1", 1, 0.0)
    assert departures.failure() == Failure(1, 1, 77)


def test_one_that_follows_is_no_failure_of_the_script_s_own_and_its_cause_is_waited_for():
    departures = ending(("follows", 0), ("ended", 0, 1))
    failure, verdict = departures.failure(), departures.verdict()
    assert failure == Failure(0, None, None)
    assert not failure.is_own
    assert verdict is not None
    assert verdict.grace_s == 1.0
    departures.on_ended(1, -9)
    assert departures.failure() == Failure(1, -9, None)
    assert departures.verdict() == Verdict("MPI rank 1 was killed by signal 9", 137, 0.0)


@pytest.mark.parametrize(
    ("failure", "is_own"),
    [
        (Failure(0, 1, 5), True),
        (Failure(0, 1, 0), True),
        (Failure(0, 3, None), True),
        (Failure(0, -9, None), False),
        (Failure(0, None, None), False),
        (Failure(0, 143, None), False),
    ],
)
def test_a_failure_of_the_script_s_own_is_one_that_may_come_again(failure, is_own):
    assert failure.is_own is is_own
