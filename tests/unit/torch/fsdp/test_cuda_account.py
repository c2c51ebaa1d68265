"""The account of a device whose allocator counts, on an allocator that is told what to say."""

import pytest
import torch

from coarse.errors import ConfigError, OutOfDeviceMemoryError
from coarse.torch.fsdp import cuda_account
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.cuda_account import AllocatorAccount, account_on

CPU = torch.device("cpu")


class ToldAllocator:
    """A device of 1000 bytes."""

    def __init__(self) -> None:
        self.used = 0
        self.peak = 0

    def allocated_bytes(self) -> int:
        return self.used

    def peak_bytes(self) -> int:
        return self.peak

    def free_bytes(self) -> int:
        return 1000 - self.used

    def restart_peak(self) -> None:
        self.peak = self.used


def test_what_is_in_use_is_what_the_allocator_says():
    allocator = ToldAllocator()
    account = AllocatorAccount(allocator)
    allocator.used = allocator.peak = 400
    account.take("shards", 100)
    assert (account.used_bytes, account.peak_bytes, account.capacity_bytes) == (400, 400, 1000)
    assert account.fraction_used() == 0.4
    assert account.ledger.used_by_kind() == {"shards": 100}
    allocator.used = 300
    account.restart_peaks()
    assert account.peak_bytes == 300


def test_caches_are_dropped_before_the_allocator_is_asked():
    allocator = ToldAllocator()
    account = AllocatorAccount(allocator)
    asked: list[int] = []
    account.add_reclaimer(asked.append, limit=0.5)
    allocator.used = 450
    account.empty(100, dtype=torch.uint8, device=CPU, kind="gathered units")
    assert asked == [50]


def test_the_allocators_failure_becomes_ours_with_the_kinds(monkeypatch):
    def full(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    account = AllocatorAccount(ToldAllocator(), rank=1)
    account.take("shards", 100)
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(OutOfDeviceMemoryError, match=r"rank 1: .*2000 bytes.* wanted for gathered units") as caught:
        account.empty(500, dtype=torch.float32, device=CPU, kind="gathered units")
    assert caught.value.used_by_kind == {"shards": 100}
    assert caught.value.capacity_bytes == 1000


def test_a_device_without_an_allocator_of_its_own_is_emulated():
    account = account_on(CPU, capacity_bytes=10)
    assert type(account) is DeviceAccount
    assert account.capacity_bytes == 10


def test_cuda_has_its_own_capacity(monkeypatch):
    monkeypatch.setattr(cuda_account, "CudaAllocator", lambda device: ToldAllocator())
    assert account_on(torch.device("cuda", 0)).capacity_bytes == 1000
    with pytest.raises(ConfigError, match="leave capacity_bytes out"):
        account_on(torch.device("cuda", 0), capacity_bytes=10)
