"""Random jobs under on-demand communication, in any order of events: right shards, right sums, the same bits."""

import numpy as np
import pytest

from coarse.odc.layout import EVERYTHING, NO_TOKENS, OdcDeclaration, OdcLayout, OdcUnit
from coarse.odc.records import OdcCommitted, OdcFailed
from coarse.odc.wide_sum import WideSum
from coarse.protocol.dtypes import DType, widened
from coarse.strategy.sharding import Sum
from tests.support.claims import takes_all
from tests.support.odc_cluster import OdcCluster, minibatch, placement_of

LAYOUTS = [
    ((0, 0, 0), (0,)), ((0, 0, 0), (0, 0)), ((0, 1), (0, 1)), ((0, 0, 1, 1), (0, 0, 1, 1)), ((0, 0, 1, 1), (0, 1)),
    ((0, 1, 0, 2, 1), (0, 1, 2, 1)),
]  # fmt: skip
"""(Node of each worker, node of each device)."""
NUM_MINIBATCHES = 3


class Job:
    """What is drawn by a seed, and what has to come of it."""

    def __init__(self, seed: int, **options: object) -> None:
        self.random = np.random.default_rng(seed)
        nodes, devices = LAYOUTS[seed % len(LAYOUTS)]
        self.placement = placement_of(nodes, devices)
        self.members = range(len(nodes))
        self.units = tuple(self.unit() for _ in range(self.random.integers(1, 4)))
        settings = {
            "sum": Sum.INT64, "cache_bytes": int(self.random.choice([0, EVERYTHING, 1500])), "top": 18,
            "num_slots": int(self.random.integers(1, 3)), **options,
        }  # fmt: skip
        self.declaration = OdcDeclaration(members=tuple(self.members), units=self.units, **settings)  # type: ignore[arg-type]
        self.shards = [[self.shards_of(member) for member in self.members] for _ in range(NUM_MINIBATCHES)]
        for before, after in zip(self.shards, self.shards[1:], strict=False):
            for member in self.members:
                for unit in range(len(self.units)):
                    if self.random.random() < 0.3:
                        after[member][unit] = before[member][unit]
        self.masks = [[0] * len(self.units) for _ in range(NUM_MINIBATCHES)]
        self.sums = [
            [[np.zeros(unit.num_elements) for unit in self.units] for _ in self.members] for _ in range(NUM_MINIBATCHES)
        ]
        self.pieces = [
            [[self.piece(number) for _ in range(self.random.choice([0, 1, 3]))] for _ in self.members]
            for number in range(NUM_MINIBATCHES)
        ]

    def unit(self) -> OdcUnit:
        segments = tuple(int(size) for size in self.random.integers(1, 30, self.random.integers(0, 4)))
        dtype = self.random.choice([DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16])
        return OdcUnit(int(self.random.integers(1, 200)), segments, int(dtype))

    def shards_of(self, member: int) -> list[np.ndarray]:
        return [self.random.integers(0, 255, unit.shard_nbytes).astype(np.uint8) for unit in self.units]

    def piece(self, number: int) -> list[tuple[int, int, np.ndarray]]:
        """Of one microbatch; whole numbers, so that any sum is exact."""
        found = []
        for place, unit in enumerate(self.units):
            if not unit.segments or self.random.random() < 0.2:
                continue
            mask = int(self.random.integers(1, 1 << len(unit.segments)))
            values = self.random.integers(-99, 99, (len(self.members), unit.num_pushed(mask))).astype(np.float64)
            rows = values
            if unit.dtype == DType.BFLOAT16:
                rows = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
                values = widened(rows.reshape(-1), DType.BFLOAT16).reshape(rows.shape).astype(np.float64)
            self.masks[number][place] |= mask
            for owner in self.members:
                for begin, sum_begin, count in unit.runs(mask, among=mask):
                    added = values[owner, begin : begin + count]
                    self.sums[number][owner][place][sum_begin : sum_begin + count] += added
            found.append((place, mask, rows))
        return found

    def program(self, cluster: OdcCluster, member: int):
        for number in range(NUM_MINIBATCHES):

            def check(unit: int, rows: list[np.ndarray], number: int = number) -> None:
                for owner in self.members:
                    np.testing.assert_array_equal(rows[owner], self.shards[number][owner][unit])

            ended = yield from minibatch(
                cluster, member, self.shards[number][member], self.pieces[number][member],
                tokens=float(member + number), on_read=check,
            )  # fmt: skip
            assert isinstance(ended, OdcCommitted)
            assert ended.tokens == sum(other + number for other in self.members)
            assert list(ended.masks) == self.masks[number]
            yield None
            for place in range(len(self.units)):
                self.check_sums(cluster, member, number, place)
            yield None

    def check_sums(self, cluster: OdcCluster, member: int, number: int, place: int) -> None:
        begin, totals = 0, cluster.totals(member, place)
        for bit, size in enumerate(self.units[place].segments):
            if self.masks[number][place] >> bit & 1:
                wanted = self.sums[number][member][place][begin : begin + size]
                np.testing.assert_array_equal(totals[begin : begin + size], wanted)
            begin += size


