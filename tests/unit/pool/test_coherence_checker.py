"""What a host without coherence sees of another's stores, and which missing calls the coherence checker names."""

import inspect

import numpy as np
import pytest

from coarse.errors import CoherenceError
from coarse.pool.shared.coherence_checker import LATE_S
from tests.support.checked_pool import CheckedPools


def bytes_of(*values):
    return np.array(values, np.uint8)


def loaded(pool, offset, nbytes):
    into = np.zeros(nbytes, np.uint8)
    pool.load(offset, into)
    return into.tolist()


def here():
    """File and line of the caller's next line."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + 1}"


def test_a_store_appears_to_other_hosts_after_its_flush_and_to_its_own_at_once():
    pools = CheckedPools(256, (0, 0, 1))
    writer, beside, far = (pools.user(number) for number in range(3))
    writer.store(10, bytes_of(7, 8))
    assert loaded(beside, 10, 2) == [7, 8]
    assert loaded(far, 10, 2) == [0, 0]
    writer.flush(10, 2)
    assert pools.memory[10:12].tolist() == [7, 8]
    assert loaded(far, 10, 2) == [0, 0], "stale until it is invalidated"
    far.invalidate(10, 2)
    assert loaded(far, 10, 2) == [7, 8]


def test_what_was_stored_beside_others_bytes_of_a_line_keeps_them():
    pools = CheckedPools(128)
    pools.memory[:] = range(128)
    user = pools.user(0)
    user.store(60, bytes_of(1, 1, 1, 1, 1, 1, 1, 1))
    user.flush(60, 8)
    assert pools.memory.tolist() == [*range(60), *[1] * 8, *range(68, 128)]


def test_words_are_little_endian_and_whole():
    pools = CheckedPools(128)
    writer, reader = pools.user(0), pools.user(1)
    writer.store_word(64, 2**40 + 3)
    writer.flush(64, 8)
    assert reader.load_word(64) == 2**40 + 3
    assert loaded(reader, 64, 2) == [3, 0]


def told(writer, reader, *, flushes_payload=True, invalidates_payload=True):
    """A payload in line 0 and a flag in line 1, the second time over; what the reader loads of the payload."""
    for value in (1, 2):
        writer.store(0, bytes_of(value))
        if flushes_payload or value == 1:
            writer.flush(0, 1)
        writer.store_word(64, value)
        writer.flush(64, 8)
        reader.invalidate(64, 8)
        assert reader.load_word(64) == value
        if invalidates_payload:
            reader.invalidate(0, 1)
        found = loaded(reader, 0, 1)
    return found


def test_flushes_and_invalidates_in_order_pass():
    pools = CheckedPools(128)
    assert told(pools.user(0), pools.user(1)) == [2]


def test_a_missing_flush_is_named_by_the_store_once_the_reader_knows_of_it():
    pools = CheckedPools(128)
    with pytest.raises(CoherenceError, match=r"device 1 at .*: byte 0 of the pool.*device 0 has not flushed") as found:
        told(pools.user(0), pools.user(1), flushes_payload=False)
    line = next(i for i, text in enumerate(inspect.getsourcelines(told)[0]) if "writer.store(0" in text)
    assert f"{__file__}:{inspect.getsourcelines(told)[1] + line} " in str(found.value)


def test_a_missing_invalidate_is_named_by_the_load_once_the_reader_knows_of_the_store():
    pools = CheckedPools(128)
    wanted = "flushed since this host fetched it; call invalidate before this load"
    with pytest.raises(CoherenceError, match=wanted) as found:
        told(pools.user(0), pools.user(1), invalidates_payload=False)
    line = next(i for i, text in enumerate(inspect.getsourcelines(loaded)[0]) if "pool.load" in text)
    assert f"device 1 at {__file__}:{inspect.getsourcelines(loaded)[1] + line}: " in str(found.value)


def test_who_cannot_know_of_a_store_may_load_what_was_before_it_for_a_while():
    pools = CheckedPools(128)
    writer, reader = pools.user(0), pools.user(1)
    writer.store(0, bytes_of(5))
    assert loaded(reader, 0, 1) == [0]
    pools.clock.advance_to(LATE_S * 1.01)
    with pytest.raises(CoherenceError, match="has not flushed"):
        loaded(reader, 0, 1)


def test_who_polls_without_an_invalidate_is_told_in_the_end():
    pools = CheckedPools(128)
    writer, reader = pools.user(0), pools.user(1)
    assert reader.load_word(0) == 0
    writer.store_word(0, 1)
    writer.flush(0, 8)
    assert reader.load_word(0) == 0
    pools.clock.advance_to(LATE_S * 1.01)
    with pytest.raises(CoherenceError, match="invalidate before this load"):
        reader.load_word(0)


def test_what_a_third_host_handed_on_counts_as_known():
    pools = CheckedPools(256, (0, 1, 2))
    first, second, third = (pools.user(number) for number in range(3))
    first.store(0, bytes_of(1))
    first.store_word(64, 1)
    first.flush(64, 8)
    assert second.load_word(64) == 1
    second.store_word(128, 1)
    second.flush(128, 8)
    assert third.load_word(128) == 1
    with pytest.raises(CoherenceError, match=r"device 2 at .* that device 0 has not flushed"):
        loaded(third, 0, 1)


def test_two_hosts_that_store_into_one_line_are_told_at_once_and_two_processes_of_one_host_are_not():
    pools = CheckedPools(128, (0, 0, 1))
    writer, beside, far = (pools.user(number) for number in range(3))
    place = here()
    writer.store(0, bytes_of(1))
    beside.store(8, bytes_of(2))
    with pytest.raises(CoherenceError, match="have one host write into a line") as found:
        far.store(16, bytes_of(3))
    assert place in str(found.value)


def test_a_line_that_another_host_has_written_back_meanwhile_is_not_overwritten():
    pools = CheckedPools(128)
    first, second = pools.user(0), pools.user(1)
    assert loaded(second, 0, 1) == [0]
    first.store(0, bytes_of(1))
    first.flush(0, 1)
    second.store(8, bytes_of(2))
    with pytest.raises(CoherenceError, match="would lose now; call invalidate before storing into it"):
        second.flush(8, 1)
    assert pools.memory[0] == 1


def test_stores_that_were_never_flushed_are_named_at_the_end():
    pools = CheckedPools(256)
    user = pools.user(0)
    user.store(0, bytes_of(1))
    user.flush(0, 1)
    place = here()
    user.store(100, bytes_of(1))
    with pytest.raises(CoherenceError, match="1 lines of the pool, from byte 64 on, have stores at") as found:
        user.close()
    assert place in str(found.value)
    pools.user(1).close()


def test_lines_written_back_at_every_chance_are_in_memory_before_their_flush():
    pools = CheckedPools(64 * 64)
    user = pools.user(0, np.random.default_rng(0))
    user.store(0, np.ones(64 * 64, np.uint8))
    assert 16 * 64 < pools.memory.sum() < 48 * 64
    user.flush(0, 64 * 64)
    assert pools.memory.sum() == 64 * 64


def test_a_program_whose_flag_may_overtake_its_payload_is_found_where_caches_write_back_early():
    def overtaken(seed):
        pools = CheckedPools(128)
        writer, reader = pools.user(0, np.random.default_rng(seed)), pools.user(1)
        writer.store(0, bytes_of(1))
        writer.store_word(64, 1)
        if reader.load_word(64):
            loaded(reader, 0, 1)

    outcomes = []
    for seed in range(20):
        try:
            overtaken(seed)
            outcomes.append(True)
        except CoherenceError:
            outcomes.append(False)
    assert 0 < outcomes.count(False) < 20
