"""Which version a job goes on from; all interleavings of commits and deaths leave one that is whole everywhere."""

from collections.abc import Iterator

import pytest

from coarse.errors import StorageError
from coarse.protocol.commits import Choice, Seen, choose, slot_of
from tests.support.model_check import PERHAPS, Violation, explore


def test_the_newest_version_that_all_have_is_gone_on_from():
    assert choose([Seen((4, 5)), Seen((5, 4))]) == Choice(5)
    assert choose([Seen((4, 5)), Seen((4,))]) == Choice(4)
    assert choose([Seen((5,)), Seen((5, 6))]) == Choice(5)


def test_nothing_recorded_everywhere_is_the_beginning():
    assert choose([Seen(()), Seen(())]) == Choice(0)
    assert choose([Seen((1,)), Seen(())]) == Choice(0)


def test_a_damaged_version_is_passed_over_for_the_older_one():
    assert choose([Seen((4,), (5,)), Seen((4, 5))]) == Choice(4, ((0, 5),))


@pytest.mark.parametrize(
    "seen",
    [
        [Seen((), (4, 5)), Seen((4, 5))],
        [Seen((4, 5)), Seen(())],
        [Seen((2, 3)), Seen((4, 5))],
        [Seen((), (1,)), Seen((1,))],
    ],
)
def test_no_version_of_all_is_an_error_that_names_worker_and_remedy(seen):
    with pytest.raises(StorageError, match=r"by worker [01](, 1)?'s memory: worker 0 has.*Go on from a checkpoint"):
        choose(seen)


def worlds(num_workers: int, num_commits: int, num_deaths: int, *, waits: bool = True, slot_of=slot_of):
    """The model: each worker's stores one at a time; a death ends the job, and all go on from what memory has."""
    first = tuple((((0, True), (0, True)), 0, 0) for _ in range(num_workers))

    def recovered(workers):
        """All go on from the same whole version, or the model is wrong."""
        seen = [Seen(tuple(v for v, whole in slots if v and whole)) for slots, _, _ in workers]
        try:
            version = choose(seen).version
        except StorageError as error:
            raise Violation(str(error)) from None
        done = min(at for _, _, at in workers)
        if version < done - 1:
            raise Violation(f"version {version} though all had made {done}")
        return tuple((slots, 0, version) for slots, _, _ in workers)

    def steps(state) -> Iterator[tuple[str, object]]:
        workers, deaths = state
        if deaths:
            yield f"{PERHAPS}a death", (recovered(workers), deaths - 1)
        for worker, (slots, store, at) in enumerate(workers):
            def moved(slots, store, at, worker=worker):
                return (*workers[:worker], (slots, store, at), *workers[worker + 1 :]), deaths

            place = slot_of(at + 1)
            if store == 0 and at < num_commits and (not waits or all(other >= at for _, _, other in workers)):
                changed = [*slots]
                changed[place] = (0, True)  # the word says nothing
                yield f"{worker} begins {at + 1}", moved(tuple(changed), 1, at)
            elif store == 1:  # half of the bytes, under no word
                yield f"{worker} writes {at + 1}", moved(slots, 2, at)
            elif store == 2:
                changed = [*slots]
                changed[place] = (at + 1, True)
                yield f"{worker} records {at + 1}", moved(tuple(changed), 0, at + 1)

    def is_end(state) -> bool:
        return all(at == num_commits for _, _, at in state[0])

    return explore((first, num_deaths), steps, is_end)


@pytest.mark.parametrize(("num_workers", "num_commits", "num_states"), [(2, 3, 200), (3, 2, 400)])
def test_every_interleaving_with_two_deaths_leaves_a_version_that_is_whole_everywhere(
    num_workers, num_commits, num_states
):
    found = worlds(num_workers, num_commits, num_deaths=2)
    assert found.fault is None, found.trace
    print(f"{num_workers} workers, {num_commits} commits: {found.num_states} states, {found.num_steps} steps")
    assert found.num_states > num_states


@pytest.mark.parametrize("bug", [{"waits": False}, {"slot_of": lambda version: 0}])
def test_without_the_wait_or_the_second_slot_a_death_loses_all(bug):
    found = worlds(2, 3, num_deaths=1, **bug)
    assert found.fault is not None
