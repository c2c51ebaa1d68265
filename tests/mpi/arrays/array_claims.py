"""What push and pull promise, checked on every worker against sums that each works out for itself."""

import sys
import threading
import time

import numpy as np

import coarse
from tests.support.claims import raises, report_claims, takes_all

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int32, np.int64)
OPS = (coarse.Sum, coarse.Average, coarse.Min, coarse.Max)
SHAPES = ((), (1,), (0,), (3, 0, 2), (7,), (3, 5, 2), (1023,), (4097, 3), (257, 129))
ACCUMULATOR = {np.dtype(np.float16): np.dtype(np.float32)}


def contribution(
    rank: int, shape: tuple[int, ...], dtype: np.dtype = np.float32, seed: int = 0
) -> np.ndarray:
    """What a worker pushes: random 64ths, so that sums are exact in any order."""
    numbers = np.random.default_rng([seed, rank]).integers(-1000, 1000, shape, np.int16)
    return np.asarray(numbers if np.dtype(dtype).kind == "i" else numbers / 64, dtype)


def mine(shape: tuple[int, ...], dtype: np.dtype = np.float32, seed: int = 0) -> np.ndarray:
    return contribution(coarse.rank(), shape, dtype, seed)


def expected(
    shape: tuple[int, ...],
    dtype: np.dtype = np.float32,
    op: coarse.Op = coarse.Average,
    seed: int = 0,
) -> np.ndarray:
    """The contributions of all workers combined by plain numpy, in float32 at least, rounded once."""
    all_workers = [contribution(rank, shape, dtype, seed) for rank in range(coarse.size())]
    return combined(np.stack(all_workers), op)


def combined(rows: np.ndarray, op: coarse.Op) -> np.ndarray:  # (workers, ...) -> (...)
    wide = rows.astype(ACCUMULATOR.get(rows.dtype, rows.dtype))
    if op in (coarse.Min, coarse.Max):
        return (wide.min if op is coarse.Min else wide.max)(axis=0).astype(rows.dtype)
    total = wide.sum(axis=0, dtype=wide.dtype)
    if op is coarse.Average:
        total = total / wide.dtype.type(len(rows))
    return np.asarray(total).astype(rows.dtype)


def same(result: np.ndarray, reference: np.ndarray) -> None:
    assert result.shape == reference.shape
    assert result.dtype == reference.dtype
    np.testing.assert_array_equal(result, reference)


# --- sums


def kinds_of(seed: int) -> list[tuple[np.dtype, coarse.Op]]:
    """Types and operations that go together, or in `make test` every other of them, from the seed on."""
    every = [(dtype, op) for dtype in (*FLOATS, *INTEGERS) for op in OPS]
    every = [(dtype, op) for dtype, op in every if dtype in FLOATS or op is not coarse.Average]
    return every if takes_all() else every[seed % 2 :: 2]


def every_dtype_op_and_shape_gives_the_plain_sum() -> None:
    for seed, shape in enumerate(SHAPES if takes_all() else SHAPES[::2]):
        kinds = kinds_of(seed)
        handles = [
            coarse.push_pull_async(mine(shape, dtype, seed), f"sum/{shape}/{np.dtype(dtype)}/{op}", op)
            for dtype, op in kinds
        ]
        for (dtype, op), handle in zip(kinds, handles, strict=True):
            same(handle.wait(), expected(shape, dtype, op, seed))


def arrays_of_many_shards_give_the_plain_sum() -> None:
    for seed, num_elements in enumerate((1 << 20, 3_000_011) if takes_all() else (1_000_003,)):
        result = coarse.push_pull(mine((num_elements,), seed=seed), f"large/{num_elements}")
        same(result, expected((num_elements,), seed=seed))


def arrays_that_are_not_contiguous_give_the_plain_sum() -> None:
    shape = (65, 33, 4)
    plain = mine(shape)
    reference = expected(shape)
    views = {
        "transposed": (plain.T, reference.T),
        "every other": (plain[::2, :, 1:3], reference[::2, :, 1:3]),
        "backwards": (plain[::-1], reference[::-1]),
        "fortran": (np.asfortranarray(plain), reference),
        "repeated": (np.broadcast_to(plain[0], (3, 33, 4)), np.stack([reference[0]] * 3)),
    }
    for name, (view, wanted) in views.items():
        assert not view.flags.c_contiguous
        same(coarse.push_pull(view, f"view/{name}"), wanted)
        out = np.empty((*wanted.shape, 2), np.float32)[..., 0]
        same(coarse.push_pull_async(view, f"view out/{name}", out=out).wait(), wanted)
        assert (out == wanted).all()


