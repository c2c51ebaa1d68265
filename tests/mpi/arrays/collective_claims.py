"""What groups of workers promise, on one node and on two: against plain sums, and against the formulas of bytes.

The argument is the folder for reports.
"""

import sys
from functools import lru_cache, reduce

import numpy as np

import coarse
from coarse.collectives.schedule import bytes_between_nodes
from coarse.collectives.shape import Collective, GroupShape
from coarse.parallel.groups import shared_by_groups
from coarse.protocol.dtypes import DType, Op, narrowed, widen
from coarse.session import current
from tests.support.claims import raises, report_claims

CAPACITY_BYTES = 96 << 20
SIZES = (0, 1, 7, 4096, 100_003)
LARGE = (2 << 20) + 200_004
"""Bytes of a slice that passes through the staging buffer in more pieces than it has room for at once."""


def group_of(collective=Collective.HIERARCHICAL, ranks=None):
    from coarse.collectives.group import WorkerGroup

    return WorkerGroup(shared_by_groups(current()), everybody() if ranks is None else ranks, collective)


def everybody():
    return tuple(range(coarse.size()))


def shape_of(ranks):
    nodes = current().placement.client_nodes
    return GroupShape(tuple(nodes[rank] for rank in ranks))


def all_groups():
    """A group of all workers by each collective, and one in which ranks stand in another order."""
    for collective in Collective:
        for ranks in (everybody(), (2, 0, 3, 1)):
            group = group_of(collective, ranks)
            yield group
            group.close()


def values(rank: int, num_elements: int, dtype: DType) -> np.ndarray:
    """A rank's contribution, the same wherever it is asked for; read-only."""
    array = _values(rank, num_elements, dtype)
    array.flags.writeable = False
    return array


@lru_cache(maxsize=64)
def _values(rank: int, num_elements: int, dtype: DType) -> np.ndarray:
    generator = np.random.default_rng([rank, num_elements, dtype])
    if dtype.is_integer:
        return generator.integers(0, 50, num_elements).astype(dtype.storage)
    return narrowed((generator.standard_normal(num_elements) * 8).astype(dtype.accumulator), dtype)


def in_order(op: Op, arrays: list[np.ndarray]) -> np.ndarray:
    """The arrays combined one after the other, in the accumulator type."""
    combine = {Op.MIN: np.minimum, Op.MAX: np.maximum}.get(op, np.add)
    return reduce(combine, arrays)


def combined(group, num_elements: int, dtype: DType, op: Op, slice_of: int) -> np.ndarray:
    """What every bit of the result of slice `slice_of` must be: by members, then by nodes, or round the ring."""
    wide = [widen(values(rank, num_elements, dtype), dtype) for rank in group.ranks]
    if group.collective is Collective.HIERARCHICAL:
        nodes = shape_of(group.ranks).members_by_node
        total = in_order(op, [in_order(op, [wide[m] for m in members]) for members in nodes])
    else:
        total = in_order(op, [wide[(slice_of + 1 + i) % group.size] for i in range(group.size)])
    divisor = total.dtype.type(group.size)
    return narrowed(total / divisor if op is Op.AVERAGE else total, dtype)


# --- the collectives


def require_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    """As numpy.testing has it, which is slow with large arrays."""
    if not np.array_equal(found, wanted):
        np.testing.assert_array_equal(found, wanted)


def sizes_for(group) -> tuple[int, ...]:
    """A large one too, for one group of each collective."""
    return SIZES if group.ranks == everybody() else (*SIZES, LARGE)


def every_member_gathers_all_slices() -> None:
    for group in all_groups():
        for size in sizes_for(group):
            own = values(group.rank, size, DType.UINT8)
            wanted = np.concatenate([values(rank, size, DType.UINT8) for rank in range(group.size)])
            out = np.zeros(size * group.size, np.uint8)
            group.all_gather(out, own, what="apart").wait()
            require_equal(out, wanted)
            out = np.zeros_like(out)
            place = out[group.rank * size :][:size]
            place[:] = own
            group.all_gather(out, place, what="in place").wait()
            require_equal(out, wanted)


