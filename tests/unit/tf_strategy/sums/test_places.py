"""Where workers are, and who has not come, in words: every rank, what it does, and what to do about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import DeadRankError, StallError
from tf_strategy.sums.places import ProgramPlace, decoded, difference_of, told

PLACES = st.builds(ProgramPlace, st.text(max_size=5), st.lists(st.text(max_size=5), max_size=3).map(tuple))


@given(PLACES, PLACES)
def test_places_have_one_fingerprint_exactly_where_they_are_equal(one, other):
    assert (one.fingerprint == other.fingerprint) is (one == other)
    assert 0 <= one.fingerprint < 2**62


@given(PLACES)
def test_another_rank_decodes_what_was_encoded(place):
    assert decoded(place.encoded) == place


@given(st.lists(PLACES, min_size=2, max_size=4).filter(lambda places: len(set(places)) > 1))
def test_a_difference_names_every_rank_once(places):
    said = difference_of(places)
    named = [int(part) for text in said.split(" on rank")[1:] for part in said_ranks(text)]
    assert sorted(named) == list(range(len(places)))


def said_ranks(text: str) -> list[str]:
    """The numbers that follow " on rank" or " on ranks"."""
    numbers = text.removeprefix("s").lstrip(" ")
    return [part for part in numbers.split(" but ")[0].split(";")[0].split(",") if part.strip().isdigit()]


def test_a_place_shows_three_tensors_and_counts_the_rest():
    assert str(ProgramPlace("a stop")) == "a stop"
    assert str(ProgramPlace("a sum", ("int32[1]",))) == "a sum (int32[1])"
    kinds = tuple(f"float32[{n}]" for n in range(5))
    assert str(ProgramPlace("a sum", kinds)) == "a sum (float32[0], float32[1], float32[2] and 2 more)"


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (
            [ProgramPlace("the first 'kernel'", (f"float32[2, {n}]",)) for n in (3, 4, 3)],
            "the first 'kernel' is float32[2, 3] on ranks 0, 2 but float32[2, 4] on rank 1; "
            "give it one shape and type on all ranks, or see whether",
        ),
        (
            [ProgramPlace("a sum", ("int32[]", "float32[3]")), ProgramPlace("a sum", ("int32[]", "int32[4]"))],
            "a sum, tensor 2 of 2, is float32[3] on rank 0 but int32[4] on rank 1; "
            "give it one shape and type on all ranks, or see whether",
        ),
        (
            [ProgramPlace("a sum", ("int32[]",)), ProgramPlace("a sum", ("int32[]", "int32[]"))],
            "the workers' programs have come apart: a sum (int32[]) on rank 0 but a sum (int32[], int32[]) on rank 1; ",
        ),
    ],
)
def test_a_difference_in_kind_alone_names_the_first_tensor_that_differs(places, said):
    assert difference_of(places).startswith(said)


def test_programs_that_have_come_apart_are_told_what_to_look_for():
    said = difference_of([ProgramPlace("a sum", ("float32[]",)), ProgramPlace("the end of the data")])
    assert said.startswith(
        "the workers' programs have come apart: a sum (float32[]) on rank 0 but the end of the data on rank 1; "
    )
    for cause in ("data ended earlier", "other layers", "read a metric", "save"):
        assert cause in said


STALL = StallError("rank 0: 'key' was not complete after 5 s; ranks [1]", missing=(1,))
LEFT = DeadRankError("rank 1 (MPI rank 4) has shut down without pushing 'key', which others push", rank=4)
DIED = DeadRankError("rank 0: worker 1 (MPI rank 4) died", rank=4)


@pytest.mark.parametrize("advice", ["", "read all"])
def test_a_wait_says_where_it_was_and_ends_with_the_advice_where_a_program_is_at_fault(advice):
    more = f"; {advice}" if advice else ""
    start = "rank 0 waited at a place: "
    assert str(told(STALL, 0, "a place", advice)) == (
        f"{start}ranks [1] have not come in time; see what they wait for, or raise stall_timeout_s{more}"
    )
    assert str(told(LEFT, 0, "a place", advice)) == (
        f"{start}rank 1 (MPI rank 4) has shut down; see why it ends before the others{more}"
    )
    assert str(told(DIED, 0, "a place", advice)) == f"{start}worker 1 (MPI rank 4) died"


@pytest.mark.parametrize("error", [STALL, LEFT, DIED])
def test_who_is_missing_or_dead_is_kept(error):
    other = told(error, 0, "a place")
    assert type(other) is type(error)
    assert vars(other) == vars(error)
