"""The second process: it plays the memory device, and measures what one core does alone."""

import sys
from collections.abc import Callable

import numpy as np

from coarse.hardware.measure.pair import (
    ADD,
    ANSWER,
    MULTIPLY,
    PEER,
    QUIT,
    READ,
    READ_OFTEN,
    REQUEST,
    STEP,
    Endpoint,
)
from coarse.protocol.clock import Clock
from coarse.protocol.dtypes import DType, Op
from coarse.storage.reduce import reduce

_REPEATS = 5
_BLOCK_NUMEL = 64 * 1024
_BETA1, _BETA2, _EPSILON, _RATE = 0.9, 0.999, 1e-8, 1e-3


def main(arguments: list[str]) -> None:
    """Serve the other process until it says to end, or is gone."""
    control_fd, data_fd, nbytes = (int(text) for text in arguments[:3])
    end = Endpoint(PEER, control_fd, data_fd, nbytes, arguments[3])
    while True:
        for _, frame in end.mailbox.frames():
            what, first, second = REQUEST.unpack(frame)
            if what == QUIT:
                return
            end.tell(ANSWER.pack(_answer(end, what, first, second)))
        end.mailbox.sleep(1.0)


def _answer(end: Endpoint, what: int, first: int, second: int) -> float:
    if what == READ:
        part = slice(first, first + second)
        return _seconds(end.clock, lambda: np.copyto(end.own[part], end.region[part]))
    if what == READ_OFTEN:
        return _seconds(end.clock, lambda: _read_often(end, first, second))
    if what == ADD:
        return add_bytes_per_s(end.own, end.clock)
    if what == STEP:
        return step_bytes_per_s(len(end.own) // 8, end.clock)
    if what == MULTIPLY:
        return multiply_flops_per_s(first, end.clock)
    return 0.0  # a ping


def _read_often(end: Endpoint, nbytes: int, count: int) -> None:
    for _ in range(count):
        part = end.next_range(nbytes)
        np.copyto(end.own[part], end.region[part])


def add_bytes_per_s(memory: np.ndarray, clock: Clock) -> float:
    """Bytes of a float32 tensor to which a sync core adds another, in a second; far larger than caches."""
    half = len(memory) // 8 * 4
    into, addend = (memory[begin : begin + half].view(np.float32) for begin in (0, half))
    into[:] = addend[:] = 1.0
    seconds = _best(clock, lambda: reduce([into, addend], [into], DType.FLOAT32, Op.SUM, 1))
    return half / seconds


def step_bytes_per_s(nbytes: int, clock: Clock) -> float:
    """Bytes of float32 parameters that Adam steps in a second, block by block."""
    numel = nbytes // 4
    values, gradients, first, second = (np.full(numel, 0.5, np.float32) for _ in range(4))

    def step() -> None:
        for begin in range(0, numel, _BLOCK_NUMEL):
            block = slice(begin, begin + _BLOCK_NUMEL)
            _adam(values[block], gradients[block], first[block], second[block])

    return nbytes / _best(clock, step)


def _adam(values: np.ndarray, gradients: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """One step in place, (n,) float32 each (Kingma and Ba 2015, algorithm 1, without the bias corrections)."""
    first *= np.float32(_BETA1)
    first += np.float32(1 - _BETA1) * gradients
    second *= np.float32(_BETA2)
    second += np.float32(1 - _BETA2) * gradients * gradients
    values -= np.float32(_RATE) * first / (np.sqrt(second) + np.float32(_EPSILON))


def multiply_flops_per_s(side: int, clock: Clock) -> float:
    """Floating-point operations per second of a float32 matrix product on one core."""
    left, right = (np.full((side, side), 0.5, np.float32) for _ in range(2))
    out = np.empty((side, side), np.float32)
    return 2.0 * side**3 / _best(clock, lambda: np.matmul(left, right, out=out))


def _best(clock: Clock, action: Callable[[], object]) -> float:
    """Seconds of the fastest of a few; the first only warms up."""
    action()
    return min(_seconds(clock, action) for _ in range(_REPEATS))


def _seconds(clock: Clock, action: Callable[[], object]) -> float:
    began_s = clock.now_s()
    action()
    return max(clock.now_s() - began_s, 1e-9)


if __name__ == "__main__":
    main(sys.argv[1:])
