"""What push and pull promise of arrays on GPUs, checked on every worker against sums that each works out for itself.

By the interface of `coarse.gpu` alone, so that it runs on CUDA's GPUs (tests/gpu) and on stand-ins.
"""

import sys

import numpy as np

import coarse
from coarse.gpu.available import gpus
from coarse.gpu.interface import GpuArray, is_on_gpu
from coarse.session import current
from tests.mpi.arrays.array_claims import combined, contribution, expected, kinds_of, mine, same
from tests.support.claims import raises, report_claims

SHAPES = ((), (1,), (0,), (3, 5, 2), (1023,), (4097, 3))


def gpu() -> int:
    """This worker's GPU: they are dealt in turn."""
    return coarse.rank() % len(gpus().infos())


def on_gpu(values: np.ndarray) -> GpuArray:
    """Values on this worker's GPU, once its stream has come to it."""
    array = gpus().empty(gpu(), values.shape, values.dtype)
    gpus().current_stream(gpu()).arrays.copy(array, np.ascontiguousarray(values))
    return array


def on_host(array: GpuArray) -> np.ndarray:
    """What whoever works in the user's stream finds in an array."""
    found = np.empty(array.shape, array.dtype)
    stream = gpus().current_stream(gpus().gpu_of(array))
    stream.arrays.copy(found, array)
    stream.record().wait()
    return found


def every_type_and_operation_gives_the_bits_of_the_host() -> None:
    for seed, shape in enumerate(SHAPES):
        kinds = kinds_of(seed)
        handles = [
            coarse.push_pull_async(on_gpu(mine(shape, dtype, seed)), f"gpu/{shape}/{np.dtype(dtype)}/{op}", op)
            for dtype, op in kinds
        ]
        for (dtype, op), handle in zip(kinds, handles, strict=True):
            same(on_host(handle.wait()), expected(shape, dtype, op, seed))


def a_result_is_on_the_gpu_of_its_array() -> None:
    result = coarse.push_pull(on_gpu(mine((100,))), "gpu/where")
    assert is_on_gpu(result)
    assert gpus().gpu_of(result) == gpu()


def arrays_of_many_pieces_give_the_plain_sum() -> None:
    num_elements = 8_400_003  # more than two pieces of 16 MiB
    same(on_host(coarse.push_pull(on_gpu(mine((num_elements,))), "gpu/large")), expected((num_elements,)))


def some_workers_may_have_theirs_on_the_host() -> None:
    values = mine((5000,), seed=3)
    result = coarse.push_pull(on_gpu(values) if coarse.rank() % 2 else values, "gpu/mixed")
    assert is_on_gpu(result) is bool(coarse.rank() % 2)
    same(on_host(result) if is_on_gpu(result) else result, expected((5000,), seed=3))


def a_result_may_go_to_the_host_and_one_of_the_host_to_a_gpu() -> None:
    out = np.empty(700, np.float32)
    coarse.push_pull_async(on_gpu(mine((700,), seed=4)), "gpu/to host", out=out).wait()
    same(out, expected((700,), seed=4))
    spread = np.zeros((700, 2), np.float32)
    coarse.push_pull_async(on_gpu(mine((700,), seed=5)), "gpu/spread", out=spread[:, 0]).wait()
    same(spread[:, 0], expected((700,), seed=5))
    assert not spread[:, 1].any()
    into = on_gpu(np.zeros(700, np.float32))
    coarse.push_pull_async(mine((700,), seed=6), "gpu/from host", out=into).wait()
    same(on_host(into), expected((700,), seed=6))


def what_is_combined_in_place_is_there_for_the_user_s_stream() -> None:
    array = on_gpu(mine((9000,), seed=7))
    handle = coarse.push_pull_async(array, "gpu/in place", out=array)
    assert handle.wait() is array
    same(on_host(array), expected((9000,), seed=7))


def a_push_has_read_its_array_before_the_user_s_stream_goes_on() -> None:
    for step in range(5):
        array = on_gpu(mine((20_000,), seed=step))
        coarse.push(array, "gpu/overwritten")
        gpus().current_stream(gpu()).arrays.zero(array)
        result = coarse.pull("gpu/overwritten").wait()
        same(result, expected((20_000,), seed=step))
        assert not on_host(array).any()


