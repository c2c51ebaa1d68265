import random
from itertools import permutations

import pytest

from experiments.deadlock.dry_run import Replay, stuck_proxies, table_for
from experiments.deadlock.interleavings import every_routing, explore

FIGURE_10 = {0: ["t1", "t2"], 1: ["t2", "t1"]}
SHARED_PROXY = tuple(table_for(0, proxy, proxy) for proxy in (0, 0, 1))
NUM_ORDERS_OF_SIX, NUM_ORDERS_OF_NINE = 720, 362880


def test_first_come_first_served_deadlocks_where_queues_do_not():
    assert stuck_proxies(FIGURE_10, fcfs=True) == {0, 1}
    assert stuck_proxies(FIGURE_10, fcfs=False) == set()


def test_first_come_first_served_is_safe_where_all_push_in_one_order_or_to_one_proxy():
    in_one_order = {client: ["t1", "t2", "t3"] for client in range(3)}
    assert stuck_proxies(in_one_order, fcfs=True) == set()
    assert stuck_proxies(FIGURE_10, routes={0: 1, 1: 1}, fcfs=True) == set()


@pytest.mark.parametrize("fcfs", [False, True])
def test_two_clients_of_two_proxies_are_stuck_under_first_come_just_where_their_orders_differ(fcfs):
    names = ["t1", "t2", "t3"]
    for mine in permutations(names):
        for theirs in permutations(names):
            stuck = stuck_proxies({0: mine, 1: theirs}, fcfs=fcfs)
            assert bool(stuck) == (fcfs and mine != theirs)


def test_queues_are_never_stuck_in_any_interleaving_of_three_clients_and_three_tensors():
    found = explore(Replay(SHARED_PROXY, 2, 3, fcfs=False), internal=False)
    assert found.num_interleavings == NUM_ORDERS_OF_NINE
    assert found.num_states == 2**9
    assert found.num_stuck == 0


@pytest.mark.parametrize("tables", every_routing(3, 2), ids=range(len(every_routing(3, 2))))
def test_under_every_routing_and_order_of_reductions_and_chunks_queues_are_never_stuck(tables):
    found = explore(Replay(tables, 2, 2, fcfs=False), internal=True)
    assert found.num_interleavings > NUM_ORDERS_OF_SIX
    assert found.num_stuck == 0


@pytest.mark.slow
@pytest.mark.test_all
def test_in_every_order_of_pushes_reductions_and_chunks_of_three_tensors_queues_are_never_stuck():
    found = explore(Replay(SHARED_PROXY, 2, 3, fcfs=False), internal=True)
    assert found.num_states == 29**3  # tensors share nothing, so their states combine freely
    assert found.num_stuck == 0


def test_first_come_first_served_is_stuck_in_some_interleavings_and_not_in_others():
    found = explore(Replay(SHARED_PROXY, 2, 2, fcfs=True), internal=False)
    assert found.num_interleavings == NUM_ORDERS_OF_SIX
    assert 0 < found.num_stuck < NUM_ORDERS_OF_SIX


def test_an_event_of_one_tensor_leaves_the_states_of_others_as_they_are():
    rng = random.Random(1)
    now = Replay(SHARED_PROXY, 2, 3, fcfs=False)
    while choices := sorted(now.pushes | now.internal, key=repr):
        delivery = rng.choice(choices)
        later = now.after(delivery)
        for tensor in {0, 1, 2} - {delivery.event.key}:
            assert later.state_names(tensor) == now.state_names(tensor)
        now = later
    assert not now.awaited


def test_a_replay_stays_as_it_is_while_others_go_on_from_it():
    start = Replay(SHARED_PROXY, 2, 2, fcfs=False)
    before = start.fingerprint()
    for push in start.pushes:
        start.after(push).settled()
    assert start.fingerprint() == before


def test_equal_states_are_reached_by_independent_pushes_in_either_order():
    start = Replay(SHARED_PROXY, 2, 2, fcfs=False)
    one, other = sorted(start.pushes)[:2]
    there, back = start.after(one).after(other), start.after(other).after(one)
    assert there.fingerprint() == back.fingerprint()
    assert start.after(one).fingerprint() != start.after(other).fingerprint()


def test_every_routing_names_each_pattern_once():
    routings = every_routing(3, 3)
    assert len(routings) == len(set(routings)) == 28
