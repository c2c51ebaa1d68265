"""Operations measured in turns, round by round, so that whatever disturbs the machine disturbs all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from benchmarks.comparison import Measurement
from benchmarks.cpu_clocks import cpu_s_of
from benchmarks.start_line import StartLine
from benchmarks.workloads import Effort
from benchmarks.world import World

_NUM_WARM_UP_ROUNDS = 2
_ELAPSED, _CPU = 0, 1


@dataclass(frozen=True)
class Turn:
    """What one contender does in each round."""

    contender: str
    get_ready: Callable[[], None]
    """Not timed."""
    operate: Callable[[], None]


class Track:
    """Where contenders run: this worker's place in the world, and the line at which all workers start."""

    def __init__(self, world: World, start_line: StartLine) -> None:
        assert world.workers is not None, "devices are not measured, they serve"
        self._workers: MPI.Intracomm = world.workers
        self._device_process_ids = world.device_process_ids if world.rank == 0 else ()
        self._start_line = start_line

    @property
    def worker(self) -> int:
        """This worker's number."""
        return int(self._workers.rank)

    @property
    def num_workers(self) -> int:
        """How many workers run."""
        return int(self._workers.size)

    def wait(self) -> None:
        """Return once all workers have come; sleeps meanwhile."""
        self._start_line.wait()

    def total(self, number: int) -> int:
        """The sum over workers."""
        numbers = np.array([number])
        self._workers.Allreduce(MPI.IN_PLACE, numbers, MPI.SUM)
        return int(numbers[0])

    def measure(self, turns: Sequence[Turn], effort: Effort) -> list[Measurement]:
        """Every turn of every round; all workers get the same result."""
        samples = np.zeros((effort.num_rounds, len(turns), 2))
        for round_number in range(-_NUM_WARM_UP_ROUNDS, effort.num_rounds):
            for index, turn in enumerate(turns):
                sample = self._take(turn, effort.num_operations)
                if round_number >= 0:
                    samples[round_number, index] = sample
        return self._agree(samples, [turn.contender for turn in turns])

    def _take(self, turn: Turn, num_operations: int) -> tuple[float, float]:
        """Seconds and CPU seconds of one operation on this worker; worker 0 adds the devices' CPU."""
        turn.get_ready()
        self._start_line.start_together()
        devices_cpu_s = cpu_s_of(self._device_process_ids)
        cpu_s = time.process_time()
        start_s = time.perf_counter()
        for _ in range(num_operations):
            turn.operate()
        elapsed_s = time.perf_counter() - start_s
        cpu_s = time.process_time() - cpu_s
        self._start_line.wait()
        devices_cpu_s = cpu_s_of(self._device_process_ids) - devices_cpu_s
        return elapsed_s / num_operations, (cpu_s + devices_cpu_s) / num_operations

    def _agree(self, samples: np.ndarray, names: list[str]) -> list[Measurement]:
        """Samples are (num_rounds, num_turns, 2) float64: keep the slowest worker's time and everybody's CPU."""
        elapsed_s, cpu_s = samples[:, :, _ELAPSED].copy(), samples[:, :, _CPU].copy()
        self._workers.Allreduce(MPI.IN_PLACE, elapsed_s, MPI.MAX)
        self._workers.Allreduce(MPI.IN_PLACE, cpu_s, MPI.SUM)
        return [Measurement(name, elapsed_s[:, index], cpu_s[:, index]) for index, name in enumerate(names)]
