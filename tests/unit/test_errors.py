import pytest

from coarse import errors


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.NotInitializedError, RuntimeError),
        (errors.MismatchError, ValueError),
        (errors.InFlightError, RuntimeError),
        (errors.CapacityError, MemoryError),
        (errors.StallError, TimeoutError),
        (errors.SnapshotError, RuntimeError),
        (errors.CheckpointError, ValueError),
        (errors.MeasurementError, RuntimeError),
        (errors.GpuError, RuntimeError),
    ],
)
def test_an_error_is_caught_as_coarse_error_and_as_its_builtin(kind, builtin):
    error = kind("wanted this, got that")
    assert isinstance(error, errors.CoarseError)
    assert isinstance(error, builtin)
    assert str(error) == "wanted this, got that"


def test_a_stall_names_the_missing_workers_apart_from_the_message():
    error = errors.StallError("nobody pushed 'w'", missing=(1, 3))
    assert error.missing == (1, 3)
    assert str(error) == "nobody pushed 'w'"


def test_a_dead_rank_is_named_apart_from_the_message():
    error = errors.DeadRankError("rank 2 died", rank=2)
    assert isinstance(error, RuntimeError)
    assert error.rank == 2
