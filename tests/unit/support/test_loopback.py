import dataclasses
import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.protocol.dtypes import DType, Op, narrowed, widen
from coarse.protocol.plan import Placement
from coarse.protocol.records import key_of
from coarse.simulation.checks.loopback import Loopback
from coarse.strategy.routing import RoutingTable
from tests.support.strategies import strategy_of

SHAPES = [(), (0,), (1,), (3,), (5, 7), (40,), (11, 3, 3)]
OPS = [Op.SUM, Op.AVERAGE, Op.MIN, Op.MAX]
EXACT = {Op.SUM: np.sum, Op.AVERAGE: np.sum, Op.MIN: np.min, Op.MAX: np.max}
PLACES = [
    (num_clients, num_devices, num_nodes, collective)
    for num_clients, num_devices, num_nodes, collective in product(
        range(1, 5), range(1, 4), (1, 2), ("in_place", "ring", "star")
    )
    if num_nodes <= min(num_clients, num_devices)
]
SEEDS = st.integers(0, 2**32 - 1)


def spread(count, num_nodes, rng):
    """A node for each, at least one on every node."""
    nodes = [*range(num_nodes), *(rng.randrange(num_nodes) for _ in range(count - num_nodes))]
    return tuple(sorted(nodes))


def placement(num_clients, num_devices, num_nodes, collective, rng):
    client_nodes = spread(num_clients, num_nodes, rng)
    device_nodes = spread(num_devices, num_nodes, rng)
    near = [[d for d, at in enumerate(device_nodes) if at == node] for node in range(num_nodes)]
    return Placement(
        client_nodes=client_nodes,
        device_nodes=device_nodes,
        local_proxies=tuple(rng.choice(near[node]) for node in client_nodes),
        ranks=tuple(range(num_clients + num_devices)),
        planner=strategy_of(collective),
        num_sync_groups=rng.choice((1, 2, 3)),
    )


def tables(place, rng):
    near = [place.devices_on(node) for node in place.client_nodes]
    return [
        RoutingTable(
            threshold_bytes=rng.choice((0, 40, 1000)),
            latency_proxy=rng.choice(devices),
            bandwidth_proxy=rng.choice(devices),
            partition_bytes=rng.choice((4, 16, 64, 400)),
        )
        for devices in near
    ]


def job(place, rng, **settings_of_loopback):
    """A job whose messages take random times."""
    scale = rng.choice((0, 1, 10))
    return Loopback(
        place,
        tables(place, rng),
        delay_s=lambda source, destination, nbytes: rng.random() * rng.choice((0, 1, scale)),
        **settings_of_loopback,
    )


def two_by_two(collective="in_place", num_nodes=1):
    return placement(2, 2, num_nodes, collective, random.Random(0))


class Iterations:
    """What clients push in random order and what they must get, kept beside a job."""

    def __init__(self, loopback, rng):
        self.loopback = loopback
        self.rng = rng
        self.names = {f"t{i}": (rng.choice(SHAPES), rng.choice(OPS)) for i in range(4)}
        self.wanted = {}

    def iterate(self, active):
        """One iteration of those clients that have not joined; each may leave out some tensors."""
        num_clients = self.loopback.placement.num_clients
        pushes = {client: [] for client in active}
        for name, (shape, op) in self.names.items():
            values = np.array(
                self.rng.choices(range(-50, 50), k=num_clients * int(np.prod(shape))), np.float64
            ).reshape(num_clients, *shape)
            present = [client for client in active if self.rng.random() < 0.85]
            total = EXACT[op](values[present], axis=0) if present else np.zeros(shape)
            divisor = num_clients if op is Op.AVERAGE else 1
            for client in active:
                pushes[client].append((name, values[client], op, client in present))
                result = (np.reshape(total / divisor, -1), bool(present))
                self.wanted.setdefault((client, name), []).append(result)
        for client, mine in pushes.items():
            self.rng.shuffle(mine)
            for name, array, op, is_present in mine:
                self.loopback.push(client, name, array, op, present=is_present)

    def check(self):
        """Every client has finished, and has all its results and no others."""
        assert self.loopback.unfinished() == ()
        assert self.loopback.num_rings == 0
        for (client, name), wanted in self.wanted.items():
            results = self.loopback.results(client, name)
            assert [result.present for result in results] == [present for _, present in wanted]
            for result, (total, _) in zip(results, wanted, strict=True):
                np.testing.assert_allclose(result.array, total, rtol=1e-14)


@pytest.mark.parametrize("place", PLACES, ids=str)
@settings(max_examples=5)
@given(seed=SEEDS)
def test_every_client_gets_every_sum_whatever_the_delays_orders_joins_and_epochs(place, seed):
    rng = random.Random(seed)
    loopback = job(placement(*place, rng), rng)
    clients = range(loopback.placement.num_clients)
    iterations = Iterations(loopback, rng)
    for round_ in range(rng.randint(1, 3)):
        if round_ and rng.random() < 0.5:
            for client, table in enumerate(tables(loopback.placement, rng)):
                loopback.profile(client, table)
        lengths = [rng.randint(0, 3) for _ in clients]
        for step in range(max(lengths)):
            iterations.iterate([client for client in clients if lengths[client] > step])
        for client in clients:
            loopback.join(client)
        if rng.random() < 0.3:
            loopback.run()
    loopback.run()
    iterations.check()
    [last] = {protocol.last_joined for protocol in loopback.clients}
    assert lengths[last] == max(lengths)  # it has had every result that anybody had


