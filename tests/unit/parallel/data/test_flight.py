"""A bucket's phases: which moves there are, and that every story of a step keeps to them."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.parallel.data.flight import MOVES, BucketPhase, reopened
from coarse.torch.ddp.buckets import Bucket

F, L, I, D, S = BucketPhase  # noqa: E741


def moved(phase, to):
    """Return the phase to which a bucket of a phase has moved."""
    bucket = SimpleNamespace(phase=phase)
    Bucket.move(bucket, to)
    return bucket.phase


def test_only_what_is_pushed_lands_and_only_what_has_landed_ends_a_step():
    assert [phase for phase in BucketPhase if D in MOVES[phase]] == [I]
    assert [phase for phase in BucketPhase if S in MOVES[phase]] == [D]
    assert [phase for phase in BucketPhase if I in MOVES[phase]] == [F, L]


def test_a_gradient_waits_from_the_push_on():
    assert [phase for phase in BucketPhase if phase >= I] == [I, D, S]


@pytest.mark.parametrize(("phase", "to"), [(p, to) for p in BucketPhase for to in BucketPhase if to not in MOVES[p]])
def test_no_other_move_is_made(phase, to):
    with pytest.raises(AssertionError, match=f"that is {phase.name} cannot become {to.name}"):
        moved(phase, to)


def test_one_more_gradient_within_a_step_makes_a_bucket_late_and_after_it_begins_the_next():
    assert reopened(D) is L
    assert reopened(S) is F
    for phase in (F, L, I):
        with pytest.raises(AssertionError, match="has no result"):
            reopened(phase)


@given(st.lists(st.sampled_from(["gradient", "push", "cancel", "land", "end", "clear"]), max_size=40))
def test_in_every_story_results_are_as_many_as_pushes_that_were_not_cancelled(events):
    phase, pushes, landings = F, 0, 0
    for event in events:
        before = phase
        if event == "gradient" and phase in (D, S):
            phase = reopened(phase)
        elif event == "push" and phase < I:
            phase, pushes = moved(phase, I), pushes + 1
        elif event == "cancel" and phase is I:
            phase, pushes = moved(phase, F), pushes - 1
        elif event == "land" and phase is I:
            phase, landings = moved(phase, D), landings + 1
        elif event == "end" and phase is D:
            phase = moved(phase, S)
        elif event == "clear" and phase in (F, L, S):
            phase = moved(phase, F)
        assert phase is before or phase in MOVES[before]
        assert pushes - landings == (phase is I)
