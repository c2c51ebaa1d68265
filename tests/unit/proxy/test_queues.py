from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coarse.proxy.queues import ReadyRun, ShardQueues

NUM_SHARDS = 12


@st.composite
def arrivals(draw):
    """For each of some clients the runs of shards that it pushes, and an order of all arrivals."""
    num_clients = draw(st.integers(1, 4))
    pushes = []
    for client in range(num_clients):
        cuts = draw(st.lists(st.integers(1, NUM_SHARDS - 1), unique=True, max_size=4))
        edges = [0, *sorted(cuts), NUM_SHARDS]
        present = draw(st.booleans())
        pushes += [
            (client, first, last, present) for first, last in pairwise(edges)
        ]
    return num_clients, draw(st.permutations(pushes))


@given(arrivals())
def test_every_shard_is_ready_exactly_once_and_with_its_last_arrival(arriving):
    num_clients, pushes = arriving
    queues = ShardQueues(range(num_clients))
    pushed = [set() for _ in range(num_clients)]
    done = set()
    for client, first, last, present in pushes:
        assert queues.on_push(client, first, last, present=present)
        pushed[client] |= set(range(first, last))
        ready = {s for run in queues.take_ready(()) for s in range(run.first, run.last)}
        assert not ready & done
        done |= ready
        assert done == set.intersection(*pushed)
    assert done == set(range(NUM_SHARDS))
    assert queues.is_empty


@given(arrivals())
def test_a_run_names_who_contributes_and_who_wants_the_result(arriving):
    num_clients, pushes = arriving
    queues = ShardQueues(range(num_clients))
    for client, first, last, present in pushes:
        queues.on_push(client, first, last, present=present)
    contributing = {client for client, _, _, present in pushes if present}
    for run in queues.take_ready(()):
        assert set(run.present) == contributing
        assert run.recipients == tuple(range(num_clients))


def test_runs_with_other_contributors_are_kept_apart():
    queues = ShardQueues((0, 1))
    queues.on_push(0, 0, 4, present=True)
    queues.on_push(1, 0, 2, present=False)
    queues.on_push(1, 2, 4, present=True)
    assert sorted(queues.take_ready(())) == [
        ReadyRun(0, 2, (0,), (0, 1)),
        ReadyRun(2, 4, (0, 1), (0, 1)),
    ]


def test_absence_counts_for_one_result_only():
    queues = ShardQueues((0,))
    queues.on_push(0, 0, 1, present=False)
    assert queues.take_ready(()) == [ReadyRun(0, 1, (), (0,))]
    queues.on_push(0, 0, 1, present=True)
    assert queues.take_ready(()) == [ReadyRun(0, 1, (0,), (0,))]


def test_no_shard_waits_for_another():
    queues = ShardQueues((0, 1))
    queues.on_push(0, 0, 1, present=True)
    queues.on_push(1, 3, 4, present=True)
    queues.on_push(0, 3, 4, present=True)
    assert queues.take_ready(()) == [ReadyRun(3, 4, (0, 1), (0, 1))]


def test_an_excused_client_is_not_waited_for_and_gets_no_result():
    queues = ShardQueues((0, 1, 2))
    queues.on_push(0, 0, 2, present=True)
    queues.on_push(2, 0, 2, present=True)
    assert queues.take_ready(()) == []
    assert queues.take_ready({1}) == [ReadyRun(0, 2, (0, 2), (0, 2))]


def test_where_all_are_excused_nothing_is_ready():
    assert ShardQueues((0, 1)).take_ready({0, 1}) == []
    assert ShardQueues(()).take_ready(()) == []


def test_a_shard_pushed_again_before_its_result_is_refused_and_changes_nothing():
    queues = ShardQueues((0, 1))
    assert queues.on_push(0, 0, 2, present=True)
    assert not queues.on_push(0, 1, 3, present=True)
    queues.on_push(1, 0, 3, present=True)
    assert queues.take_ready(()) == [ReadyRun(0, 2, (0, 1), (0, 1))]


def test_missing_are_those_without_whom_a_pushed_shard_cannot_go_on():
    queues = ShardQueues((0, 1, 2))
    assert queues.missing(()) == (0, 1, 2)
    queues.on_push(0, 0, 2, present=True)
    queues.on_push(1, 0, 1, present=True)
    assert queues.missing(()) == (1, 2)
    assert queues.missing({2}) == (1,)
