from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.clock import VirtualClock
from coarse.simulation.checks.lanes import Lane, LaneKind, Lanes

RECORDS, CHUNKS = (Lane(kind, 0, 1) for kind in (LaneKind.RECORD, LaneKind.CHUNK))


def lanes_of(delays_s):
    """Lanes whose messages take these times, one after the other, and their clock."""
    clock, delays = VirtualClock(), iter(delays_s)
    return Lanes(clock, lambda source, destination, nbytes: next(delays)), clock


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10)), max_size=20))
def test_messages_of_a_lane_stay_in_order_and_time_never_runs_back(posted):
    lanes, clock = lanes_of([delay_s for _, delay_s in posted])
    for number, (is_chunk, _) in enumerate(posted):
        lanes.post(CHUNKS if is_chunk else RECORDS, number, 8)
    came, times_s = {RECORDS: [], CHUNKS: []}, [0.0]
    while (lane := lanes.first_due()) is not None:
        came[lane].append(lanes.take(lane))
        times_s.append(clock.now_s())
    assert came[RECORDS] == [n for n, (is_chunk, _) in enumerate(posted) if not is_chunk]
    assert came[CHUNKS] == [n for n, (is_chunk, _) in enumerate(posted) if is_chunk]
    assert times_s == sorted(times_s)
    assert times_s[-1] == max((delay_s for _, delay_s in posted), default=0.0)


def test_a_later_message_of_another_lane_may_come_first():
    lanes, clock = lanes_of([5.0, 1.0])
    lanes.post(RECORDS, "slow", 8)
    lanes.post(CHUNKS, "fast", 8)
    assert lanes.take(lanes.first_due()) == "fast"
    assert clock.now_s() == 1.0


def test_every_reduction_may_be_the_next():
    lanes, _ = lanes_of([0.0] * 3)
    for reduce in "abc":
        lanes.post(Lane(LaneKind.FOLD, 4, 4), reduce, 8)
    assert [lanes.take(lane) for lane in reversed(lanes.choices())] == ["c", "b", "a"]
    assert lanes.choices() == ()