def a_call_that_returns_at_once_has_read_its_array_too() -> None:
    array = on_gpu(mine((20_000,), seed=1))
    handle = coarse.push_pull_async(array, "gpu/read at once")
    gpus().current_stream(gpu()).arrays.zero(array)
    same(on_host(handle.wait()), expected((20_000,), seed=1))


def one_array_may_be_pushed_under_several_names() -> None:
    array = on_gpu(mine((6000,), seed=2))
    handles = [coarse.push_pull_async(array, f"gpu/alias/{number}") for number in range(4)]
    parts = [coarse.push_pull_async(array[begin:], f"gpu/part/{begin}") for begin in (0, 100, 101)]
    for handle in handles:
        same(on_host(handle.wait()), expected((6000,), seed=2))
    for begin, handle in zip((0, 100, 101), parts, strict=True):
        same(on_host(handle.wait()), expected((6000,), seed=2)[begin:])
    same(on_host(array), mine((6000,), seed=2))


def several_arrays_travel_as_one() -> None:
    kinds = [((3, 5), np.float32), ((), np.float32), ((700,), np.float64), ((0,), np.float32), ((4, 1), np.float64)]
    values = [mine(shape, dtype, seed) for seed, (shape, dtype) in enumerate(kinds)]
    wanted = [expected(shape, dtype, seed=seed) for seed, (shape, dtype) in enumerate(kinds)]
    for step in range(2):
        arrays = [on_gpu(value) for value in values]
        results = coarse.grouped_push_pull(arrays, "gpu/group")
        assert all(is_on_gpu(result) for result in results)
        handle = coarse.grouped_push_pull_async(arrays, "gpu/group at once")
        for array in arrays:
            gpus().current_stream(gpu()).arrays.zero(array)
        for found in (results, handle.wait()):
            for one, other in zip(found, wanted, strict=True):
                same(on_host(one), other)
        mixed = [value if (place + step + coarse.rank()) % 2 else on_gpu(value) for place, value in enumerate(values)]
        found = coarse.grouped_push_pull(mixed, "gpu/mixed group")
        for one, other, given in zip(found, wanted, mixed, strict=True):
            assert is_on_gpu(one) is is_on_gpu(given)
            same(on_host(one) if is_on_gpu(one) else one, other)


def a_wait_that_stalled_is_waited_for_again() -> None:
    if coarse.rank() == 0:
        handle = coarse.push_pull_async(on_gpu(mine((5000,), seed=3)), "gpu/late")
        with raises(coarse.StallError, "gpu/late"):
            handle.wait(0.2)
        coarse.push_pull(np.zeros(1, np.float32), "gpu/late may go on")
        same(on_host(handle.wait()), expected((5000,), seed=3))
        return
    coarse.push_pull(np.zeros(1, np.float32), "gpu/late may go on")
    same(on_host(coarse.push_pull(on_gpu(mine((5000,), seed=3)), "gpu/late")), expected((5000,), seed=3))


def a_gpu_that_has_no_room_for_a_result_leaves_nothing_half_done() -> None:
    chosen = type(gpus())
    empty = chosen.empty

    def full(*_: object) -> GpuArray:
        raise coarse.CapacityError("allocating an array on GPU 0: out of memory")

    array = on_gpu(mine((800,), seed=4))
    for call in (lambda: coarse.push_pull(array, "gpu/full"), lambda: coarse.grouped_push_pull([array], "gpu/full")):
        chosen.empty = full
        try:
            with raises(coarse.CapacityError, "out of memory"):
                call()
        finally:
            chosen.empty = empty
        result = call()
        same(on_host(result[0] if isinstance(result, list) else result), expected((800,), seed=4))


def routes_are_measured_anew_from_where_arrays_are() -> None:
    coarse.push_pull(on_gpu(mine((100,))), "gpu/before routes")
    assert current().require_client().copies.gpu == gpu()
    coarse.profile()
    same(on_host(coarse.push_pull(on_gpu(mine((20_000,), seed=8)), "gpu/after routes")), expected((20_000,), seed=8))


