from coarse.parallel.data.pass_timer import PassTimer
from coarse.protocol.clock import VirtualClock


def times_of(events, *, num_buckets=2):
    """What a timer makes of (seconds, what happens) in one round that begins at second 10 and ends with the last."""
    clock = VirtualClock()
    clock.advance_to(10.0)
    timer = PassTimer(clock)
    timer.begin_round()
    for at_s, event in events:
        clock.advance_to(at_s)
        if event == "stepped":
            timer.on_stepped()
        elif event.startswith("gradient"):
            timer.on_gradient(float(event.removeprefix("gradient") or 0))
        elif event != "end":
            timer.on_bucket(int(event))
    return timer.end_round(num_buckets)


WHOLE = [(11, "stepped"), (14, "gradient"), (15, "0"), (16, "gradient"), (18, "gradient"), (18, "1"), (19, "end")]


def test_forward_ends_with_the_first_gradient_and_backward_with_the_last():
    times = times_of(WHOLE)
    assert (times.forward_s, times.backward_s, times.step_s) == (3.0, 4.0, 9.0)
    assert times.ready_s == (1.0, 4.0)


def test_a_bucket_that_is_completed_again_counts_from_its_last_gradient():
    times = times_of([*WHOLE[:-1], (20, "gradient"), (21, "0"), (22, "end")])
    assert times.ready_s == (7.0, 4.0)
    assert times.backward_s == 6.0


def test_a_round_that_was_not_seen_whole_has_no_times():
    for lacking in ("stepped", "gradient", "0", "1"):
        assert times_of([event for event in WHOLE if event[1] != lacking]) is None


def test_a_step_between_two_backward_passes_does_not_move_the_end_of_forward():
    assert times_of([*WHOLE[:2], (14.5, "stepped"), *WHOLE[2:]]).forward_s == 3.0


def test_a_gradient_of_which_the_timer_hears_late_counts_when_it_was_there():
    last = [(16, "gradient0.5"), (18, "gradient3.5"), (18, "1"), (19, "end")]
    times = times_of([(11, "stepped"), (15, "gradient1"), (15, "0"), *last])
    assert (times.forward_s, times.backward_s) == (3.0, 1.5)
    assert times.ready_s == (1.0, 4.0)


def test_points_of_every_round_are_told_timed_or_not_and_a_clock_that_stands_still_between_them_will_do():
    clock, points = VirtualClock(), []

    def passed(point):
        points.append(point)
        clock.advance_to(clock.now_s() + 1.0)

    timer = PassTimer(clock, 0.0, passed)
    found = []
    for is_timed in (False, True):
        if is_timed:
            timer.begin_round()
        assert timer.is_running
        timer.on_stepped()
        for index in range(2):
            timer.on_gradient(0.5)
            timer.on_gradient()
            timer.on_bucket(index)
        found.append(timer.end_round(2))
    assert points == ["step", "backward", "bucket 0", "bucket 1"] * 2
    assert (found[1].forward_s, found[1].backward_s, found[1].ready_s) == (1.0, 2.0, (1.0, 2.0))
