"""The workers' own ring without bytes: every gradient goes round, one after the other, in any order of chunks."""

import random

import pytest

from coarse.collectives.ring_stream import RingStream
from coarse.proxy.instructions import RingReceive, RingSend

NUM_ELEMENTS = (7, 1, 12)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_finished_in_the_order_in_which_they_were_given_with_the_sum_of_all(size, seed):
    chooser, members = random.Random(seed), tuple(range(size))
    streams = [RingStream(worker, members, NUM_ELEMENTS) for worker in members]
    values = {(worker, position): [2**worker] * n for worker in members for position, n in enumerate(NUM_ELEMENTS)}
    order = chooser.sample(range(len(NUM_ELEMENTS)), len(NUM_ELEMENTS))
    given, chunks = {worker: list(order) for worker in members}, {worker: [] for worker in members}
    came = {worker: {} for worker in members}

    def carry_out(worker, instructions):
        for step in instructions:
            buffer = values[worker, step.ring.key]
            if isinstance(step, RingSend):
                chunks[step.device].append((step.ring, step.header.step, buffer[step.begin : step.end]))
            elif isinstance(step, RingReceive):
                chunk, own = came[worker].pop((step.ring, step.step)), buffer[step.begin : step.end]
                total = [a + b for a, b in zip(own, chunk, strict=True)] if step.accumulate else chunk
                buffer[step.begin : step.end] = total

    while moves := [(kind, worker) for kind in (given, chunks) for worker in members if kind[worker]]:
        kind, worker = chooser.choice(moves)
        if kind is given:
            assert len(given[worker]) < len(order) or streams[worker].is_idle
            carry_out(worker, streams[worker].push(given[worker].pop(0)))
        else:
            ring, step, chunk = chunks[worker].pop(0)
            came[worker][ring, step] = chunk
            carry_out(worker, streams[worker].on_chunk(ring, step))
    for worker in members:
        assert streams[worker].take_finished() == order
        assert streams[worker].is_idle
        assert streams[worker].take_finished() == []
        for position, num_elements in enumerate(NUM_ELEMENTS):
            assert values[worker, position] == [2**size - 1] * num_elements
