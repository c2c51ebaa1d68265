from hypothesis import given
from hypothesis import strategies as st

from coarse.proxy.exchange_runs import RingRun
from coarse.proxy.instructions import RingId, RingReceive, RingSend

RING = RingId(5, 1, 0, 3)


def members_of(num_members, num_elements, direction):
    """The RingRuns of devices 10, 11, ... that form a ring."""
    devices = tuple(range(10, 10 + num_members))
    return {d: RingRun(RING, num_elements, devices, d, direction) for d in devices}


@given(st.integers(1, 6), st.integers(0, 40), st.sampled_from((1, -1)), st.data())
def test_in_every_order_of_events_every_member_ends_with_the_sum_of_all(size, length, way, data):
    runs = members_of(size, length, way)
    local = {device: [device * 100 + i for i in range(length)] for device in runs}
    wanted = [sum(column) for column in zip(*local.values(), strict=True)]
    chunks, waiting = {}, [(device, None) for device in runs]
    while waiting:
        device, header = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        if header is None:
            steps = runs[device].on_reduced(0, present=True)
        else:
            steps = runs[device].on_chunk(header.step, present=header.present)
        for step in steps:
            if isinstance(step, RingSend):
                chunks[step.device, step.header.step] = local[device][step.begin : step.end]
                waiting.append((step.device, step.header))
                continue
            assert isinstance(step, RingReceive)
            came = chunks.pop((device, step.step))
            kept = local[device][step.begin : step.end] if step.accumulate else [0] * len(came)
            added = [one + other for one, other in zip(kept, came, strict=True)]
            local[device][step.begin : step.end] = added
    assert all(run.is_finished for run in runs.values())
    assert all(values == wanted for values in local.values())
    assert not chunks


@given(st.integers(2, 5), st.sets(st.integers(0, 4)), st.sampled_from((1, -1)))
def test_every_member_learns_whether_anybody_contributed(size, contributing, way):
    runs = members_of(size, 8, way)
    waiting = []
    for position, (_, run) in enumerate(sorted(runs.items())):
        waiting += run.on_reduced(0, present=position in contributing)
    while waiting:
        step = waiting.pop(0)
        if isinstance(step, RingSend):
            waiting += runs[step.device].on_chunk(step.header.step, present=step.header.present)
    anybody = bool(contributing & set(range(size)))
    assert [run.present for run in runs.values()] == [anybody] * size


def test_chunks_that_come_before_the_local_sum_wait_for_it():
    run = members_of(2, 4, 1)[10]
    assert run.on_chunk(0, present=True) == []
    assert run.on_chunk(1, present=True) == []
    kinds = [type(step) for step in run.on_reduced(0, present=True)]
    assert kinds == [RingSend, RingReceive, RingSend, RingReceive]
    assert run.is_finished


def test_chunks_say_the_round_in_which_the_local_sum_was_made():
    first, *_ = members_of(2, 4, 1)[10].on_reduced(7, present=True)
    assert first.header.round == 7
    assert (first.header.key, first.header.epoch, first.header.version, first.header.shard) == RING


def test_a_member_sends_to_its_next_in_its_direction():
    for way, wanted in ((1, 11), (-1, 12)):
        first, *_ = members_of(3, 6, way)[10].on_reduced(0, present=True)
        assert first.device == wanted
