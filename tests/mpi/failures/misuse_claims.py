"""Misuse that two workers survive: each gets a typed error in time, and goes on afterwards."""

import os
import signal
import sys
from collections.abc import Callable

import numpy as np

import coarse
from coarse.session import current
from tests.support.claims import raises, report_claims, waiting_at_most

STALLS_AFTER_S = 0.5
CAPACITY_BYTES = 64 << 20
CONFIG = {"stall_timeout_s": 20, "device_capacity_bytes": CAPACITY_BYTES}


def team_is_well(name: str) -> None:
    """All workers come here and can still use other names."""
    result = coarse.push_pull_async(np.full(100, coarse.rank()), f"after/{name}", coarse.Sum)
    assert (result.wait(timeout=20.0) == 1).all()


# --- ranks that disagree


def refused_on_every_rank(name: str, array: np.ndarray, op: coarse.Op, *words: str) -> None:
    coarse.barrier()
    with raises(coarse.MismatchError, repr(name), "rank 0", "rank 1", "must push", *words):
        coarse.push_pull(array, name, op)
    with raises(coarse.MismatchError, repr(name)):
        coarse.push_pull(array, name, op)
    team_is_well(name)


def shapes_that_differ_are_named_on_every_rank() -> None:
    array = np.zeros((3, 4 + coarse.rank()), np.float32)
    refused_on_every_rank("differing shapes", array, coarse.Sum, "[3, 4]", "[3, 5]")


def dtypes_that_differ_are_named_on_every_rank() -> None:
    array = np.zeros(8, (np.float32, np.float64)[coarse.rank()])
    refused_on_every_rank("differing dtypes", array, coarse.Sum, "float32", "float64")


def dtypes_of_one_size_that_differ_are_named_too() -> None:
    array = np.zeros(8, (np.float32, np.int32)[coarse.rank()])
    refused_on_every_rank("differing kinds", array, coarse.Sum, "float32", "int32")


def ops_that_differ_are_named_on_every_rank() -> None:
    op = (coarse.Sum, coarse.Max)[coarse.rank()]
    refused_on_every_rank("differing ops", np.zeros(8), op, "op=sum", "op=max")


def a_known_name_may_stand_for_another_shape_on_all_ranks() -> None:
    for _ in range(2):
        for shape in ((2, 3), (3, 2), (5000,), ()):
            assert (coarse.push_pull(np.ones(shape), "reshaped", coarse.Sum) == coarse.size()).all()
        assert coarse.push_pull(np.ones(4, np.int64), "reshaped", coarse.Max).dtype == np.int64
        coarse.profile()
    handle = coarse.push_pull_async(np.ones(2), "reshaped")
    with raises(coarse.InFlightError, "'reshaped'", "float64[2]", "float64[3]", "wait()"):
        coarse.push(np.ones(3), "reshaped")
    handle.wait(timeout=20.0)


def another_shape_of_an_array_in_device_memory_is_refused() -> None:
    kept = coarse.device_array("kept", (2, 3), np.float64)
    words = (f"rank {coarse.rank()}", "'kept'", "[2, 3]", "[3, 2]", "another name", "forget()")
    with raises(coarse.MismatchError, *words):
        coarse.push_pull(np.zeros((3, 2)), "kept")
    coarse.profile()
    with raises(coarse.MismatchError, *words):
        coarse.push_pull(np.zeros((3, 2)), "kept")
    coarse.push_pull(kept, "kept")
    coarse.forget("kept")
    coarse.push_pull(np.zeros((3, 2)), "kept")


def a_rank_that_alone_changes_a_names_shape_is_told_to_the_others() -> None:
    for is_forgotten, name in ((False, "changed alone"), (True, "forgotten and changed alone")):
        coarse.push_pull(np.ones(3), name)
        if coarse.rank() == 0:
            if is_forgotten:
                coarse.forget(name)
            handle = coarse.push_pull_async(np.ones(4), name, coarse.Sum)
            coarse.barrier()
        else:
            with raises(coarse.MismatchError, "rank 0", repr(name), "another shape"):
                coarse.push_pull(np.ones(3), name)
            coarse.barrier()
            coarse.forget(name)
            handle = coarse.push_pull_async(np.ones(4), name, coarse.Sum)
        assert (handle.wait(timeout=20.0) == coarse.size()).all()


