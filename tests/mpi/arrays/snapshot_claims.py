"""What snapshots promise, checked on every worker; the arguments are a folder and the reports' folder."""

import sys
import warnings
from pathlib import Path

import numpy as np

import coarse
from tests.support.claims import raises, report_claims, takes_all

NUM_SNAPSHOTS = 3 if takes_all() else 2
"""How many are taken in a row."""
folder: Path
"""Of this run."""
MIB = 1 << 20
KINDS = (np.float32, np.float64, np.float16, np.int64)


def values(name: str, shape: tuple[int, ...], dtype: np.dtype, step: int) -> np.ndarray:
    """The same on all ranks, as in data-parallel training."""
    numbers = np.random.default_rng([len(name), *name.encode(), step]).integers(-99, 99, shape)
    return np.asarray(numbers, dtype)


def states(prefix: str, num_large: int = 12) -> dict[str, np.ndarray]:
    """Large arrays of several types, and odd ones: a scalar, an empty one, one of three dimensions."""
    arrays = {}
    for number in range(num_large):
        dtype = np.dtype(KINDS[number % len(KINDS)])
        name = f"{prefix}/layer{number}.weight"
        arrays[name] = coarse.state_array(name, (MIB // dtype.itemsize,), dtype)
    for name, shape in (("scalar", ()), ("empty", (0, 3)), ("cube", (5, 1, 7))):
        arrays[f"{prefix}/{name}"] = coarse.state_array(f"{prefix}/{name}", shape, np.float32)
    return arrays


def fill(arrays: dict[str, np.ndarray], step: int) -> None:
    for name, array in arrays.items():
        coarse.before_overwrite([name])
        array[...] = values(name, array.shape, array.dtype, step)


def require_step(arrays: dict[str, np.ndarray], checkpoint: coarse.Checkpoint, step: int) -> None:
    for name, array in arrays.items():
        reference = values(name, array.shape, array.dtype, step)
        np.testing.assert_array_equal(checkpoint.tensors[name].array, reference, name)


def take(name: str, step: int = 0, **options: object) -> coarse.SnapshotHandle:
    return coarse.snapshot(folder / name, step=step, **options)  # type: ignore[arg-type]


# --- what it holds


def a_snapshot_holds_its_boundary_although_all_is_overwritten_at_once() -> None:
    arrays = states("boundary")
    for step in range(NUM_SNAPSHOTS):
        fill(arrays, step)
        handle = take("boundary", step, metadata={"loss": 0.5, "names": ["a", None]})
        fill(arrays, step + 100)
        coarse.push_pull(np.ones(1000), "meanwhile")
        fill(arrays, step + 200)
        assert handle.wait() == folder / "boundary"
        assert handle.done()
        coarse.barrier()
        checkpoint = coarse.restore(folder / "boundary")
        assert checkpoint.step == step
        assert checkpoint.metadata == {"loss": 0.5, "names": ["a", None]}
        require_step(arrays, checkpoint, step)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, checkpoint.tensors[name].array)
        coarse.barrier()


def every_array_may_be_overwritten_after_one_request_for_all() -> None:
    arrays = states("all")
    fill(arrays, 1)
    handle = take("all", 1)
    coarse.before_overwrite()
    for array in arrays.values():
        array[...] = 7
    handle.wait()
    coarse.barrier()
    require_step(arrays, coarse.restore(folder / "all"), 1)


def ordinary_arrays_are_copied_at_the_call() -> None:
    square = np.arange(12.0).reshape(3, 4)
    given = {"turned": square.T, "scalar": np.array(4, np.int32), "empty": np.empty((0, 2))}
    handle = take("given", tensors=given)
    square[...] = -1
    handle.wait()
    coarse.barrier()
    found = coarse.restore(folder / "given").tensors
    np.testing.assert_array_equal(found["turned"].array, np.arange(12.0).reshape(3, 4).T)
    assert found["scalar"].array == 4
    assert found["empty"].array.shape == (0, 2)


def hundreds_of_names_fit_one_snapshot() -> None:
    given = {f"{'long' * 30}/{number}": np.full(3, number) for number in range(1500)}
    take("many", tensors=given, metadata={"text": '"' * 100_000}).wait()
    coarse.barrier()
    checkpoint = coarse.restore(folder / "many")
    assert checkpoint.metadata == {"text": '"' * 100_000}
    for name, array in given.items():
        np.testing.assert_array_equal(checkpoint.tensors[name].array, array)


def a_snapshot_waits_for_the_one_before_it() -> None:
    arrays = states("two")
    steps, handles = range(NUM_SNAPSHOTS), []
    for step in steps:
        fill(arrays, step)
        handles.append(take(f"two{step}", step))
    for handle in handles:
        handle.wait()
    coarse.barrier()
    for step in steps:
        require_step(arrays, coarse.restore(folder / f"two{step}"), step)
        coarse.barrier()


def the_memory_of_copied_tensors_is_given_back() -> None:
    def used() -> float:
        return sum(
            device["memory_used_bytes"] for device in coarse.statistics()["devices"].values()
        )

    take("room", tensors={"large": np.ones(MIB)}).wait()
    coarse.barrier()
    before = used()
    coarse.barrier()
    for _ in range(3):
        take("room", tensors={"large": np.ones(MIB)}).wait()
    coarse.barrier()
    assert used() == before
    coarse.barrier()


# --- what goes wrong


def a_folder_with_foreign_files_is_refused_on_all_ranks() -> None:
    if coarse.rank() == 0:
        (folder / "foreign").mkdir()
        (folder / "foreign" / "thesis.txt").write_text("years of work")
    coarse.barrier()
    handle = take("foreign")
    with raises(coarse.SnapshotError, "thesis.txt"):
        handle.wait()
    assert handle.done()
    assert (folder / "foreign" / "thesis.txt").exists()


def a_path_below_a_file_is_refused_on_all_ranks() -> None:
    if coarse.rank() == 0:
        (folder / "file").write_text("no folder")
    coarse.barrier()
    handle = take("file/checkpoint")
    with raises(coarse.SnapshotError, "file"):
        handle.wait()


def ranks_that_disagree_are_told_so() -> None:
    if coarse.size() == 1:
        return
    handle = take("disagree", step=1 if coarse.rank() == coarse.size() - 1 else 0)
    with raises(coarse.SnapshotError, "step 0", "step 1"):
        handle.wait()


def what_one_rank_cannot_give_fails_on_all() -> None:
    last = coarse.size() - 1
    if coarse.rank() == last:
        with raises(coarse.SnapshotError, "JSON"):
            take("json", metadata={"array": np.ones(3)})
    else:
        handle = take("json")
        with raises(coarse.SnapshotError, f"rank {last}", "JSON"):
            handle.wait()
    take("json").wait()
    assert coarse.restore(folder / "json").step == 0
    coarse.barrier()


def a_failure_that_nobody_asks_for_is_warned_of() -> None:
    if coarse.rank() == 0:
        (folder / "unasked").write_text("no folder")
    coarse.barrier()
    take("unasked/checkpoint")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        take("asked").wait()
    assert len(caught) == 1
    assert "unasked" in str(caught[0].message)


def an_array_of_another_shape_is_not_restored() -> None:
    take("shapes", tensors={"shapes/grown": np.ones(3, np.float32)}).wait()
    coarse.barrier()
    coarse.state_array("shapes/grown", (4,), np.float32)
    with (
        warnings.catch_warnings(),
        raises(coarse.CheckpointError, "shapes/grown", "float32[4]", "float32[3]"),
    ):
        coarse.restore(folder / "shapes")
    coarse.barrier()


def a_name_has_one_shape_and_unknown_names_are_refused() -> None:
    coarse.state_array("one", (2, 3), np.float32)[...] = 5
    np.testing.assert_array_equal(coarse.state_array("one", (2, 3), "float32"), np.full((2, 3), 5))
    with raises(coarse.MismatchError, "float32[2, 3]", "int64[3]"):
        coarse.state_array("one", (3,), np.int64)
    with raises(ValueError, "nobody"):
        coarse.before_overwrite(["nobody"])
    with raises(ValueError, "-1"):
        take("step", step=-1)


CLAIMS = (
    a_snapshot_holds_its_boundary_although_all_is_overwritten_at_once,
    every_array_may_be_overwritten_after_one_request_for_all,
    ordinary_arrays_are_copied_at_the_call,
    hundreds_of_names_fit_one_snapshot,
    a_snapshot_waits_for_the_one_before_it,
    the_memory_of_copied_tensors_is_given_back,
    a_folder_with_foreign_files_is_refused_on_all_ranks,
    a_path_below_a_file_is_refused_on_all_ranks,
    ranks_that_disagree_are_told_so,
    what_one_rank_cannot_give_fails_on_all,
    a_failure_that_nobody_asks_for_is_warned_of,
    a_name_has_one_shape_and_unknown_names_are_refused,
    an_array_of_another_shape_is_not_restored,
)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    coarse.init()
    warnings.simplefilter("ignore")  # restoring less than all state arrays is meant here
    report_claims(CLAIMS, sys.argv[2])
    coarse.shutdown()