def half_types_accumulate_in_float32_and_round_once() -> None:
    rank, size = coarse.rank(), coarse.size()
    rows = np.ones((size, 300), np.float16)
    rows[0] = 2048  # 2048 + 1 is 2048 again in float16
    same(coarse.push_pull(rows[rank], "half sum", coarse.Sum), combined(rows, coarse.Sum))
    rows = np.full((size, 300), 60000, np.float16)  # the sum of two is beyond float16
    same(coarse.push_pull(rows[rank], "half average"), rows[0])


def what_is_not_a_number_stays_so() -> None:
    values = mine((50,))
    if coarse.rank() == 0:
        values[3:5] = np.nan, np.inf
    for op in OPS:
        result = coarse.push_pull(values, f"not a number/{op}", op)
        assert np.isnan(result[3])
        assert np.isfinite(np.delete(result, [3, 4])).all()
        wanted = values[4] if coarse.rank() == 0 and op is not coarse.Min else np.inf
        assert op is coarse.Min or result[4] == wanted


# --- many at once


def hundreds_of_names_in_flight_may_be_pushed_in_any_order() -> None:
    rng = np.random.default_rng([17, coarse.rank()])
    shapes = {f"many/{i}": (1 + 37 * (i % 29), 1 + i % 5) for i in range(300 if takes_all() else 150)}
    for step in range(2):
        names = list(shapes)
        rng.shuffle(names)
        handles = {
            name: coarse.push_pull_async(
                mine(shapes[name], seed=step), name, priority=int(rng.integers(9))
            )
            for name in names
        }
        rng.shuffle(names)
        for name in names:
            same(handles[name].wait(), expected(shapes[name], seed=step))


def first_uses_in_a_row_keep_all_rules() -> None:
    arrays = {f"first/{i}": mine((i % 50, 1 + i % 3), seed=i) for i in range(400)}
    arrays["first/large"] = mine((100_000,), seed=400)
    arrays["first/strided"] = mine((60, 60), seed=401)[::2, ::3]
    handles = {}
    for name, array in arrays.items():
        given = array.copy() if name != "first/strided" else array
        handles[name] = coarse.push_pull_async(given, name)
        if name != "first/strided":
            given[...] = -1  # it has been copied
    with raises(coarse.InFlightError, "'first/399'"):
        coarse.push_pull_async(arrays["first/399"], "first/399")
    with raises(coarse.InFlightError, "'first/398'"):
        coarse.forget("first/398")
    for name in ("first/397", "first/396"):  # nobody wants their results: the next push waits for them
        del handles[name]
        same(coarse.push_pull(arrays[name], name), expected_of(name, arrays))
    coarse.push(arrays["first/0"], "first/pushed")
    same(coarse.pull("first/pushed").wait(), expected(arrays["first/0"].shape, seed=0))
    for name, handle in reversed(handles.items()):
        same(handle.wait(), expected_of(name, arrays))
    own = coarse.device_array("first/1", arrays["first/1"].shape, np.float32)
    own[...] = arrays["first/1"]
    same(coarse.push_pull(own, "first/1"), expected_of("first/1", arrays))
    coarse.barrier()
    for name in (*arrays, "first/pushed"):
        coarse.forget(name)