def a_rank_may_forget_a_name_and_join_while_others_push_it() -> None:
    coarse.push_pull(np.ones(3), "forgotten first", coarse.Sum)
    if coarse.rank() == 0:
        coarse.forget("forgotten first")
        current().require_client().join()
        return
    assert (coarse.push_pull(np.ones(3), "forgotten first", coarse.Sum) == coarse.size() - 1).all()
    coarse.forget("forgotten first")
    current().require_client().join()


# --- the order of calls


def a_name_pushed_twice_is_refused_and_its_first_result_stands() -> None:
    first = coarse.push_pull_async(np.full(9, 1.0), "twice")
    with raises(coarse.InFlightError, f"rank {coarse.rank()}", "'twice'", "wait()"):
        coarse.push(np.full(9, 50.0), "twice")
    assert (first.wait(timeout=20.0) == 1.0).all()
    coarse.push(np.full(9, 2.0), "twice")
    with raises(coarse.InFlightError, "'twice'", "pull()"):
        coarse.push(np.full(9, 50.0), "twice")
    assert (coarse.pull("twice").wait(timeout=20.0) == 2.0).all()


def a_second_init_does_nothing_and_one_that_asks_for_something_else_is_refused() -> None:
    coarse.init()
    coarse.init(CONFIG)
    with raises(coarse.ConfigError, "bucket_bytes", "12345", "once"):
        coarse.init({"bucket_bytes": 12345})
    team_is_well("second init")


def a_forked_child_gets_a_typed_error() -> None:
    array = coarse.device_array("forked", (4,), np.float64)
    calls: list[Callable[[], object]] = [
        coarse.rank, lambda: coarse.push(np.zeros(4), "forked"), lambda: coarse.push(array, "forked")
    ]  # fmt: skip
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in calls:
                with raises(coarse.NotInitializedError, "forked"):
                    call()
            status = 0 if not coarse.is_initialized() else 2
            coarse.shutdown()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    team_is_well("fork")


