"""Bytes by kind of one accelerator."""

import pytest

from coarse.parallel.sharded.memory_ledger import MemoryKind, MemoryLedger

SHARDS, GATHERED = MemoryKind.SHARDS, MemoryKind.GATHERED


def test_the_sum_of_the_kinds_is_what_is_in_use():
    ledger = MemoryLedger()
    ledger.take(SHARDS, 100)
    ledger.take(GATHERED, 30)
    ledger.take(SHARDS, 5)
    ledger.give_back(GATHERED, 30)
    assert ledger.used_by_kind() == {"shards": 105}
    assert ledger.used_bytes == 105


def test_the_peak_is_the_largest_sum_and_says_who_held_it():
    ledger = MemoryLedger()
    ledger.take(SHARDS, 100)
    ledger.take(GATHERED, 30)
    ledger.give_back(GATHERED, 30)
    ledger.take(SHARDS, 10)
    assert ledger.peak_bytes == 130
    assert ledger.used_at_peak() == {"shards": 100, "gathered units": 30}
    assert ledger.highest_by_kind() == {"shards": 110, "gathered units": 30}


def test_peaks_start_again_from_what_is_in_use():
    ledger = MemoryLedger()
    ledger.take(SHARDS, 100)
    ledger.give_back(SHARDS, 60)
    ledger.restart_peaks()
    assert ledger.peak_bytes == 40
    assert ledger.used_at_peak() == ledger.highest_by_kind() == {"shards": 40}


@pytest.mark.parametrize("nbytes", [-1, 11])
def test_no_more_is_given_back_than_is_in_use(nbytes):
    ledger = MemoryLedger()
    ledger.take(SHARDS, 10)
    with pytest.raises(ValueError, match=f"shards: {nbytes} bytes are given back, but 10 are in use"):
        ledger.give_back(SHARDS, nbytes)


def test_memory_is_not_taken_in_negative_bytes():
    with pytest.raises(ValueError, match="shards: memory is taken in bytes of at least 0, got -1"):
        MemoryLedger().take(SHARDS, -1)