def expected_of(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The average of what all workers pushed by one of the names above."""
    if name == "first/strided":
        return expected((60, 60), seed=401)[::2, ::3]
    return expected(arrays[name].shape, seed=400 if name == "first/large" else int(name.split("/")[1]))


def several_dtypes_may_be_in_flight_at_once() -> None:
    cases = [(d, op) for d in FLOATS for op in OPS] + [(d, coarse.Sum) for d in INTEGERS]
    handles = [
        coarse.push_pull_async(mine((1001,), dtype), f"mixed/{np.dtype(dtype)}/{op}", op)
        for dtype, op in cases
    ]
    for (dtype, op), handle in zip(cases, handles, strict=True):
        same(handle.wait(), expected((1001,), dtype, op))


def a_name_is_used_again_in_every_step() -> None:
    kept = []
    for step in range(50):
        kept.append(coarse.push_pull(mine((777,), seed=step), "again"))
    for step, result in enumerate(kept):
        same(result, expected((777,), seed=step))  # results are the caller's own


def priorities_do_not_change_results() -> None:
    handles = [
        coarse.push_pull_async(mine((3001,), seed=i), f"priority/{i}", priority=i % 7)
        for i in range(40)
    ]
    for i, handle in enumerate(handles):
        same(handle.wait(), expected((3001,), seed=i))


def threads_may_push_and_pull_at_once() -> None:
    failures: list[str] = []

    def work(thread: int) -> None:
        for step in range(10):
            result = coarse.push_pull(mine((999,), seed=thread), f"thread/{thread}")
            if not (result == expected((999,), seed=thread)).all():
                failures.append(f"thread {thread} step {step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- push, pull, handles


def push_has_copied_when_it_returns() -> None:
    array = mine((5000,))
    handle = coarse.push(array, "copied")
    array[:] = -1
    assert handle.done()
    same(coarse.pull("copied").wait(), expected((5000,)))


def an_array_is_left_as_it_is_unless_it_is_the_out() -> None:
    array = mine((1234,))
    before = array.copy()
    same(coarse.push_pull(array, "left as it is"), expected((1234,)))
    same(array, before)
    result = coarse.push_pull_async(array, "in out", out=array).wait()
    assert result is array
    same(array, expected((1234,)))


def pull_gives_the_version_after_the_last_push_or_the_current_one() -> None:
    for step in range(4):
        coarse.push(mine((64, 3), seed=step), "versions")
        same(coarse.pull("versions").wait(), expected((64, 3), seed=step))
        out = np.empty((64, 3), np.float32)
        assert coarse.pull("versions", out).wait() is out  # nothing was pushed since
        same(out, expected((64, 3), seed=step))


def a_handle_is_done_after_a_while_and_gives_its_result_again() -> None:
    handle = coarse.push_pull_async(mine((100,)), "handle")
    coarse.barrier()
    coarse.push_pull(mine((1,)), "after the handle")
    result = handle.wait()
    assert handle.done()
    assert handle.wait(timeout=0.0) is result
    same(result, expected((100,)))


def a_device_array_is_combined_in_place() -> None:
    array = coarse.device_array("device array", (301, 7), np.float32)
    assert not array.any()
    for step in range(5):
        array[:] = mine((301, 7), seed=step)
        assert coarse.push_pull(array, "device array") is array
        same(array, expected((301, 7), seed=step))


def an_array_that_only_begins_in_device_memory_is_copied() -> None:
    array = coarse.device_array("parent", (2, 2), np.float32, coarse.Sum)
    for view in (array.T, np.broadcast_to(array[0], (2, 2))):
        array[...] = [[1, 2], [3, 4]]
        wanted = coarse.size() * view.copy()
        same(coarse.push_pull(view, "parent", coarse.Sum), wanted)
    array[...] = [[1, 2], [3, 4]]
    wanted = coarse.size() * array.copy()
    out = np.empty((2, 2), np.float32)
    same(coarse.push_pull_async(array, "parent", coarse.Sum, out=out).wait(), wanted)
    same(array, wanted)
    array[...] = [[1, 2], [3, 4]]
    assert coarse.push_pull_async(array, "parent", coarse.Sum, out=array.T).wait().tolist() == wanted.tolist()


def a_scalar_stays_a_scalar() -> None:
    result = coarse.push_pull(np.asarray(coarse.rank() + 1.0), "scalar", coarse.Sum)
    assert result.shape == ()
    assert result == coarse.size() * (coarse.size() + 1) / 2


# --- the rest of the interface


def ranks_and_sizes_fit_together() -> None:
    assert 0 <= coarse.rank() < coarse.size()
    assert 0 <= coarse.local_rank() < coarse.local_size() <= coarse.size()
    seen = np.zeros(coarse.size(), np.int64)
    seen[coarse.rank()] = 1
    same(coarse.push_pull(seen, "ranks", coarse.Sum), np.ones(coarse.size(), np.int64))
    firsts = np.asarray([coarse.local_rank() == 0, coarse.local_size()], np.float64)
    nodes, workers = coarse.push_pull(firsts * [1, firsts[0]], "nodes", coarse.Sum)
    assert nodes >= 1
    assert workers == coarse.size()
    assert coarse.is_initialized()


def nobody_passes_a_barrier_before_all_have_come() -> None:
    for step in range(1, 6):
        coarse.push(np.ones(1, np.int64), f"before barrier/{step}", coarse.Sum)
        coarse.barrier()
        assert coarse.pull(f"before barrier/{step}").wait(timeout=5.0)[0] == coarse.size()


def integers_have_no_average() -> None:
    for dtype in INTEGERS:
        with raises(TypeError, "'average'", np.dtype(dtype), "use coarse.Sum"):
            coarse.push_pull(mine((4,), dtype), "average")


def a_group_travels_together_and_gives_what_each_would_alone() -> None:
    kinds = [((3, 5), np.float32), ((), np.float64), ((0,), np.float32), ((1000,), np.float16), ((4, 1), np.float32)]
    for op in OPS:
        arrays = [mine(shape, dtype, seed) for seed, (shape, dtype) in enumerate(kinds)]
        arrays[0] = arrays[0][:, ::2]
        wanted = [expected(shape, dtype, op, seed) for seed, (shape, dtype) in enumerate(kinds)]
        wanted[0] = wanted[0][:, ::2]
        handle = coarse.grouped_push_pull_async(arrays, f"group, started {op.name}", op)
        for results in (coarse.grouped_push_pull(arrays, f"group {op.name}", op), handle.wait(), handle.wait()):
            for result, reference in zip(results, wanted, strict=True):
                same(result, reference)
        assert handle.done()
    assert coarse.grouped_push_pull([], "nothing") == []
    with raises(TypeError, "'one'", "list of numpy arrays"):
        coarse.grouped_push_pull(mine((2,)), "one")  # type: ignore[arg-type]
    with raises(TypeError, "'refused'", "complex"):
        coarse.grouped_push_pull([mine((2,)), np.zeros(3, complex)], "refused")


def groups_may_be_used_anew_with_other_shapes() -> None:
    for shapes in ([(2,), (3,)], [(3,), (2,)], [(5,)]):
        arrays = [mine(shape) for shape in shapes]
        for result, shape in zip(coarse.grouped_push_pull(arrays, "other shapes"), shapes, strict=True):
            same(result, expected(shape))


def types_that_cannot_be_summed_are_refused() -> None:
    for array in (np.zeros(3, complex), np.zeros(3, bool), np.zeros(3, ">f4"), np.array(["a"])):
        with raises(TypeError, "'refused'", array.dtype, "float32"):
            coarse.push_pull(array, "refused")


def a_forgotten_name_gives_its_memory_back_and_may_be_used_anew() -> None:
    def used() -> float:
        return sum(device["memory_used_bytes"] for device in coarse.statistics()["devices"].values())

    coarse.barrier()
    before = used()
    coarse.barrier()
    for use in range(1, 6):
        shape = (300 * use, 7)
        same(coarse.push_pull(mine(shape, seed=use), "forgotten"), expected(shape, seed=use))
        array = coarse.device_array("forgotten array", shape, np.float64)
        assert not array.any()
        array[...] = mine(shape, np.float64, seed=use)
        same(coarse.push_pull(array, "forgotten array"), expected(shape, np.float64, seed=use))
        if use == 3:
            coarse.profile()  # a new epoch keeps regions
        handle = coarse.push_pull_async(mine((3,)), "in flight")
        with raises(coarse.InFlightError, f"rank {coarse.rank()}", "'in flight'", "forgotten", "wait()"):
            coarse.forget("in flight")
        handle.wait()
        for name in ("forgotten", "forgotten array", "in flight", "never used"):
            coarse.forget(name)
    deadline_s = time.monotonic() + 5
    while used() != before and time.monotonic() < deadline_s:
        pass  # the last word is on its way between devices
    assert used() == before
    coarse.barrier()


def statistics_count_keys_links_and_devices() -> None:
    for _ in range(3):
        coarse.push_pull(mine((2500,)), "counted")
    found = coarse.statistics()
    assert found["rank"] == coarse.rank()
    assert found["keys"]["counted"]["pushes"] == 3
    assert found["keys"]["counted"]["bytes"] == 3 * 10000
    assert found["wait_s"] >= found["keys"]["counted"]["wait_s"] > 0
    assert sum(found["links"].values()) >= 6 * 10000
    assert found["devices"]
    assert all(counters["records"] > 0 for counters in found["devices"].values())
    names = {"folded_bytes", "fold_s", "results", "cpu_s", "memory_used_bytes"}  # those of the tutorial
    names |= {"mpi_sent_bytes", "between_nodes_sent_bytes"}
    assert all(names <= counters.keys() for counters in found["devices"].values())


CLAIMS = [
    every_dtype_op_and_shape_gives_the_plain_sum,
    arrays_of_many_shards_give_the_plain_sum,
    arrays_that_are_not_contiguous_give_the_plain_sum,
    half_types_accumulate_in_float32_and_round_once,
    what_is_not_a_number_stays_so,
    hundreds_of_names_in_flight_may_be_pushed_in_any_order,
    first_uses_in_a_row_keep_all_rules,
    several_dtypes_may_be_in_flight_at_once,
    a_name_is_used_again_in_every_step,
    priorities_do_not_change_results,
    threads_may_push_and_pull_at_once,
    push_has_copied_when_it_returns,
    an_array_is_left_as_it_is_unless_it_is_the_out,
    pull_gives_the_version_after_the_last_push_or_the_current_one,
    a_handle_is_done_after_a_while_and_gives_its_result_again,
    a_device_array_is_combined_in_place,
    an_array_that_only_begins_in_device_memory_is_copied,
    a_scalar_stays_a_scalar,
    ranks_and_sizes_fit_together,
    nobody_passes_a_barrier_before_all_have_come,
    integers_have_no_average,
    types_that_cannot_be_summed_are_refused,
    a_group_travels_together_and_gives_what_each_would_alone,
    groups_may_be_used_anew_with_other_shapes,
    a_forgotten_name_gives_its_memory_back_and_may_be_used_anew,
    statistics_count_keys_links_and_devices,
]


if __name__ == "__main__":
    coarse.init()
    report_claims(CLAIMS, sys.argv[1])
