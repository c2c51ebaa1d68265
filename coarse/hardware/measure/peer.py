"""Second process of a pair: it plays the memory device, and measures the rates of one core alone."""

import os
import sys
from collections.abc import Callable
from functools import cached_property

import numpy as np

from coarse.hardware.measure.memory_probe import MemoryProbe
from coarse.hardware.measure.native import Native
from coarse.hardware.measure.pair import (
    ADD,
    ADD_THERE,
    ANSWER,
    CHASE,
    ENTER,
    FLUSH,
    LAY,
    MULTIPLY,
    NS_PER_S,
    PEER,
    QUIT,
    READ,
    READ_OFTEN,
    REQUEST,
    STEP,
    STEP_THERE,
    STREAM,
    Endpoint,
)
from coarse.protocol.clock import Clock
from coarse.protocol.dtypes import DType, Op
from coarse.storage.processor import cpu_flags
from coarse.storage.reduce import reduce

_REPEATS = 5
_BLOCK_NUMEL = 64 * 1024
_BETA1, _BETA2, _EPSILON, _RATE = 0.9, 0.999, 1e-8, 1e-3


class Peer:
    """Peer that answers requests."""

    def __init__(self, end: Endpoint) -> None:
        self._end = end

    @cached_property
    def _probe(self) -> MemoryProbe:
        """Probe of the region as a memory device."""
        return MemoryProbe(self._end.region, self._end.clock, Native(cpu_flags()))

    def answer(self, what: int, first: int, second: int) -> float:
        """Return the number that is found; 0 if something was only done."""
        end = self._end
        if what == READ:
            part = slice(first, first + second)
            return _seconds(end.clock, lambda: np.copyto(end.own[part], end.region[part]))
        if what == READ_OFTEN:
            return _seconds(end.clock, lambda: _read_often(end, first, second))
        if what == ADD:
            return add_bytes_per_s(end.own, end.clock)
        if what == STEP:
            return step_bytes_per_s(end.own[: len(end.own) // 2], end.clock)
        if what == MULTIPLY:
            return multiply_flops_per_s(first, end.clock)
        return self._answer_of_device(what, first, second)

    def _answer_of_device(self, what: int, first: int, second: int) -> float:
        end = self._end
        if what == ENTER:
            self._probe.enter(first, second)
        elif what == LAY:
            return float(self._probe.lay())
        elif what == CHASE:
            return self._probe.latency_s(first / NS_PER_S)
        elif what == STREAM:
            return self._probe.stream_bytes_per_s(first, second / NS_PER_S)
        elif what == FLUSH:
            return self._probe.flush_s()
        elif what == ADD_THERE:
            return add_bytes_per_s(end.region, end.clock, 1)
        elif what == STEP_THERE:
            return step_bytes_per_s(end.region, end.clock, 1)
        return 0.0  # a ping


def main(arguments: list[str]) -> None:
    """Serve the other process until it says to end, or is gone."""
    control_fd, data_fd, nbytes, parent = (int(text) for text in arguments[:4])
    end = Endpoint(PEER, control_fd, data_fd, nbytes, arguments[4])
    peer = Peer(end)
    while os.getppid() == parent:
        for _, frame in end.mailbox.frames():
            what, first, second = REQUEST.unpack(frame)
            if what == QUIT:
                return
            end.tell(ANSWER.pack(peer.answer(what, first, second)))
        end.mailbox.sleep(1.0)


def _read_often(end: Endpoint, nbytes: int, count: int) -> None:
    for _ in range(count):
        part = end.next_range(nbytes)
        np.copyto(end.own[part], end.region[part])


def add_bytes_per_s(memory: np.ndarray, clock: Clock, repeats: int = _REPEATS) -> float:
    """Return bytes of a float32 tensor to which a sync core adds another, in a second.

    The tensors are far larger than caches.
    """
    half = len(memory) // 8 * 4
    into, addend = (memory[begin : begin + half].view(np.float32) for begin in (0, half))
    into[:] = addend[:] = 1.0
    seconds = _best(clock, lambda: reduce([into, addend], [into], DType.FLOAT32, Op.SUM, 1), repeats)
    return half / seconds


def step_bytes_per_s(memory: np.ndarray, clock: Clock, repeats: int = _REPEATS) -> float:
    """Return bytes of float32 parameters that Adam steps in a second, block by block.

    All four states lie in `memory`.
    """
    quarter = len(memory) // 16 * 4
    states = [memory[begin : begin + quarter].view(np.float32) for begin in range(0, 4 * quarter, quarter)]
    for state in states:
        state[:] = 0.5

    def step() -> None:
        for begin in range(0, quarter // 4, _BLOCK_NUMEL):
            _adam(*(state[begin : begin + _BLOCK_NUMEL] for state in states))

    return quarter / _best(clock, step, repeats)


def _adam(values: np.ndarray, gradients: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Step once in place, (n,) float32 each (Kingma and Ba 2015, algorithm 1, without bias corrections)."""
    first *= np.float32(_BETA1)
    first += np.float32(1 - _BETA1) * gradients
    second *= np.float32(_BETA2)
    second += np.float32(1 - _BETA2) * gradients * gradients
    values -= np.float32(_RATE) * first / (np.sqrt(second) + np.float32(_EPSILON))


def multiply_flops_per_s(side: int, clock: Clock) -> float:
    """Return floating-point operations per second of a float32 matrix product on one core."""
    left, right = (np.full((side, side), 0.5, np.float32) for _ in range(2))
    out = np.empty((side, side), np.float32)
    return 2.0 * side**3 / _best(clock, lambda: np.matmul(left, right, out=out))


def _best(clock: Clock, action: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Return the seconds of the fastest of a few; the first only warms up if there are several."""
    if repeats > 1:
        action()
    return min(_seconds(clock, action) for _ in range(repeats))


def _seconds(clock: Clock, action: Callable[[], object]) -> float:
    began_s = clock.now_s()
    action()
    return max(clock.now_s() - began_s, 1e-9)


if __name__ == "__main__":
    main(sys.argv[1:])