def names_in_flight_come_in_any_order() -> None:
    names = [f"gpu/many/{number}" for number in range(60)]
    shuffled = np.random.default_rng(coarse.rank()).permutation(len(names))
    handles = {int(n): coarse.push_pull_async(on_gpu(mine((n % 7 * 30,), seed=n)), names[n]) for n in shuffled}
    for number in range(len(names)):
        same(on_host(handles[number].wait()), expected((number % 7 * 30,), seed=number))


def a_name_is_used_again_in_every_step() -> None:
    array = on_gpu(np.zeros(3000, np.float32))
    for step in range(10):
        values = mine((3000,), seed=step)
        gpus().current_stream(gpu()).arrays.copy(array, values)
        same(on_host(coarse.push_pull(array, "gpu/again")), expected((3000,), seed=step))


def a_device_array_is_combined_where_it_lies() -> None:
    """On a GPU the push leaves once the stream that writes it is through."""
    array = coarse.device_array("gpu/device", (4000,), np.float32)
    for step in range(3):
        values = mine((4000,), seed=step)
        if is_on_gpu(array):
            gpus().current_stream(gpus().gpu_of(array)).arrays.copy(array, values)
        else:
            array[...] = values
        assert coarse.push_pull(array, "gpu/device") is array
        same(on_host(array) if is_on_gpu(array) else array, expected((4000,), seed=step))


def a_new_device_array_is_zero() -> None:
    array = coarse.device_array("gpu/zero", (4000,), np.float32)
    assert not (on_host(array) if is_on_gpu(array) else array).any()


def a_forgotten_name_may_be_used_for_another_shape() -> None:
    for step, shape in enumerate([(1000,), (1000,), (20, 3)]):
        same(on_host(coarse.push_pull(on_gpu(mine(shape, seed=step)), "gpu/forgotten")), expected(shape, seed=step))
        coarse.forget("gpu/forgotten")


def a_worker_that_joined_counts_as_zero() -> None:
    for step in range(2 + coarse.rank()):
        members = [rank for rank in range(coarse.size()) if step < 2 + rank]
        rows = [contribution(rank, (50,), seed=step) * (rank in members) for rank in range(coarse.size())]
        same(on_host(coarse.push_pull(on_gpu(mine((50,), seed=step)), "gpu/join", coarse.Sum)),
             combined(np.stack(rows), coarse.Sum))  # fmt: skip
    current().require_client().join()


def what_cannot_travel_is_refused() -> None:
    with raises(TypeError, "cannot be synchronised"):
        coarse.push_pull(on_gpu(np.zeros(4, np.int16)), "gpu/int16")
    with raises(ValueError, "must be contiguous"):
        coarse.push_pull(on_gpu(np.zeros(8, np.float32))[::2], "gpu/strided")
    with raises(ValueError, "must be contiguous"):
        coarse.grouped_push_pull([on_gpu(np.zeros(8, np.float32))[::2]], "gpu/strided group")
    with raises(ValueError, "so too"):
        coarse.push_pull_async(np.zeros(4, np.float32), "gpu/shape", out=on_gpu(np.zeros(5, np.float32)))


CLAIMS = (
    every_type_and_operation_gives_the_bits_of_the_host,
    a_result_is_on_the_gpu_of_its_array,
    arrays_of_many_pieces_give_the_plain_sum,
    some_workers_may_have_theirs_on_the_host,
    a_result_may_go_to_the_host_and_one_of_the_host_to_a_gpu,
    what_is_combined_in_place_is_there_for_the_user_s_stream,
    a_push_has_read_its_array_before_the_user_s_stream_goes_on,
    a_call_that_returns_at_once_has_read_its_array_too,
    one_array_may_be_pushed_under_several_names,
    several_arrays_travel_as_one,
    a_wait_that_stalled_is_waited_for_again,
    a_gpu_that_has_no_room_for_a_result_leaves_nothing_half_done,
    routes_are_measured_anew_from_where_arrays_are,
    names_in_flight_come_in_any_order,
    a_name_is_used_again_in_every_step,
    a_device_array_is_combined_where_it_lies,
    a_new_device_array_is_zero,
    a_forgotten_name_may_be_used_for_another_shape,
    a_worker_that_joined_counts_as_zero,
    what_cannot_travel_is_refused,
)

if __name__ == "__main__":
    coarse.init()
    report_claims(CLAIMS, sys.argv[1])
    coarse.shutdown()
