"""Tensors that devices read and write where they lie: on two workers, where everything from 1 byte on is lent."""

import ctypes
import mmap
import signal
import sys
import time
from pathlib import Path

import numpy as np

import coarse
from tests.support.claims import raises, report_claims, waiting_at_most

NUM_ELEMENTS = 20_000
FOLDER = Path(sys.argv[1])
_LOOK_S = 0.01


def mine(seed: int = 0) -> np.ndarray:
    """What this worker contributes; sums of two are exact."""
    return np.arange(NUM_ELEMENTS, dtype=np.float32) * (coarse.rank() + 1) + seed


def total(seed: int = 0) -> np.ndarray:
    return np.arange(NUM_ELEMENTS, dtype=np.float32) * 3 + 2 * seed


def await_mark(name: str) -> None:
    """Return once the other worker has made a mark; what they meet by must not be what is claimed."""
    while not (FOLDER / name).exists():
        time.sleep(_LOOK_S)


def mark(name: str) -> None:
    (FOLDER / name).touch()


def is_lent(name: str) -> bool:
    """Whether the last result of a name is in no device's memory."""
    try:
        coarse.pull(name).wait()
    except coarse.NotKeptError:
        return True
    return False


def a_call_that_waits_and_one_in_place_lend_and_others_copy() -> None:
    x, y, z, out = mine(), mine(), mine(), np.empty(NUM_ELEMENTS, np.float32)
    np.testing.assert_array_equal(coarse.push_pull(x, "waits", coarse.Sum), total())
    np.testing.assert_array_equal(x, mine())
    assert coarse.push_pull_async(y, "in place", coarse.Sum, out=y).wait() is y
    np.testing.assert_array_equal(y, total())
    handle = coarse.push_pull_async(z, "returns at once", coarse.Sum, out=out)
    z[:] = -1
    np.testing.assert_array_equal(handle.wait(), total())
    assert [is_lent(name) for name in ("waits", "in place", "returns at once")] == [True, True, False]


def a_result_that_no_device_has_is_refused_with_the_remedy_and_left_there_from_then_on() -> None:
    for step in range(3):
        coarse.push_pull(mine(step), "asked for", coarse.Sum)
        if step == 0:
            with raises(coarse.NotKeptError, f"rank {coarse.rank()}", "'asked for'", "push()", "lend_from_bytes = 0"):
                coarse.pull("asked for").wait()
        else:
            np.testing.assert_array_equal(coarse.pull("asked for").wait(), total(step))


def a_pull_of_what_is_under_way_gives_its_result_and_so_does_the_handle() -> None:
    x, other = mine(), np.empty(NUM_ELEMENTS, np.float32)
    handle = coarse.push_pull_async(x, "pulled", coarse.Sum, out=x)
    np.testing.assert_array_equal(coarse.pull("pulled", other).wait(), total())
    assert handle.wait() is x
    np.testing.assert_array_equal(x, total())


def a_call_that_stalled_has_its_tensor_back_and_goes_on_when_it_is_made_again() -> None:
    """Worker 0 comes early; while it waits the second time, the first time's tensors hold something else."""
    if coarse.rank() == 1:
        for way in ("new", "place", "late"):
            await_mark(f"stalled {way}")
            x = mine()
            coarse.push_pull_async(x, f"stalled {way}", coarse.Sum, out=x).wait()
            np.testing.assert_array_equal(x, total())
            mark(f"pushed {way}")
        return
    for way in ("new", "place", "late"):
        first, again = mine(), mine()
        call = to_new if way == "new" else in_place
        with waiting_at_most(0.5), raises(coarse.StallError, f"'stalled {way}'", "ranks [1]"):
            call(first, f"stalled {way}")
        np.testing.assert_array_equal(first, mine())
        first[:] = -1
        mark(f"stalled {way}")
        if way == "late":
            await_mark(f"pushed {way}")
        with raises(coarse.InFlightError, "other values"):
            call(first, f"stalled {way}")
        np.testing.assert_array_equal(call(again, f"stalled {way}"), total())
        np.testing.assert_array_equal(first, np.full(NUM_ELEMENTS, -1))


def a_group_that_stalled_goes_on_with_all_its_types_when_it_is_called_again() -> None:
    def call() -> list[np.ndarray]:
        return coarse.grouped_push_pull([mine(), mine().astype(np.float64)], "group", coarse.Sum)

    if coarse.rank() == 0:
        with waiting_at_most(0.5), raises(coarse.StallError, "'group/group 0'", "ranks [1]"):
            call()
        mark("stalled group")
    else:
        await_mark("stalled group")
    for result in call():
        np.testing.assert_array_equal(result, total())


def to_new(array: np.ndarray, name: str) -> np.ndarray:
    return coarse.push_pull(array, name, coarse.Sum)


def in_place(array: np.ndarray, name: str) -> np.ndarray:
    """A call that waits, and whose result goes where its values are: torch's push_pull_ is such."""
    client = coarse.session.current().require_client()
    return client.push_pull_again(coarse.arrays.describe(array, name, coarse.Sum, 0), array, array).wait()


def a_handle_that_was_dropped_leaves_its_tensor_alive_and_the_next_push_waits() -> None:
    for step in range(3):
        coarse.push_pull_async(x := mine(step), "dropped", coarse.Sum, out=x)
        del x
    x = mine(9)
    np.testing.assert_array_equal(coarse.push_pull(x, "dropped", coarse.Sum), total(9))


def the_tensor_of_a_dropped_handle_is_not_the_next_result() -> None:
    coarse.push_pull_async(x := mine(), "dropped before a copy", coarse.Sum, out=x)
    while not coarse.pull("dropped before a copy").done():
        time.sleep(_LOOK_S)
    result = coarse.push_pull_async(mine(5), "dropped before a copy", coarse.Sum).wait()
    np.testing.assert_array_equal(result, total(5))


