"""Virtual time: what is due happens at its time, in a known order."""

import pytest

from coarse.simulation.engine import Engine
from tests.unit.simulation.small_jobs import BYTES_PER_S, LATENCY_S, link, move_s

MB = 1_000_000


class Noting(Engine):
    """An engine of one or more links, and what has happened on it."""

    def __init__(self, num_links: int = 1, latency_s: float = LATENCY_S) -> None:
        super().__init__([link(f"wire {number}", latency_s) for number in range(num_links)])
        self.happened: list[tuple[str, float]] = []

    def note(self, what: str):
        return lambda: self.happened.append((what, self.now_s))


def test_what_is_due_happens_at_its_time_and_at_equal_times_in_the_order_asked_for():
    engine = Noting()
    for what, at_s in [("late", 2.0), ("first", 1.0), ("second", 1.0), ("at once", 0.0)]:
        engine.at(at_s, engine.note(what))
    engine.run()
    assert engine.happened == [("at once", 0.0), ("first", 1.0), ("second", 1.0), ("late", 2.0)]
    assert engine.num_events == 4


def test_a_processor_does_one_thing_after_the_other_and_another_one_meanwhile():
    engine = Noting()
    for processor, what in [("a", "one"), ("a", "two"), ("b", "three")]:
        engine.work(processor, 1.0, engine.note(what))
    engine.run()
    assert engine.happened == [("one", 1.0), ("three", 1.0), ("two", 2.0)]


def test_a_processor_that_rested_begins_when_it_is_asked():
    engine = Noting()
    engine.at(5.0, lambda: engine.work("a", 1.0, engine.note("done")))
    engine.run()
    assert engine.happened == [("done", 6.0)]


def test_a_move_takes_the_links_latency_and_its_bytes_at_the_links_rate():
    engine = Noting()
    engine.at(1.0, lambda: engine.move("port", (0,), MB, engine.note("arrived")))
    engine.run()
    assert engine.happened == [("arrived", pytest.approx(1.0 + move_s(MB)))]
    assert engine.bytes_moved(0) == MB


def test_what_arrives_may_send_on():
    engine = Noting(2)
    engine.move("there", (0,), MB, lambda: engine.move("back", (1,), MB, engine.note("back")))
    engine.run()
    assert engine.happened == [("back", pytest.approx(2 * move_s(MB)))]


@pytest.mark.parametrize("num_turns", [1, 2, 6])
def test_turns_take_as_long_as_transfers_one_after_the_other(num_turns: int):
    engine = Noting()
    engine.move_in_turns("port", (0,), MB, num_turns, engine.note("all"))
    engine.run()
    assert engine.happened == [("all", pytest.approx(num_turns * move_s(MB)))]
    assert engine.bytes_moved(0) == num_turns * MB


def test_the_start_ups_of_turns_leave_the_port_to_others():
    engine = Noting()
    engine.move_in_turns("port", (0,), MB, 101, engine.note("turns"))
    engine.move("port", (0,), MB, engine.note("other"))
    engine.run()
    streamed_s = 102 * MB / BYTES_PER_S
    (_, other_s), (_, turns_s) = engine.happened
    assert other_s == pytest.approx(move_s(MB))
    assert turns_s == pytest.approx(streamed_s + LATENCY_S)


def test_an_arrival_comes_before_what_is_due_at_the_same_time():
    engine = Noting(latency_s=0.0)
    engine.at(MB / BYTES_PER_S, engine.note("due"))
    engine.move("port", (0,), MB, engine.note("arrived"))
    engine.run()
    assert [what for what, _ in engine.happened] == ["arrived", "due"]
