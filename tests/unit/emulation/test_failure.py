"""What the launcher of an emulated run says of one that failed, from what its ranks said and how they ended."""

import pytest

from coarse.emulation.failure import Ends, failure_of, first_failure, write_failure
from coarse.errors import CapacityError, CoarseError, ConfigError, DeadRankError, FabricError, StallError

PRINTED = "; it printed this"


@pytest.mark.parametrize("error", [
    ConfigError("wrong", key="num_workers"), StallError("late", missing=(1, 2)), CapacityError("full"),
    DeadRankError("gone", rank=3), FabricError("gone", status=-9), FabricError("gone", status=None),
])  # fmt: skip
def test_an_error_of_coarse_is_the_same_for_the_launcher(tmp_path, error):
    write_failure(failure_of(error, rank=1, at_s=2.0), tmp_path)
    failure = first_failure(tmp_path)
    assert failure is not None
    told = failure.as_error(PRINTED)
    assert type(told) is type(error)
    assert str(told) == str(error)
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(told).items()}
    assert fields == vars(error)


@pytest.mark.parametrize("error", [FabricError("gone", status=1), AssertionError("never"), KeyError("x")])
def test_what_was_printed_is_shown_where_the_error_does_not_say_why(tmp_path, error):
    write_failure(failure_of(error, rank=1, at_s=2.0), tmp_path)
    failure = first_failure(tmp_path)
    assert failure is not None
    told = failure.as_error(PRINTED)
    assert isinstance(told, CoarseError)
    assert str(told).endswith(PRINTED)
    assert str(error) in str(told)


def test_the_first_reason_counts_and_word_of_a_death_only_where_there_is_no_other(tmp_path):
    for rank, at_s, error in [
        (0, 1.0, DeadRankError("gone", rank=2)), (1, 3.0, CapacityError("late")), (2, 2.0, CapacityError("first"))
    ]:  # fmt: skip
        write_failure(failure_of(error, rank=rank, at_s=at_s), tmp_path)
    failure = first_failure(tmp_path)
    assert failure is not None
    assert (failure.text, failure.dead_rank) == ("first", None)


def test_no_rank_has_failed_where_none_says_so(tmp_path):
    assert first_failure(tmp_path) is None


def test_a_run_whose_ranks_end_well_is_not_ended():
    ends = Ends(num_workers=2, num_ranks=4)
    for rank in range(4):
        ends.on_ended(rank, 0)
    assert ends.verdict() is None
    assert ends.error() is None


@pytest.mark.parametrize(("rank", "status", "words"), [
    (1, -9, "worker 1 (MPI rank 1) of the emulated run was killed by signal 9"),
    (2, -11, "memory device 0 (MPI rank 2) of the emulated run was killed by signal 11"),
    (3, None, "memory device 1 (MPI rank 3) of the emulated run was ended"),
    (0, 1, "worker 0 (MPI rank 0) of the emulated run ended with status 1"),
])  # fmt: skip
def test_the_first_rank_that_fails_ends_the_run_and_is_named(rank, status, words):
    ends = Ends(num_workers=2, num_ranks=4)
    ends.on_ended(rank, status)
    ends.on_ended((rank + 1) % 4, -15)  # mpirun's doing
    error = ends.error(printed=PRINTED)
    assert error is not None
    assert error.rank == rank
    assert words in str(error)
    assert str(error).endswith(PRINTED) == (status == 1)
    verdict = ends.verdict()
    assert verdict is not None
    assert words in verdict.text
    assert verdict.status > 0


def test_a_rank_that_others_saw_die_is_named_before_the_first_that_ended():
    ends = Ends(num_workers=2, num_ranks=4)
    ends.on_ended(3, -15)
    ends.on_ended(1, -9)
    error = ends.error(1)
    assert error is not None
    assert "worker 1 (MPI rank 1) of the emulated run was killed by signal 9" in str(error)
