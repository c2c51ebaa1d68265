"""Virtual time: what is due happens at its time, in a known order."""

import pytest

from coarse.simulation.engine import Engine
from tests.unit.simulation.small_jobs import BYTES_PER_S, LATENCY_S, link, move_s

MB = 1_000_000


class Notes:
    """What has happened on an engine, and when."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.happened: list[tuple[str, float]] = []

    def note(self, what: str):
        return lambda: self.happened.append((what, self._engine.now_s))


def noted(num_links: int = 1, latency_s: float = LATENCY_S) -> tuple[Engine, Notes]:
    """An engine of one or more links."""
    engine = Engine([link(f"wire {number}", latency_s) for number in range(num_links)])
    return engine, Notes(engine)


def test_what_is_due_happens_at_its_time_and_at_equal_times_in_the_order_asked_for():
    engine, notes = noted()
    for what, at_s in [("late", 2.0), ("first", 1.0), ("second", 1.0), ("at once", 0.0)]:
        engine.at(at_s, notes.note(what))
    engine.run()
    assert notes.happened == [("at once", 0.0), ("first", 1.0), ("second", 1.0), ("late", 2.0)]
    assert engine.num_events == 4


def test_a_processor_does_one_thing_after_the_other_and_another_one_meanwhile():
    engine, notes = noted()
    for processor, what in [("a", "one"), ("a", "two"), ("b", "three")]:
        engine.work(processor, 1.0, notes.note(what))
    engine.run()
    assert notes.happened == [("one", 1.0), ("three", 1.0), ("two", 2.0)]


def test_a_processor_that_rested_begins_when_it_is_asked():
    engine, notes = noted()
    engine.at(5.0, lambda: engine.work("a", 1.0, notes.note("done")))
    engine.run()
    assert notes.happened == [("done", 6.0)]


def test_a_move_takes_the_links_latency_and_its_bytes_at_the_links_rate():
    engine, notes = noted()
    engine.at(1.0, lambda: engine.move("port", (0,), MB, notes.note("arrived")))
    engine.run()
    assert notes.happened == [("arrived", pytest.approx(1.0 + move_s(MB)))]
    assert engine.bytes_moved(0) == MB


def test_what_arrives_may_send_on():
    engine, notes = noted(2)
    engine.move("there", (0,), MB, lambda: engine.move("back", (1,), MB, notes.note("back")))
    engine.run()
    assert notes.happened == [("back", pytest.approx(2 * move_s(MB)))]


@pytest.mark.parametrize("num_turns", [1, 2, 6])
def test_turns_take_as_long_as_transfers_one_after_the_other(num_turns: int):
    engine, notes = noted()
    engine.move_in_turns("port", (0,), MB, num_turns, notes.note("all"))
    engine.run()
    assert notes.happened == [("all", pytest.approx(num_turns * move_s(MB)))]
    assert engine.bytes_moved(0) == num_turns * MB


def test_the_start_ups_of_turns_leave_the_port_to_others():
    engine, notes = noted()
    engine.move_in_turns("port", (0,), MB, 101, notes.note("turns"))
    engine.move("port", (0,), MB, notes.note("other"))
    engine.run()
    streamed_s = 102 * MB / BYTES_PER_S
    (_, other_s), (_, turns_s) = notes.happened
    assert other_s == pytest.approx(move_s(MB))
    assert turns_s == pytest.approx(streamed_s + LATENCY_S)


def test_an_arrival_comes_before_what_is_due_at_the_same_time():
    engine, notes = noted(latency_s=0.0)
    engine.at(MB / BYTES_PER_S, notes.note("due"))
    engine.move("port", (0,), MB, notes.note("arrived"))
    engine.run()
    assert [what for what, _ in notes.happened] == ["arrived", "due"]