def a_wait_that_is_interrupted_gives_the_tensor_back() -> None:
    """By whatever exception; what was pushed counts nonetheless, and the caller's tensor is its own."""
    x = mine()
    if coarse.rank() == 0:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with raises(KeyboardInterrupt):  # type: ignore[arg-type]
            coarse.push_pull(x, "interrupted", coarse.Sum)
        x[:] = -1
        mark("interrupted")
        np.testing.assert_array_equal(coarse.pull("interrupted").wait(), total())
    else:
        await_mark("interrupted")
        np.testing.assert_array_equal(coarse.push_pull(x, "interrupted", coarse.Sum), total())
    np.testing.assert_array_equal(coarse.push_pull(mine(3), "interrupted", coarse.Sum), total(3))
    assert coarse.rank() or (x == -1).all()


def a_wait_for_what_works_in_place_gives_the_tensor_back_when_it_stalls() -> None:
    x = mine()
    if coarse.rank() == 0:
        handle = coarse.push_pull_async(x, "stalls in place", coarse.Sum, out=x)
        with raises(coarse.StallError, "'stalls in place'"):
            handle.wait(timeout=0.2)
        x[:] = -1
        mark("stalls in place")
        np.testing.assert_array_equal(handle.wait(), total())
    else:
        await_mark("stalls in place")
        np.testing.assert_array_equal(coarse.push_pull(x, "stalls in place", coarse.Sum), total())


def a_device_array_of_a_name_whose_result_was_lent_shows_nothing_old() -> None:
    coarse.push_pull(mine(), "shown", coarse.Sum)
    array = coarse.device_array("shown", (NUM_ELEMENTS,), np.float32, coarse.Sum)
    assert not array.any()
    array[:] = mine(1)
    np.testing.assert_array_equal(coarse.push_pull(array, "shown", coarse.Sum), total(1))


def a_name_that_was_forgotten_may_be_lent_again_in_another_shape() -> None:
    for size in (NUM_ELEMENTS, NUM_ELEMENTS // 2, 2 * NUM_ELEMENTS):
        x = np.full(size, coarse.rank() + 1.0)
        np.testing.assert_array_equal(coarse.push_pull(x, "forgotten", coarse.Sum), np.full(size, 3.0))
        coarse.forget("forgotten")


def one_worker_lends_and_the_other_copies() -> None:
    for lender in range(2):
        x = mine()
        if coarse.rank() == lender:
            coarse.push_pull_async(x, "one of two", coarse.Sum, out=x).wait()
        else:
            x = coarse.push_pull_async(x, "one of two", coarse.Sum).wait()
        np.testing.assert_array_equal(x, total())


def memory_that_is_taken_away_is_an_error_on_all_workers_and_other_names_go_on() -> None:
    """Worker 0's tensor may not be touched any more while worker 1 is still to push."""
    pages = mmap.mmap(-1, 64 * mmap.PAGESIZE)
    x = np.frombuffer(pages, np.float32)
    if coarse.rank() == 0:
        handle = coarse.push_pull_async(x, "taken away", coarse.Sum, out=x)
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        at = x.__array_interface__["data"][0]
        assert protect(at, len(pages), 0) == 0
        mark("taken away")
        with raises(coarse.LentMemoryError, "'taken away'", "worker 0 (MPI rank 0)", "lend_from_bytes = 0"):
            handle.wait()
        assert protect(at, len(pages), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    else:
        await_mark("taken away")
        with raises(coarse.LentMemoryError, "'taken away'", "worker 0 (MPI rank 0)"):
            coarse.push_pull(x, "taken away", coarse.Sum)
    np.testing.assert_array_equal(coarse.push_pull(mine(), "after it", coarse.Sum), total())


CLAIMS = [
    a_group_that_stalled_goes_on_with_all_its_types_when_it_is_called_again,
    a_call_that_waits_and_one_in_place_lend_and_others_copy,
    a_result_that_no_device_has_is_refused_with_the_remedy_and_left_there_from_then_on,
    a_pull_of_what_is_under_way_gives_its_result_and_so_does_the_handle,
    a_call_that_stalled_has_its_tensor_back_and_goes_on_when_it_is_made_again,
    a_handle_that_was_dropped_leaves_its_tensor_alive_and_the_next_push_waits,
    the_tensor_of_a_dropped_handle_is_not_the_next_result,
    a_wait_that_is_interrupted_gives_the_tensor_back,
    a_wait_for_what_works_in_place_gives_the_tensor_back_when_it_stalls,
    a_device_array_of_a_name_whose_result_was_lent_shows_nothing_old,
    a_name_that_was_forgotten_may_be_lent_again_in_another_shape,
    one_worker_lends_and_the_other_copies,
    memory_that_is_taken_away_is_an_error_on_all_workers_and_other_names_go_on,
]


def leave_while_it_is_under_way() -> None:
    """Worker 0 pushes and leaves, and the other one gets the sum nonetheless."""
    if coarse.rank() == 0:
        x, link = mine(), coarse.session.current().require_client().link
        coarse.push_pull_async(x, "left behind", coarse.Sum, out=x)
        leave = link.leave
        link.leave = lambda: (leave(), mark("left"))  # a memory device of this process serves on after that
        coarse.shutdown()
        return
    await_mark("left")
    np.testing.assert_array_equal(coarse.push_pull(mine(), "left behind", coarse.Sum), total())
    mark("summed")


if __name__ == "__main__":
    coarse.init()
    report_claims(CLAIMS, FOLDER)
    leave_while_it_is_under_way()