@pytest.mark.parametrize("kind", [Sum.INT64, Sum.FLOAT32])
def test_random_jobs(kind):
    for seed in range(150 if takes_all() else 40):
        job = Job(seed, sum=kind)
        cluster = OdcCluster(job.placement, job.declaration, seed)
        cluster.run({member: job.program(cluster, member) for member in job.members})


def test_the_bits_do_not_depend_on_the_order_of_events_or_on_what_nodes_keep():
    values = np.random.default_rng(0).standard_normal((4, 3, 4, 50)).astype(np.float32)
    found = set()
    for seed in range(20 if takes_all() else 6):
        for cache_bytes in (0, EVERYTHING):
            cluster = OdcCluster(placement_of(*LAYOUTS[3]), declared(cache_bytes=cache_bytes), seed)
            pieces = {member: [[(0, 1, rows)] for rows in values[member]] for member in range(4)}
            shard = [np.zeros(8, np.uint8)]
            cluster.run({member: minibatch(cluster, member, shard, pieces[member]) for member in range(4)})
            sums = [cluster.sums(member, 0) for member in range(4)]
            found.add(b"".join(one.words.tobytes() for one in sums if isinstance(one, WideSum)))
    assert len(found) == 1


def test_what_does_not_fit_is_told_to_all_and_marked_at_its_owner():
    for cache_bytes in (0, EVERYTHING):
        cluster = OdcCluster(placement_of(*LAYOUTS[3]), declared(cache_bytes=cache_bytes), 1)
        rows = np.zeros((4, 50), np.float32)
        rows[2, 7], rows[0, 3] = np.nan, 2.0**19
        pieces = {member: [[(0, 1, rows if member == 1 else 0 * rows[:1].repeat(4, 0))]] for member in range(4)}
        pieces[0] = [[(0, 1, np.zeros((4, 50), np.float32))]]
        pieces[2] = pieces[3] = []
        shard, ended = [np.zeros(8, np.uint8)], {}

        def program(member: int, cluster=cluster, pieces=pieces, ended=ended, shard=shard):
            ended[member] = yield from minibatch(cluster, member, shard, pieces[member])

        cluster.run({member: program(member) for member in range(4)})
        assert {one.found for one in ended.values()} == {((0, 0, 3, 3), (2, 0, 7, 0))}
        assert np.isnan(cluster.totals(2, 0)[7])
        assert np.isinf(cluster.totals(0, 0)[3])


@pytest.mark.parametrize("tokens", [{0: 3.0, 1: NO_TOKENS}, {0: 0.0, 1: 0.0}])
def test_ends_that_do_not_go_together_fail_for_all(tokens):
    cluster = OdcCluster(placement_of((0, 1), (0, 1)), declared(2), 0)
    pieces, ended = [[(0, 1, np.ones((2, 50), np.float32))]], {}

    def program(member: int):
        ended[member] = yield from minibatch(cluster, member, [np.zeros(8, np.uint8)], pieces, tokens=tokens[member])

    cluster.run({member: program(member) for member in range(2)})
    assert all(isinstance(one, OdcFailed) for one in ended.values())


