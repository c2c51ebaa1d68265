"""The memory of an emulated accelerator: what counts, for how long, and what happens when it is full."""

import gc

import pytest
import torch

from coarse.errors import CapacityError, ConfigError, OutOfDeviceMemoryError
from coarse.torch.fsdp.account import DeviceAccount

CPU = torch.device("cpu")


def test_a_tensor_counts_until_its_last_view_is_gone():
    account = DeviceAccount()
    tensor = account.hold(torch.empty(100), "shards")
    account.hold(tensor[10:20], "shards")
    view = tensor.view(10, 10).detach()
    del tensor
    assert account.used_bytes == 400
    del view
    assert account.used_bytes == 0
    assert account.peak_bytes == 400


def test_a_storage_freed_and_filled_in_place_is_counted_as_it_is():
    account = DeviceAccount(capacity_bytes=500)
    tensor = account.empty(100, dtype=torch.float32, device=CPU, kind="gathered units")
    tensor.untyped_storage().resize_(0)
    assert account.used_bytes == 0
    account.take("activations", 101)
    with pytest.raises(OutOfDeviceMemoryError):
        tensor.untyped_storage().resize_(400)
    account.give_back("activations", 1)
    tensor.untyped_storage().resize_(400)
    assert account.ledger.used_by_kind() == {"gathered units": 400, "activations": 100}
    assert tensor.untyped_storage().nbytes() == 400


def test_a_tensor_held_as_another_kind_changes_kind_without_a_new_peak():
    account = DeviceAccount(capacity_bytes=400)
    tensor = account.hold(torch.empty(100), "gathered units")
    account.hold(tensor, "caches")
    account.note(tensor, "activations")
    assert account.ledger.used_by_kind() == {"caches": 400}
    assert account.peak_bytes == 400


def test_a_full_accelerator_says_what_was_wanted_and_who_holds_what():
    account = DeviceAccount(capacity_bytes=1000, rank=3)
    account.take("shards", 200)
    account.take("activations", 700)
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        account.take("gathered units", 101)
    error = caught.value
    assert (error.rank, error.kind, error.wanted_bytes, error.capacity_bytes) == (3, "gathered units", 101, 1000)
    assert error.used_by_kind == {"shards": 200, "activations": 700}
    for part in ("rank 3", "101 bytes", "gathered units", "activations", "shards", "lower the batch"):
        assert part in str(error)
    account.take("gathered units", 100)
    assert account.fraction_used() == 1.0


def test_scripts_that_catch_torchs_error_or_ours_catch_it():
    account = DeviceAccount(capacity_bytes=1)
    for kind in (torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, RuntimeError, CapacityError, MemoryError):
        with pytest.raises(kind):
            account.take("shards", 2)


def test_caches_are_dropped_before_memory_runs_out_and_no_earlier():
    account = DeviceAccount(capacity_bytes=1000)
    caches = [account.empty(100, dtype=torch.uint8, device=CPU, kind="caches") for _ in range(5)]
    asked = []

    def drop(lacking_bytes: int) -> None:
        asked.append(lacking_bytes)
        while caches and account.used_bytes + 800 > 1000:
            caches.pop()

    account.add_reclaimer(drop)
    account.take("activations", 500)
    assert not asked
    account.give_back("activations", 500)
    account.take("activations", 800)
    assert asked == [300]
    assert account.ledger.used_by_kind() == {"caches": 200, "activations": 800}


def test_caches_may_be_dropped_from_a_fraction_of_the_capacity_on():
    account = DeviceAccount(capacity_bytes=1000)
    asked = []
    account.add_reclaimer(asked.append, limit=0.5)
    account.take("activations", 500)
    account.take("activations", 100)
    assert asked == [100]


def test_a_cache_that_is_gone_is_not_asked():
    class Cache:
        def drop(self, lacking_bytes: int) -> None:
            account.give_back("caches", lacking_bytes)

    account, cache = DeviceAccount(capacity_bytes=10), Cache()
    account.add_reclaimer(cache.drop)
    account.take("caches", 10)
    account.take("activations", 4)
    assert account.ledger.used_by_kind() == {"caches": 6, "activations": 4}
    del cache
    with pytest.raises(OutOfDeviceMemoryError):
        account.take("activations", 1)


def test_a_peak_restarts_from_what_is_in_use():
    account = DeviceAccount()
    tensor = account.hold(torch.empty(100), "shards")
    account.hold(torch.empty(50), "gathered units")
    account.restart_peaks()
    assert account.peak_bytes == tensor.untyped_storage().nbytes()


def test_without_a_capacity_nothing_is_ever_full():
    account = DeviceAccount()
    account.take("shards", 2**60)
    assert account.fraction_used() == 0.0
    assert account.capacity_bytes is None


def test_a_storage_that_dies_in_the_garbage_collector_is_given_back():
    account = DeviceAccount()
    cycle: list[object] = [account.hold(torch.empty(100), "activations")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert account.used_bytes == 0


def test_a_tensor_is_counted_by_one_account():
    tensor = DeviceAccount().hold(torch.empty(1), "shards")
    with pytest.raises(ValueError, match="another one counts"):
        DeviceAccount().hold(tensor, "shards")


def test_an_accelerator_has_at_least_a_byte():
    with pytest.raises(ConfigError, match="got 0"):
        DeviceAccount(capacity_bytes=0)
