"""CUDA by CuPy does what the stand-in does: the bits of sums, the order of streams, handles, and errors."""

import subprocess
import sys

import numpy as np
import pytest

from coarse.errors import CapacityError, GpuError
from coarse.gpu.available import gpus
from coarse.gpu.interface import HANDLE_BYTES, GpuArray, address_of, is_on_gpu
from coarse.protocol.dtypes import DType, Op
from tests.mpi.arrays.gpu_claims import on_host
from tests.support.host_arrays import HostArrays

NUM_ELEMENTS = 100_003


def on_gpu(values: np.ndarray, gpu: int = 0) -> GpuArray:
    array = gpus().empty(gpu, values.shape, values.dtype)
    stream = gpus().current_stream(gpu)
    stream.arrays.copy(array, values)
    stream.record().wait()
    return array


def values_of(dtype: DType, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if dtype.is_integer:
        limits = np.iinfo(dtype.storage)
        return generator.integers(limits.min, limits.max, NUM_ELEMENTS, dtype.storage, endpoint=True)
    values = generator.normal(size=NUM_ELEMENTS).astype(np.float32)
    values[:3] = np.inf, -np.inf, -0.0
    values[3:1000] = generator.integers(-1 << 22, 1 << 22, 997) * np.float32(1e-45)  # subnormal, in bfloat16 too
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is DType.BFLOAT16 else values.astype(dtype.storage)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("op", "divisor"), [(Op.SUM, 1), (Op.AVERAGE, 3), (Op.AVERAGE, 4), (Op.MIN, 1), (Op.MAX, 1)])
@pytest.mark.parametrize("num_sources", [0, 1, 2, 5])
def test_a_sum_has_the_bits_of_numpy(dtype, op, divisor, num_sources):
    divisor = 1 if dtype.is_integer else divisor
    sources = [values_of(dtype, seed) for seed in range(num_sources)]
    wanted = [np.empty(NUM_ELEMENTS, dtype.storage)]
    HostArrays().reduce(sources, wanted, dtype, op, divisor)
    stream = gpus().stream(0)
    targets = [on_gpu(np.ones(NUM_ELEMENTS, dtype.storage)) for _ in range(2)]
    stream.arrays.reduce([on_gpu(source) for source in sources], targets, dtype, op, divisor)
    stream.record().wait()
    for target in targets:
        assert (on_host(target).view(np.uint8) == wanted[0].view(np.uint8)).all()


def test_a_part_of_a_ring_is_in_the_accumulator_type():
    sources = [values_of(DType.FLOAT16, seed) for seed in range(3)]
    wanted = np.empty(NUM_ELEMENTS, np.float32)
    HostArrays().combine(sources, wanted, DType.FLOAT16, Op.SUM)
    target = on_gpu(np.zeros(NUM_ELEMENTS, np.float32))
    stream = gpus().stream(0)
    stream.arrays.combine([on_gpu(source) for source in sources], target, DType.FLOAT16, Op.SUM)
    stream.record().wait()
    assert (on_host(target).view(np.uint32) == wanted.view(np.uint32)).all()


def test_an_event_is_done_after_a_while_and_asking_returns_at_once():
    stream, large = gpus().stream(0), on_gpu(np.zeros(1 << 26, np.float32))
    for _ in range(20):
        stream.arrays.zero(large)
    event = stream.record()
    num_asked = 0
    while not event.is_done():
        num_asked += 1
    assert num_asked > 0


def test_a_stream_waits_for_an_event_of_another():
    first, second = gpus().stream(0), gpus().stream(0)
    value, read = on_gpu(np.zeros(1 << 24, np.float32)), on_gpu(np.zeros(1 << 24, np.float32))
    first.arrays.copy(value, np.ones(1 << 24, np.float32))
    second.wait_for(first.record())
    second.arrays.copy(read, value)
    second.record().wait()
    assert (on_host(read) == 1).all()


def test_pinned_memory_is_copied_both_ways():
    host, back = gpus().pinned(1 << 20), np.zeros(1 << 20, np.uint8)
    gpus().pin(back)
    host[:] = np.arange(1 << 20, dtype=np.uint32).astype(np.uint8)
    array, stream = on_gpu(back), gpus().stream(0)
    stream.arrays.copy(array, host)
    stream.arrays.copy(back, array)
    stream.record().wait()
    assert (back == host).all()
    gpus().unpin(back)


class Foreign:
    """An array of a library that has nothing but the interface."""

    def __init__(self, array: GpuArray) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        face = dict(self._array.__cuda_array_interface__, version=2)
        face.pop("stream", None)
        return face


@pytest.mark.parametrize("gpu", [0, 1])
def test_an_array_is_taken_without_a_copy_whichever_gpu_the_thread_has_chosen(gpu):
    if gpu >= len(gpus().infos()):
        pytest.skip("one GPU is here")
    array = on_gpu(np.arange(5, dtype=np.float32), gpu)
    for given in (array, Foreign(array)):
        taken = gpus().array_of(given)
        assert address_of(taken) == address_of(array)
        assert gpus().gpu_of(taken) == gpu


def test_a_gpu_has_no_more_than_it_has():
    with pytest.raises(CapacityError, match="allocating"):
        gpus().allocate(0, 1 << 44)
    assert on_host(on_gpu(np.ones(4, np.float32))).tolist() == [1] * 4  # nothing is broken by that


OWNER = """
import sys
import numpy as np
from coarse.gpu.available import gpus
memory = gpus().allocate(0, 4096)
stream = gpus().stream(0)
stream.arrays.copy(memory, np.full(4096, 7, np.uint8))
stream.record().wait()
print(gpus().export(memory).hex(), flush=True)
sys.stdin.read()
"""


def test_memory_of_another_process_is_mapped_by_its_handle():
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        memory = gpus().open(bytes.fromhex(owner.stdout.readline()), 4096, 0)
        assert (on_host(memory) == 7).all()
        gpus().close(memory)
        owner.stdin.close()


def test_a_handle_that_is_none_is_refused():
    with pytest.raises(GpuError, match="mapping another process's GPU memory"):
        gpus().open(bytes(HANDLE_BYTES), 4096, 0)


def test_gpus_are_told_apart_and_reach_themselves():
    infos = gpus().infos()
    assert len({info.bus_id for info in infos}) == len(infos)
    for info in infos:
        assert gpus().can_access(info.number, info.number)
        assert 0 < gpus().free_bytes(info.number) <= info.total_bytes


def test_another_library_s_array_is_the_same_memory():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6, dtype=torch.float32, device="cuda")
    array = gpus().array_of(tensor)
    assert is_on_gpu(array)
    assert address_of(array) == tensor.data_ptr()
    with gpus().using(0, torch.cuda.current_stream().cuda_stream):
        assert on_host(array).tolist() == [0, 1, 2, 3, 4, 5]