@settings(max_examples=30)
@given(seed=SEEDS)
def test_every_client_gets_every_sum_in_any_interleaving(seed):
    rng = random.Random(seed)
    loopback = job(placement(*rng.choice(PLACES), rng), rng)
    iterations = Iterations(loopback, rng)
    for _ in range(2):
        iterations.iterate(list(range(loopback.placement.num_clients)))
    while choices := loopback.step_choices():
        loopback.step(rng.choice(choices))
    iterations.check()


@pytest.mark.parametrize("place", PLACES, ids=str)
@settings(max_examples=5)
@given(seed=SEEDS)
def test_nothing_is_left_of_a_name_that_all_clients_forget_as_soon_as_each_may(place, seed):
    rng = random.Random(seed)
    loopback = job(placement(*place, rng), rng)
    clients = range(loopback.placement.num_clients)
    for use in range(1, 4):
        for client in clients:
            loopback.push(client, "w", np.full(10 * use, client + 1.0))
        to_forget = set(clients)
        while choices := loopback.step_choices():
            loopback.step(rng.choice(choices))
            for client in [client for client in to_forget if loopback.results(client, "w")]:
                assert loopback.result(client, "w").tolist() == [sum(range(1, len(clients) + 1))] * 10 * use
                to_forget.remove(client)
                loopback.deliver(client, loopback.clients[client].deregister("w"))
        assert not to_forget
        assert loopback.num_rings == 0
        assert all(not proxy._sync.keys and not proxy.used_bytes for proxy in loopback.proxies)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("collective", ["in_place", "ring", "star"])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_every_type_is_summed_and_half_types_round_once(dtype, collective, num_nodes):
    loopback = job(two_by_two(collective, num_nodes), random.Random(1))
    wide = np.random.default_rng(1).integers(0, 100, (2, 33)).astype(dtype.accumulator)
    stored = [narrowed(row, dtype) for row in wide + (0 if dtype.is_integer else 0.01)]
    for client, array in enumerate(stored):
        loopback.push(client, "w", array, dtype=dtype)
    loopback.run()
    wanted = narrowed(widen(stored[0], dtype) + widen(stored[1], dtype), dtype)
    for client in range(2):
        assert loopback.result(client, "w").dtype == dtype.storage
        assert np.array_equal(loopback.result(client, "w"), wanted)


@pytest.mark.parametrize("collective", ["in_place", "ring", "star"])
def test_all_clients_get_the_same_bits(collective):
    loopback = job(placement(3, 3, 1, collective, random.Random(0)), random.Random(2))
    for client in range(3):
        values = np.random.default_rng(client).normal(size=1000).astype(np.float32)
        loopback.push(client, "w", values, Op.AVERAGE)
    loopback.run()
    results = [loopback.result(client, "w").tobytes() for client in range(3)]
    assert len(set(results)) == 1


@pytest.mark.parametrize("collective", ["in_place", "ring", "star"])
@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_clients_that_disagree_about_a_name_are_all_told(collective, num_nodes, seed):
    loopback = job(two_by_two(collective, num_nodes), random.Random(seed))
    loopback.push(0, "w", np.zeros(3, np.float32))
    loopback.push(1, "w", np.zeros((2, 2), np.float32))
    loopback.push(0, "other", np.ones(3))
    loopback.push(1, "other", np.ones(3))
    loopback.run()
    for client in range(2):
        failed = loopback.failure(client, "w")
        assert failed.error == "MismatchError"
        assert "'w'" in failed.text
        assert "float32[3]" in failed.text
        assert "float32[2, 2]" in failed.text
        assert loopback.result(client, "other").tolist() == [2, 2, 2]
    assert loopback.unfinished() == ()


@pytest.mark.parametrize(
    ("array", "op"), [(np.zeros(3, np.float64), Op.SUM), (np.zeros(3, np.float32), Op.MAX)]
)
def test_another_dtype_or_op_is_a_disagreement_too(array, op):
    loopback = job(two_by_two(), random.Random(3))
    loopback.push(0, "w", np.zeros(3, np.float32), Op.SUM)
    loopback.push(1, "w", array, op)
    loopback.run()
    assert [loopback.failure(c, "w").error for c in range(2)] == ["MismatchError"] * 2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("num_elements", "who"), [(1 << 14, "both"), (1500, "the second")])