def what_a_node_keeps_is_read_without_a_byte_between_nodes() -> None:
    for group in all_groups():
        for size in sizes_for(group)[2::3]:
            out, again = np.zeros((2, size * group.size), np.uint8)
            with_room = group.node_buffer("kept", len(out) + 100)
            for turn in range(2):
                own = values(group.rank + turn, size, DType.UINT8)
                group.all_gather(out, own, keep=with_room, what="kept").wait()
                before = group.counters()
                for _ in range(1 + group.rank % 2):  # as often as a member needs
                    group.read_node(again, with_room, what="read").wait()
                assert group.counters() == before
                require_equal(again, out)
                wanted = np.concatenate([values(r + turn, size, DType.UINT8) for r in range(group.size)])
                require_equal(again, wanted)
                group.barrier()
                require_equal(with_room.array[: len(out)], wanted)
                group.barrier()
            with_room.release()


def a_gather_on_the_node_moves_nothing_between_nodes() -> None:
    for group in all_groups():
        for size in sizes_for(group):
            out = np.zeros(size * len(group.node_ranks), np.uint8)
            group.gather_on_node(out, values(group.rank, size, DType.UINT8), what="near").wait()
            wanted = [values(member, size, DType.UINT8) for member in group.node_ranks]
            require_equal(out, np.concatenate(wanted))
        assert "near" not in group.counters()


def sums_of_every_type_and_operation_have_the_same_bits_as_those_added_in_the_stated_order() -> None:
    for group in all_groups():
        for dtype in DType:
            for op in Op:
                if op is Op.AVERAGE and dtype.is_integer:
                    continue
                for size in (1, 1003):
                    full = values(group.ranks[group.rank], size * group.size, dtype)
                    out = np.zeros(size, full.dtype)
                    group.reduce_scatter(out, full, dtype, op, what="sum").wait()
                    wanted = combined(group, size * group.size, dtype, op, group.rank)
                    require_equal(out, wanted[group.rank * size :][:size])


def a_large_sum_may_end_where_it_began() -> None:
    for group in all_groups():
        size = max(sizes_for(group)) // 4
        full = values(group.ranks[group.rank], size * group.size, DType.FLOAT32).copy()
        place = full[:size]
        group.reduce_scatter(place, full, DType.FLOAT32, Op.AVERAGE, what="in place").wait()
        wanted = combined(group, size * group.size, DType.FLOAT32, Op.AVERAGE, group.rank)
        require_equal(place, wanted[group.rank * size :][:size])


