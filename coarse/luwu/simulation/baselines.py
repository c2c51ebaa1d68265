# Pure: no MPI, threads, clock or environment.
"""Steps of LuWu's baselines in virtual time: unit by unit over a worker's GPU, links and disks.

All workers do the same, so one stands for them. Without prefetch a unit's way to the GPU begins when the unit before
has been computed and its input or gradients have left, as LuWu's figure 5a is written. With it the next unit comes
during the compute, and a share of each collective takes the GPU's time (`interference`). The moves are in moves.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from coarse.luwu.simulation.cluster import PagedTraining
from coarse.luwu.simulation.moves import Baseline, BaselineCluster, Stage, moves_of
from coarse.simulation.engine import Engine


@dataclass(frozen=True)
class BaselineStep:
    """Step of a baseline (kind: simulated)."""

    step_s: float
    busy_s: dict[str, float]
    """Busy seconds by resource."""
    sent_bytes: float
    """Bytes that a worker sends."""
    received_bytes: float
    ends_s: dict[str, float]
    """Seconds at which forward, backward and the optimizer ended."""


class _Iteration:
    """One step of one worker."""

    def __init__(self, mode: Baseline, cluster: BaselineCluster, training: PagedTraining) -> None:
        self._cluster, self._training = cluster, training
        self._moves = moves_of(mode, cluster, training)
        self._engine = Engine([])
        self._busy: dict[str, float] = {}
        self._sent = self._received = 0.0
        self._num_loaded = self._num_ready = self._num_computed = self._num_left = 0
        self._is_computing = False
        self._ends: dict[str, float] = {}
        blocks = training.num_blocks
        self._order = [(False, block) for block in range(blocks)] + [(True, block) for block in reversed(range(blocks))]

    def run(self) -> BaselineStep:
        """Run the step to its end."""
        self._load()
        self._engine.run()
        return BaselineStep(self._engine.now_s, dict(self._busy), self._sent, self._received, self._ends)

    # --- units

    def _load(self) -> None:
        """Bring the next unit to the GPU."""
        if self._num_loaded == len(self._order):
            return
        is_backward, _ = self._order[self._num_loaded]
        self._num_loaded += 1
        self._chain(self._moves.before_backward if is_backward else self._moves.before_forward, self._arrived)

    def _arrived(self) -> None:
        self._num_ready += 1
        self._compute()

    def _compute(self) -> None:
        """Compute the next unit, if it is there and the GPU is free."""
        if self._is_computing or self._num_computed == self._num_ready:
            return
        is_backward, _ = self._order[self._num_computed]
        self._is_computing = True
        if self._cluster.prefetch and self._num_loaded == self._num_computed + 1:
            self._load()
        took_s = self._moves.backward_s if is_backward else self._moves.forward_s
        self._work("gpu", took_s, partial(self._computed, is_backward=is_backward))

    def _computed(self, *, is_backward: bool) -> None:
        self._is_computing = False
        self._num_computed += 1
        if self._num_computed == self._training.num_blocks:
            self._ends["forward"] = self._engine.now_s
        way, then = (self._moves.after_backward, self._gone) if is_backward else (self._moves.after_forward, _go_on)
        if self._cluster.prefetch:
            self._chain(way, then)
            self._next()
        else:
            self._chain(way, partial(self._then_next, then))

    def _next(self) -> None:
        """Go on with the unit that is there, or, without prefetch, have it brought now."""
        if self._num_loaded == self._num_computed:
            self._load()
        self._compute()

    def _then_next(self, then: Callable[[], None]) -> None:
        then()
        self._next()

    def _gone(self) -> None:
        """Note that a unit's gradients have left; after the last ones begin the optimizer's moves."""
        self._num_left += 1
        if self._num_left == self._training.num_blocks:
            self._ends["backward"] = self._engine.now_s
            for _ in range(self._moves.num_step_parts):  # reads, updates and writes of parts overlap
                self._chain(self._moves.step_part, self._end)

    def _end(self) -> None:
        self._ends["optimizer"] = self._engine.now_s

    # --- time

    def _chain(self, way: Sequence[Stage], then: Callable[[], None]) -> None:
        """Make one move after the other, each on all of its resources at once."""
        if not way:
            then()
            return
        move, rest = way[0], way[1:]
        self._sent += move.sent_bytes
        self._received += move.received_bytes
        if move.takes_gpu_s:
            self._work("gpu", move.takes_gpu_s, _go_on)
        num_running = len(move.took_s)

        def ended() -> None:
            nonlocal num_running
            num_running -= 1
            if not num_running:
                self._chain(rest, then)

        for resource, took_s in move.took_s.items():
            self._work(resource, took_s, ended)

    def _work(self, resource: str, took_s: float, then: Callable[[], None]) -> None:
        self._busy[resource] = self._busy.get(resource, 0.0) + took_s
        self._engine.work(resource, took_s, then)


def _go_on() -> None:
    """Do nothing, as nothing waits for this end."""


def simulate_baseline(mode: Baseline, cluster: BaselineCluster, training: PagedTraining) -> BaselineStep:
    """Simulate one step."""
    return _Iteration(mode, cluster, training).run()
