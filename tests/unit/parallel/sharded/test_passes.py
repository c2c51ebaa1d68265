"""A backward looks for changes where, and only where, its forward was overtaken."""

import itertools

from coarse.parallel.sharded.passes import Passes


def looks(story: str) -> list[bool]:
    """Of each backward (B), whether it looks; F trains, E evaluates, S steps."""
    passes, found = Passes(), []
    for number, event in enumerate(story):
        if event == "B":
            found.append(passes.on_backward(number))
        elif event == "S":
            passes.on_step()
        else:
            passes.on_forward(is_training=event == "F")
    return found


def test_training_evaluation_and_accumulation_never_look():
    for story in ("FBSFBSFBS", "EEFBSEFBS", "FBFBFBSFBFBFBS", "FBEESEFBS"):
        assert not any(looks(story)), story


def test_a_forward_between_a_forward_and_its_backward_makes_it_look():
    assert looks("FEB") == [True]
    assert looks("FEBSFB") == [True, False]
    assert looks("FFB") == [True]
    assert looks("FFBB") == [True, True]
    assert looks("FFEBBSFB") == [True, True, False]


def test_a_forward_without_a_backward_is_over_with_the_next_step():
    assert looks("FFBSFB") == [True, False]
    assert looks("FSFB") == [False]


def test_one_backward_looks_once():
    passes = Passes()
    for event in (True, False):
        passes.on_forward(is_training=event)
    assert [passes.on_backward(7) for _ in range(3)] == [True, False, False]


def test_no_forward_since_an_unfinished_one_goes_unnoticed():
    for story in itertools.product("FEBS", repeat=6):
        stepped = "".join(story).rpartition("S")[2]
        head, _, tail = stepped.partition("F")
        if "B" in head or tail.count("B") != 1:
            continue
        before = tail.partition("B")[0]
        if before:
            assert looks("".join(story))[-1], story
