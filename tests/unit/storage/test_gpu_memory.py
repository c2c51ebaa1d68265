"""A memory device on a GPU: keys' regions there, all else on the host, and an error for what cannot be."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from coarse.errors import CapacityError, ConfigError, GpuError
from coarse.gpu.available import use
from coarse.gpu.interface import HANDLE_BYTES, address_of
from coarse.protocol.partition import RankPlace, Role
from coarse.protocol.place import GpuMemory
from coarse.storage.device_file import open_device_file
from coarse.storage.gpu_memory import create_on_gpu, map_memory, own_memory
from coarse.storage.region import create_memory_file
from coarse.storage.room import total_bytes
from tests.support.gpu_stand_in import StandInArray, StandInGpus

MIB = 1 << 20


@pytest.fixture
def gpus():
    chosen = StandInGpus(2, total_bytes=64 * MIB, lacks=["", "it is in exclusive mode"])
    use(chosen)
    yield chosen
    use(None)


@pytest.fixture
def memory(gpus):
    file = create_on_gpu(0, "test", 4 * MIB, 1)
    made = own_memory(file, file.descriptor)
    yield made
    made.close()


def test_offsets_below_are_the_host_s_and_above_the_gpu_s(memory):
    assert memory.capacity_bytes == memory.keys_begin == total_bytes()
    assert isinstance(memory.view(0, 64), np.ndarray)
    assert isinstance(memory.view(memory.keys_begin, 64), StandInArray)
    assert memory.view(memory.keys_begin + 128, 64).nbytes == 64
    with pytest.raises(ValueError, match="has no byte"):
        memory.view(memory.keys_begin + 4 * MIB - 1, 2)


def test_addresses_are_told_apart(memory):
    on_gpu = address_of(memory.view(memory.keys_begin + 64, 1))
    on_host = memory.view(64, 1).ctypes.data
    assert memory.is_at(on_gpu, memory.keys_begin + 64)
    assert not memory.is_at(on_gpu, 64)
    assert memory.is_at(on_host, 64)
    assert memory.has(on_gpu)
    assert memory.has(on_host)
    assert not memory.has(on_gpu + 4 * MIB)


def test_what_is_on_a_gpu_is_real_from_the_start(memory):
    assert memory.reserve(memory.keys_begin, 4 * MIB) == ""
    assert memory.reserve(0, 4096) == ""


def test_without_a_capacity_devices_share_half_of_a_gpu(gpus):
    file = create_on_gpu(0, "test", None, 2)
    assert file.gpu is not None
    assert file.gpu.nbytes == 16 * MIB
    os.close(file.descriptor)


def place(number: int) -> list[RankPlace]:
    """A worker, and a memory device on a GPU."""
    device = {"roles": Role.MEMORY_DEVICE, "memory": GpuMemory(number), "memory_said_at": "p.toml:7"}
    return [RankPlace(rank=0, roles=Role.WORKER, node="a"), RankPlace(rank=1, node="a", **device)]


@pytest.mark.parametrize(
    ("number", "nbytes", "kind", "reason"),
    [
        (5, MIB, ConfigError, r"this process sees no GPU 5 \(it sees: 0 \(Stand-in\), 1 \(Stand-in\)\)"),
        (1, MIB, ConfigError, r"GPU 1 \(Stand-in\) cannot be a memory device's: it is in exclusive mode"),
        (0, 65 * MIB, CapacityError, "68157440 bytes are wanted of GPU 0, which has 67108864 .* lower device_capacity"),
    ],
)
def test_what_a_gpu_cannot_be_is_refused_with_file_line_and_rank(gpus, number, nbytes, kind, reason):
    with pytest.raises(kind, match=rf"^p\.toml:7: memory of rank 1 is 'cuda:{number}': {reason}"):
        open_device_file(1, place(number), "test", nbytes)


def test_without_cuda_a_device_on_a_gpu_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "coarse.gpu.cupy_gpus", raising=False)
    use(None)
    wanted = r"^p\.toml:7: memory of rank 1 is 'cuda:0': GPUs need CuPy.*coarse-cxl\[cuda\]"
    with pytest.raises(ConfigError, match=wanted):
        open_device_file(1, place(0), "test", MIB)


OWNER = """
import sys
from coarse.gpu.available import use
from coarse.storage.gpu_memory import create_on_gpu
from tests.support.gpu_stand_in import StandInGpus
use(StandInGpus(2))
file = create_on_gpu(int(sys.argv[1]), "test", 1 << 20, 1)
file.gpu.memory.values[:8] = range(8)
print(file.gpu.bus_id, file.gpu.handle.hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mapped():
    """Maps the memory of another process's device, on a GPU by number."""
    owners, memories = [], []

    def of(number: int, own_bus_id: str | None):
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        owners.append(owner)
        bus_id, handle = owner.stdout.readline().split()
        descriptor = create_memory_file("test", 4096)
        memory = map_memory(3, descriptor, 4096, bus_id, MIB, bytes.fromhex(handle), own_bus_id)
        memories.append(memory)
        return memory

    yield of
    for memory in memories:
        memory.close()
    for owner in owners:
        owner.communicate()
    use(None)


def test_another_process_s_memory_is_mapped_and_given_back(mapped):
    gpus = StandInGpus(2)
    use(gpus)
    memory = mapped(1, None)
    region = memory.view(memory.keys_begin, 8)
    assert region.values.tolist() == list(range(8))
    assert gpus.gpu_of(region) == 1  # a worker reaches it through the GPU on which it lies
    memory.close()
    assert gpus.closed == [region.values.ctypes.data]
    memory._descriptor = create_memory_file("again", 4096)  # for the fixture, which closes it once more


def test_a_device_reaches_its_peers_through_its_own_gpu(mapped):
    use(StandInGpus(2))
    memory = mapped(1, "0000:00:00.0")
    assert memory.is_direct
    assert memory.view(memory.keys_begin, 8).gpu == 0


def test_without_peer_access_a_warning_says_how_it_goes(mapped):
    use(StandInGpus(2, strangers=[(0, 1)]))
    with pytest.warns(RuntimeWarning, match="GPU 0 at 0000:00:00.0 has no peer access to GPU 1.*pinned host memory"):
        memory = mapped(1, "0000:00:00.0")
    assert not memory.is_direct
    assert memory.view(memory.keys_begin, 8).gpu == 1


def test_two_devices_of_one_gpu_need_no_peer_access(mapped):
    use(StandInGpus(2, strangers=[(0, 1)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mapped(1, "0000:01:00.0").is_direct


def test_a_gpu_that_another_rank_names_must_be_seen(mapped):
    use(StandInGpus(2, hidden=[1]))
    with pytest.raises(ConfigError, match=r"memory device 3 is on the GPU 0000:01:00.0, .*it sees 0000:00:00.0\); let"):
        mapped(1, None)


def test_a_handle_of_a_process_that_has_died_is_refused(gpus):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    handle = f"{ended.pid} 3".encode().ljust(HANDLE_BYTES)
    descriptor = create_memory_file("test", 4096)
    with pytest.raises(GpuError, match="invalid resource handle"):
        map_memory(3, descriptor, 4096, "0000:00:00.0", MIB, handle, None)
    os.close(descriptor)