def sigterm_ends_a_forked_child_as_any_process() -> None:
    coarse.device_array("unmapped in a child", (4,), np.float64)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"!")  # before that Python drops signals
        signal.pause()
        os._exit(0)
    os.read(reading, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.close(reading)
    os.close(writing)
    team_is_well("SIGTERM")


# --- arguments


def arguments_that_make_no_sense_are_refused() -> None:
    array = np.zeros(3)
    with raises(TypeError, "numpy array", "list"):
        coarse.push([1.0, 2.0], "list")  # type: ignore[arg-type]
    with raises(TypeError, "name", "int"):
        coarse.push(array, 7)  # type: ignore[arg-type]
    with raises(ValueError, "op", "mean", "coarse.Average"):
        coarse.push(array, "mean", "mean")  # type: ignore[arg-type]
    for make in (coarse.device_array, coarse.state_array):
        with raises(ValueError, "'negative'", "-1", "below 0"):
            make("negative", (-1,), np.float32)
        with raises(TypeError, "'fraction'", "integer", "float 3.5"):
            make("fraction", (3.5,), np.float32)  # type: ignore[arg-type]
        with raises(TypeError, "'bare'", "tuple", "int 4"):
            make("bare", 4, np.float32)  # type: ignore[arg-type]
        assert make("plain", (np.int64(4), np.uint8(2)), np.float32).shape == (4, 2)
    with raises(TypeError, "'urgent'", "priority", "str 'x'"):
        coarse.push(array, "urgent", priority="x")  # type: ignore[arg-type]
    coarse.push_pull(array, "urgent", priority=np.int64(3))
    with raises(ValueError, "name", "''"):
        coarse.push(array, "")
    with raises(ValueError, "characters"):
        coarse.push(array, "x" * 100_000)
    team_is_well("arguments")


def an_out_that_does_not_fit_is_refused() -> None:
    coarse.push_pull(np.zeros((2, 3)), "out")
    for out in (np.zeros((3, 2)), np.zeros(6), np.zeros((2, 3), np.float32)):
        with raises(ValueError, "'out'", f"rank {coarse.rank()}", "float64", "[2, 3]"):
            coarse.pull("out", out)
        with raises(ValueError, "'out async'", f"rank {coarse.rank()}", "float64", "[2, 3]"):
            coarse.push_pull_async(np.zeros((2, 3)), "out async", out=out)
    with raises(TypeError, "numpy array", "list"):
        coarse.pull("out", [0.0])  # type: ignore[arg-type]
    team_is_well("out")


# --- memory


def a_tensor_larger_than_its_device_is_refused_on_every_rank() -> None:
    coarse.barrier()
    words = (f"rank {coarse.rank()}", "'too large'", CAPACITY_BYTES * 2, "device_capacity_bytes")
    for _ in range(2):
        with raises(coarse.CapacityError, *words):
            coarse.push_pull(np.zeros(CAPACITY_BYTES // 4, np.float64), "too large")
    team_is_well("too large")


def a_device_that_is_full_says_so_and_keeps_what_it_has() -> None:
    array = np.full(CAPACITY_BYTES // 32, coarse.rank() + 1.0)  # a quarter of a device
    kept = 0
    with raises(coarse.CapacityError, "'fill/", "bytes free", CAPACITY_BYTES // 4):
        for kept in range(9):
            coarse.push_pull(array, f"fill/{kept}")
    assert 0 < kept < 8
    assert (coarse.push_pull(array, "fill/0") == 1.5).all()
    team_is_well("full")


# --- what nobody sends


def a_pull_that_nobody_pushes_stalls_and_names_all_ranks() -> None:
    words = (f"rank {coarse.rank()}", "'nobody'", "stall_timeout_s")
    with waiting_at_most(STALLS_AFTER_S), raises(coarse.StallError, *words) as caught:
        coarse.pull("nobody").wait()
    assert caught[0].missing == (0, 1)  # type: ignore[attr-defined]


def a_push_that_one_rank_does_not_make_names_that_rank() -> None:
    coarse.push_pull(np.zeros(9), "late")  # registered everywhere
    for name in ("late", "never registered"):
        coarse.barrier()
        if coarse.rank() == 0:
            handle = coarse.push_pull_async(np.full(9, 1.0), name)
            words = ("rank 0", repr(name), f"{STALLS_AFTER_S} s", "[1]")
            with waiting_at_most(STALLS_AFTER_S), raises(coarse.StallError, *words) as caught:
                handle.wait()
            assert caught[0].missing == (1,)  # type: ignore[attr-defined]
            with raises(coarse.StallError, repr(name), "0.1 s"):
                handle.wait(timeout=0.1)
            coarse.push(np.zeros(1), f"go/{name}")
            assert (handle.wait(timeout=20.0) == 2.0).all()
        else:
            coarse.push(np.zeros(1), f"go/{name}")
            coarse.pull(f"go/{name}").wait(timeout=20.0)
            coarse.push(np.full(9, 3.0), name)
            assert (coarse.pull(name).wait(timeout=20.0) == 2.0).all()


CLAIMS = [
    shapes_that_differ_are_named_on_every_rank,
    dtypes_that_differ_are_named_on_every_rank,
    dtypes_of_one_size_that_differ_are_named_too,
    ops_that_differ_are_named_on_every_rank,
    a_known_name_may_stand_for_another_shape_on_all_ranks,
    another_shape_of_an_array_in_device_memory_is_refused,
    a_rank_that_alone_changes_a_names_shape_is_told_to_the_others,
    a_rank_may_forget_a_name_and_join_while_others_push_it,
    a_name_pushed_twice_is_refused_and_its_first_result_stands,
    a_second_init_does_nothing_and_one_that_asks_for_something_else_is_refused,
    a_forked_child_gets_a_typed_error,
    sigterm_ends_a_forked_child_as_any_process,
    arguments_that_make_no_sense_are_refused,
    an_out_that_does_not_fit_is_refused,
    a_tensor_larger_than_its_device_is_refused_on_every_rank,
    a_pull_that_nobody_pushes_stalls_and_names_all_ranks,
    a_push_that_one_rank_does_not_make_names_that_rank,
    a_device_that_is_full_says_so_and_keeps_what_it_has,
]


if __name__ == "__main__":
    coarse.init(CONFIG)
    report_claims(CLAIMS, sys.argv[1])