def test_a_region_that_does_not_fit_fails_the_key_on_all_clients(num_elements, who, seed):
    place = placement(2, 2, 1, "ring", random.Random(0))
    table = RoutingTable(threshold_bytes=0, latency_proxy=0, bandwidth_proxy=0, partition_bytes=64)
    rng = random.Random(seed)
    loopback = Loopback(place, [table] * 2, delay_s=lambda *_: rng.random(), capacity_bytes=1 << 14)
    for client in range(2):
        loopback.push(client, "w", np.zeros(num_elements))
    loopback.run()
    for client in range(2):
        failed = loopback.failure(client, "w")
        assert failed.error == "CapacityError"
        assert f"needs {8 * num_elements} bytes" in failed.text
    assert loopback.unfinished() == ()


def test_a_proxy_without_a_contributor_takes_part_in_the_ring():
    place = placement(2, 3, 1, "ring", random.Random(0))
    routes = RoutingTable(threshold_bytes=0, latency_proxy=1, bandwidth_proxy=1, partition_bytes=64)
    loopback = Loopback(place, [routes] * 2)
    for client in range(2):
        loopback.push(client, "w", np.full(100, client + 1.0))
    loopback.run()
    assert [loopback.result(client, "w").sum() for client in range(2)] == [300, 300]
    assert loopback.num_rings == 0


def test_keys_keep_their_region_in_the_next_epoch():
    loopback = job(two_by_two(), random.Random(5))
    for _ in range(2):
        for client in range(2):
            loopback.push(client, "w", np.ones(30))
        loopback.run()
        used = [proxy.used_bytes for proxy in loopback.proxies]
        for client, table in enumerate(tables(loopback.placement, random.Random(6))):
            loopback.profile(client, table)
        loopback.run()
    assert [proxy.used_bytes for proxy in loopback.proxies] == used
    assert [client.epoch for client in loopback.clients] == [3, 3]
    assert [len(loopback.results(client, "w")) for client in range(2)] == [2, 2]


@pytest.mark.parametrize("collective", ["in_place", "ring", "star"])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_who_keeps_a_key_waiting_is_known_on_every_node(collective, num_nodes):
    place = placement(4, 2, num_nodes, collective, random.Random(7))
    loopback = job(place, random.Random(8))
    for client in (*range(4), 0, 2):
        loopback.push(client, "w", np.ones(3))
    loopback.run()
    loopback.ask_who_is_missing(0, "w")
    loopback.ask_who_is_missing(2, "never pushed")
    loopback.run()
    assert missing_at(loopback, 0, "w") == {1, 3}
    assert missing_at(loopback, 2, "never pushed") == {0, 1, 2, 3}
    assert loopback.unfinished() == (0, 2)


def missing_at(loopback, client, name):
    protocol = loopback.clients[client]
    key = key_of(name)
    assert protocol.have_all_answered(key)
    return {who for clients in protocol.missing[key].values() for who in clients}


def test_a_worker_without_any_batch_holds_nobody_up():
    loopback = job(two_by_two(), random.Random(9))
    loopback.join(1)
    loopback.push(0, "w", np.ones(3), Op.AVERAGE)
    loopback.join(0)
    for client in range(2):
        loopback.push(client, "w", np.ones(3), Op.AVERAGE)
    loopback.run()
    assert [result.array[0] for result in loopback.results(0, "w")] == [0.5, 1]
    assert [result.array[0] for result in loopback.results(1, "w")] == [1]


def test_a_join_that_another_device_passes_on_late_is_still_the_earlier_one():
    place = dataclasses.replace(two_by_two(), local_proxies=(0, 1))
    row = RoutingTable(threshold_bytes=0, latency_proxy=1, bandwidth_proxy=1, partition_bytes=400)
    loopback = Loopback(place, [row, row], delay_s=lambda *ends, **_: float(ends[:2] == (3, 2)))
    loopback.join(1)  # device 0 hears of it from device 1, after client 0's own join
    loopback.push(0, "c", np.ones(3))
    loopback.join(0)
    loopback.run()
    assert [device for device, _, _ in loopback.clients[0].keys[key_of("c")].targets] == [1]
    assert [protocol.last_joined for protocol in loopback.clients] == [0, 0]


def test_the_same_delays_give_the_same_times():
    def ends_s(seed):
        rng = random.Random(seed)
        loopback = job(placement(3, 2, 1, "ring", rng), rng)
        for client in range(3):
            loopback.push(client, "w", np.ones(50))
        loopback.run()
        return loopback.clock.now_s()

    assert ends_s(1) == ends_s(1) > 0


def test_a_push_takes_the_time_of_its_messages():
    place = two_by_two()
    table = RoutingTable(threshold_bytes=0, latency_proxy=0, bandwidth_proxy=0, partition_bytes=64)
    loopback = Loopback(place, [table] * 2, delay_s=lambda source, to, nbytes: 1.0)
    for client in range(2):
        loopback.push(client, "w", np.ones(1))
    loopback.run()
    began_s = loopback.clock.now_s()
    for client in range(2):
        loopback.push(client, "w", np.ones(1))
    loopback.run()
    assert loopback.clock.now_s() - began_s == 3  # the push, the reduce, the word that it is ready
