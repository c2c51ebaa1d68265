"""Rings over a pool: every message once and in order, under the coherence checker, and no flush superfluous."""

import inspect
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import CoherenceError
from coarse.pool import ring
from coarse.pool.ring import RingPlace, RingReader, RingWriter, ring_place_bytes
from coarse.pool.shared.coherence_checker import LATE_S
from coarse.pool.shared.memory import CoherentLines, MappedPool
from tests.support.checked_pool import CheckedPools, Forgetful

RING_BYTES = 1024
PLACE = RingPlace(64, RING_BYTES)
DATA_BYTES = 64 + ring_place_bytes(RING_BYTES)
SOURCE = Path(inspect.getsourcefile(ring))


OMISSIONS = {
    "self._pool.flush(offset, piece)": "self._pool.store(offset",
    "self._pool.flush(self._place.tail, 8)": "self._pool.store_word(self._place.tail, self._tail)",
    "self._pool.invalidate(self._place.head, 8)": "self._pool.load_word(self._place.head)",
    "self._pool.invalidate(self._place.tail, 8)": "self._pool.load_word(self._place.tail)",
    "self._pool.invalidate(offset, piece)": "self._pool.load(offset",
    "self._pool.flush(self._place.head, 8)": "self._pool.store_word(self._place.head, self._head)",
}
"""By each call that is left out the use that an error must name."""


def places(text):
    """The numbers of the source's lines that have a text."""
    return [number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if text in line]


def exchanged(writing, reading, clock, lengths, *, rounds=400):
    """What came of messages of such lengths, and what was sent."""
    writer, reader = RingWriter(writing, PLACE), RingReader(reading, PLACE, "device 0")
    rng = np.random.default_rng(1)
    sent = [(number, rng.integers(0, 256, length, np.uint8)) for number, length in enumerate(lengths)]
    for number, payload in sent:
        writer.send(number, payload)
    come = []
    for _ in range(rounds):
        writer.advance()
        come += reader.take()
        if len(come) == len(sent) and not writer.has_unwritten:
            break
        clock.advance_to(clock.now_s() + LATE_S / 50)
    return come, sent


def require_same(come, sent):
    assert [number for number, _ in come] == [number for number, _ in sent]
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(come, sent, strict=True))


LENGTHS = (0, 1, 63, 64, 65, RING_BYTES - 64, RING_BYTES, 5 * RING_BYTES + 7, 3, 0)


@given(st.lists(st.integers(0, 3 * RING_BYTES), max_size=12), st.none() | st.integers(0, 9))
def test_messages_of_any_length_come_once_and_in_order(lengths, seed):
    pools = CheckedPools(DATA_BYTES)
    evicts = None if seed is None else np.random.default_rng(seed)
    one, other = pools.user(0, evicts), pools.user(1, evicts)
    require_same(*exchanged(one, other, pools.clock, lengths))
    one.close()
    other.close()


def test_a_coherent_pool_carries_the_same():
    pool = MappedPool(np.zeros(DATA_BYTES, np.uint8), CoherentLines())
    require_same(*exchanged(pool, pool, CheckedPools(64).clock, LENGTHS))


def test_the_list_has_every_flush_and_invalidate_but_those_of_the_words_first_values():
    calls = [number for name in ("flush", "invalidate") for number in places(f"self._pool.{name}(")]
    assert len(calls) == len(OMISSIONS)


def exchanged_and_closed(users, clock):
    """All messages come, or somebody says why they do not."""
    come, sent = exchanged(*users, clock, LENGTHS)
    assert len(come) == len(sent), "nothing came, and nobody said why"
    for user in users:
        user.close()


@pytest.mark.parametrize(("omitted", "named"), OMISSIONS.items())
def test_each_flush_and_invalidate_that_is_left_out_is_found_and_named(omitted, named):
    pools = CheckedPools(DATA_BYTES)
    users = [pools.user(number) for number in range(2)]
    forgetful = [Forgetful(pool, SOURCE, places(omitted)[-1]) for pool in users]
    with pytest.raises(CoherenceError) as found:
        exchanged_and_closed(forgetful, pools.clock)
    assert any(f"{SOURCE}:{number}" in str(found.value) for number in places(named))


def test_what_is_no_message_of_this_job_is_refused():
    pool = MappedPool(np.zeros(DATA_BYTES, np.uint8), CoherentLines())
    writer, reader = RingWriter(pool, PLACE), RingReader(pool, PLACE, "memory device 3")
    writer.send(1, np.zeros(8, np.uint8))
    pool.store(64 + 2 * 64, np.full(8, 255, np.uint8))
    with pytest.raises(CoherenceError, match=r"memory device 3: its message 0 .*software"):
        list(reader.take())