def test_a_worker_that_leaves_fails_those_that_end_without_it():
    cluster = OdcCluster(placement_of((0, 1), (0, 1)), declared(2), 0)
    ended = {}

    def program():
        ended[0] = yield from minibatch(cluster, 0, [np.zeros(8, np.uint8)], [])

    for number, device in enumerate(cluster.devices):
        cluster.carry_out(number, device.on_leave(1))
    cluster.run({0: program()})
    assert isinstance(ended[0], OdcFailed)
    assert "worker 1 has shut down after 0 minibatches" in ended[0].text
    assert ended[0].client == 1


def declared(num_members: int = 4, *, cache_bytes: int = 0) -> OdcDeclaration:
    return OdcDeclaration(
        members=tuple(range(num_members)), units=(OdcUnit(8, (50,), int(DType.FLOAT32)),), sum=Sum.INT64,
        cache_bytes=cache_bytes, top=18, num_slots=2,
    )  # fmt: skip


def test_bytes_between_nodes_are_those_of_the_formulas():
    """Without a cache each microbatch fetches and pushes all of a node's far shards; with one a minibatch, once."""
    unit = OdcUnit(4096, (1024,), int(DType.FLOAT32))
    num_microbatches, found = 4, {}
    for cache_bytes in (0, EVERYTHING):
        declaration = OdcDeclaration(
            members=(0, 1, 2, 3), units=(unit,), sum=Sum.INT64, cache_bytes=cache_bytes, top=18, num_slots=2
        )
        cluster = OdcCluster(placement_of((0, 0, 1, 1), (0, 1)), declaration, 0)
        rows = np.ones((4, 1024), np.float32)
        pieces = [[(0, 1, rows)]] * num_microbatches
        shard = [np.ones(4096, np.uint8)]
        cluster.run({member: minibatch(cluster, member, shard, pieces) for member in range(4)})
        found[cache_bytes] = cluster.num_bulk_bytes
    far_per_worker = 2 * (4096 + 4096)
    assert found[0] == pytest.approx(4 * num_microbatches * far_per_worker, rel=0.05)
    assert found[EVERYTHING] == pytest.approx(2 * 2 * (4096 + 16 * 1024), rel=0.05)


def test_what_a_node_keeps_ends_where_its_room_does():
    units = tuple(OdcUnit(1024, (256,), int(DType.FLOAT32)) for _ in range(4))

    def kept(cache_bytes: int) -> frozenset[int]:
        declaration = OdcDeclaration(
            members=(0, 1), units=units, sum=Sum.INT64, cache_bytes=cache_bytes, top=18, num_slots=1
        )
        return OdcLayout(declaration, placement_of((0, 1), (0, 1))).kept

    each = 1024 + 16 * 256
    assert kept(0) == kept(each - 1) == frozenset()
    assert kept(2 * each) == {0, 1}
    assert kept(EVERYTHING) == {0, 1, 2, 3}


@pytest.mark.parametrize("cache_bytes", [0, EVERYTHING])
def test_units_that_were_asked_for_early_may_be_read_in_any_order(cache_bytes):
    units = tuple(OdcUnit(16, (4,), int(DType.FLOAT32)) for _ in range(5))
    declaration = OdcDeclaration(
        members=(0, 1, 2), units=units, sum=Sum.INT64, cache_bytes=cache_bytes, top=18, num_slots=1
    )
    cluster = OdcCluster(placement_of((0, 1, 1), (0, 1)), declaration, 0)
    shards = {member: [np.full(16, 10 * member + unit, np.uint8) for unit in range(5)] for member in range(3)}

    def program(member: int, order: list[int]):
        client = cluster.clients[member]
        cluster.publish(member, shards[member])
        fetches = {unit: client.fetch(unit) for unit in range(5)}
        yield None
        for unit in order:

            def is_there(unit: int = unit) -> bool:
                client.hurry(fetches[unit])
                cluster.flush()
                return client.is_fetched(fetches[unit])

            yield is_there
            rows = cluster.read(member, fetches[unit])
            assert [row[0] for row in rows] == [10 * owner + unit for owner in range(3)]
            client.end_fetch(fetches[unit])
        client.end()
        yield lambda: client.committed is not None

    orders = {0: [4, 3, 2, 1, 0], 1: [2, 4, 0, 1, 3], 2: [0, 1, 2, 3, 4]}
    cluster.run({member: program(member, orders[member]) for member in range(3)})