def an_all_reduce_of_any_size_gives_all_members_the_same_bits() -> None:
    for group in all_groups():
        for dtype in (DType.FLOAT32, DType.BFLOAT16):
            for size in (*SIZES, max(sizes_for(group)) // 3 + 1):
                array = values(group.ranks[group.rank], size, dtype).copy()
                group.all_reduce(array, dtype, Op.SUM, what="all-reduce").wait()
                length = -(-size // group.size)
                for rank in range(group.size):
                    part = slice(rank * length, (rank + 1) * length)
                    require_equal(array[part], combined(group, size, dtype, Op.SUM, rank)[part])


# --- bytes


def bytes_between_nodes_are_those_of_the_formulas() -> None:
    for group in all_groups():
        shape, size = shape_of(group.ranks), LARGE // 8
        before = coarse.statistics()["between_nodes"].get("gathered", (0, 0))
        out = np.zeros(size * group.size, np.float64)
        group.all_gather(out, out[:size].copy(), what="gathered").wait()
        group.reduce_scatter(out[:size].copy(), out, DType.FLOAT64, Op.SUM, what="summed").wait()
        after = coarse.statistics()["between_nodes"].get("gathered", (0, 0))
        mine = np.zeros(2, np.int64)
        for what in ("gathered", "summed"):
            mine[:] = group.counters().get(what, (0, 0))
            by_rank = np.zeros((group.size, 2), np.int64)
            group.all_gather(by_rank, mine, what="counts").wait()
            if group.collective is Collective.RING and group.ranks != everybody():
                continue  # the ring leaves nodes more than once
            wanted = bytes_between_nodes(group.collective, shape, out.nbytes)
            for members in shape.members_by_node:
                require_equal(by_rank[list(members)].sum(axis=0), [wanted, wanted])
        assert group.counters().get("gathered", (0, 0)) == tuple(np.subtract(after, before))


# --- order


def many_are_in_flight_at_once() -> None:
    group = group_of()
    outs = [np.zeros((group.size, 1000 + i), np.uint8) for i in range(60)]
    sums = [np.full(1 + 300 * i, group.rank + i, np.int64) for i in range(60)]
    pending = []
    for i, (out, array) in enumerate(zip(outs, sums, strict=True)):
        pending.append(group.all_gather(out, np.full(1000 + i, group.rank + i, np.uint8), what=f"gather {i}"))
        pending.append(group.all_reduce(array, DType.INT64, Op.SUM, what=f"sum {i}"))
    for known in reversed(pending):
        known.wait()
        assert known.is_done()
    for i, (out, array) in enumerate(zip(outs, sums, strict=True)):
        assert (out == np.arange(group.size)[:, None] + i).all()
        assert (array == sum(range(group.size)) + i * group.size).all()
    group.close()


def submitted_jobs_keep_their_place_among_collectives() -> None:
    from coarse.collectives.conditions import Requests

    group, order = group_of(), []
    array = np.full(9, group.rank, np.int64)

    def broadcast(comm):
        yield Requests([comm.Ibcast(array, root=2)])
        order.append("broadcast")

    def fast(comm):
        assert comm.Get_rank() == group.rank
        order.append("fast")

    total = np.full(5, 1, np.int64)
    pending = group.submit(broadcast, what="broadcast")
    group.all_reduce(total, DType.INT64, Op.SUM, what="sum").when_over(lambda _: order.append("sum"))
    group.submit(fast, what="fast").wait()
    assert order == ["broadcast", "sum", "fast"]
    assert pending.is_done()
    assert (array == 2).all()
    assert (total == group.size).all()
    group.close()


def groups_that_are_used_in_opposite_orders_go_on() -> None:
    groups = {ranks: group_of(Collective.RING, ranks) for ranks in ((0, 1), (1, 2), (0, 2)) if coarse.rank() in ranks}
    order = list(groups) if coarse.rank() % 2 else list(reversed(groups))
    arrays = {ranks: np.full(3, coarse.rank() + 1.0) for ranks in order}
    pending = [groups[ranks].all_reduce(arrays[ranks], DType.FLOAT64, Op.SUM, what="sum") for ranks in order]
    for known in pending:
        known.wait()
    for ranks, array in arrays.items():
        assert (array == sum(ranks) + 2.0).all()
    for group in groups.values():
        group.close()


def a_member_that_comes_late_is_named_and_then_all_goes_on() -> None:
    group = group_of()
    out = np.zeros(group.size, np.uint8)
    own = np.full(1, group.rank, np.uint8)
    if group.rank != 1:
        pending = group.all_gather(out, own, what="late")
        with raises(coarse.StallError, f"rank {group.rank}", "late", "lacks ranks [1]") as caught:
            pending.wait(0.3)
        assert caught[0].missing == (1,)  # type: ignore[attr-defined]
    coarse.barrier()
    if group.rank == 1:
        pending = group.all_gather(out, own, what="late")
    pending.wait()
    assert out.tolist() == list(range(group.size))
    group.close()


# --- what is refused


def sizes_that_differ_are_named_on_every_rank_and_the_group_goes_on() -> None:
    for group in all_groups():
        size = 100 + 8 * (group.ranks[group.rank] == 3)
        low = group.ranks[0]
        words = (f"rank {coarse.rank()}", "'odd one'", f"rank {low}", "rank 3", "432 bytes", "400 bytes")
        with raises(coarse.MismatchError, *words):
            group.all_gather(np.zeros(size * group.size, np.uint8), np.zeros(size, np.uint8), what="odd one").wait()
        array = np.zeros(9, (np.float32, np.int32)[coarse.rank() == 3])
        dtype = (DType.FLOAT32, DType.INT32)[coarse.rank() == 3]
        with raises(coarse.MismatchError, "'odd type'", "float32", "int32", "rank 3"):
            group.all_reduce(array, dtype, Op.SUM, what="odd type").wait()
        name = "wy"[coarse.rank() == 3]
        with raises(coarse.MismatchError, repr(name), "rank 3", "another name"):
            group.all_gather(np.zeros(group.size), np.zeros(1), what=name).wait()
        group.barrier()


def a_buffer_larger_than_its_device_is_refused_on_all_members_and_nothing_is_lost() -> None:
    group = group_of()
    for _ in range(3):
        with raises(coarse.CapacityError, "rank", CAPACITY_BYTES * 2, "bytes free"):
            group.node_buffer("too large", CAPACITY_BYTES * 2)
    for _ in range(4):
        group.node_buffer("large", CAPACITY_BYTES * 3 // 4).release()
    group.close()


def buffers_are_dealt_to_all_devices_of_a_node() -> None:
    group = group_of()
    num_devices = len(current().placement.devices_on(current().placement.client_nodes[coarse.rank()]))
    buffers = [group.node_buffer(f"half {i}", CAPACITY_BYTES * 5 // 8) for i in range(num_devices)]
    assert len({buffer.region.device for buffer in buffers}) == num_devices
    for buffer in buffers:
        buffer.release()
    group.close()


def groups_that_cannot_be_are_refused() -> None:
    with raises(coarse.ConfigError, "different ones of 0..3", "(0, 0)"):
        group_of(ranks=(0, 0))
    with raises(coarse.ConfigError, f"with {coarse.rank()} among them"):
        group_of(ranks=tuple(rank for rank in everybody() if rank != coarse.rank()))
    if shape_of(everybody()).num_nodes == 2 and coarse.rank() != 3:
        with raises(coarse.ConfigError, "equally many members", "1 of 3", '"ring"'):
            group_of(ranks=(0, 1, 2))
        group = group_of(Collective.RING, (0, 1, 2))
        array = np.ones(5)
        group.all_reduce(array, DType.FLOAT64, Op.SUM, what="uneven").wait()
        assert (array == 3).all()
        group.close()


def arrays_that_do_not_fit_are_refused_at_once() -> None:
    group = group_of()
    own, out = np.zeros(4, np.float32), np.zeros(16, np.float32)
    with raises(ValueError, "'short'", "out must have 64 bytes, got 60"):
        group.all_gather(out[1:], own, what="short")
    with raises(TypeError, "own must be a contiguous"):
        group.all_gather(out, np.zeros((4, 2))[:, 0], what="strided")
    with raises(TypeError, "average of int32"):
        group.reduce_scatter(own, out, DType.INT32, Op.AVERAGE, what="average")
    with raises(ValueError, "whole elements of float64, got 12 bytes"):
        group.all_reduce(own[:3], DType.FLOAT64, Op.SUM, what="torn")
    kept = group.node_buffer("small", 63)
    with raises(ValueError, "64 bytes do not fit the node buffer 'small' of 63"):
        group.all_gather(out, own, keep=kept, what="kept")
    group.barrier()
    kept.release()
    group.close()


def communicators_of_all_workers_that_are_made_in_unlike_order_are_refused():
    from coarse.collectives.opening import communicators

    parent = current().worker_comm.Dup()
    for comm in communicators(parent, everybody(), 3):
        assert (comm.Get_rank(), comm.Get_size()) == (coarse.rank(), coarse.size())
    with raises(coarse.MismatchError, f"rank {coarse.rank()}", "not the one that others open", "in the same order"):
        communicators(parent, everybody(), 4 + (coarse.rank() == 1))


CLAIMS = [
    communicators_of_all_workers_that_are_made_in_unlike_order_are_refused,
    every_member_gathers_all_slices,
    what_a_node_keeps_is_read_without_a_byte_between_nodes,
    a_gather_on_the_node_moves_nothing_between_nodes,
    sums_of_every_type_and_operation_have_the_same_bits_as_those_added_in_the_stated_order,
    a_large_sum_may_end_where_it_began,
    an_all_reduce_of_any_size_gives_all_members_the_same_bits,
    bytes_between_nodes_are_those_of_the_formulas,
    many_are_in_flight_at_once,
    submitted_jobs_keep_their_place_among_collectives,
    groups_that_are_used_in_opposite_orders_go_on,
    a_member_that_comes_late_is_named_and_then_all_goes_on,
    sizes_that_differ_are_named_on_every_rank_and_the_group_goes_on,
    a_buffer_larger_than_its_device_is_refused_on_all_members_and_nothing_is_lost,
    buffers_are_dealt_to_all_devices_of_a_node,
    groups_that_cannot_be_are_refused,
    arrays_that_do_not_fit_are_refused_at_once,
]


if __name__ == "__main__":
    coarse.init({"stall_timeout_s": 30.0, "device_capacity_bytes": CAPACITY_BYTES})
    report_claims(CLAIMS, sys.argv[1])
