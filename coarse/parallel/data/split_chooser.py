"""Chooser of the members that sum each bucket of an optimizer, by measurements of its first steps.

All workers decide equally.

[Note: borders] A choice holds from one synchronisation of the optimizer to the next, never from a gradient's arrival.
All workers cross these borders together, so each follows the same plan by counting them; they average their
measurements through the devices, so that each decides from the same numbers. The average also says which workers took
part: while a worker has joined, nothing is measured and all buckets go to the devices, which count it as zero.
"""

import hashlib
from collections.abc import Generator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from coarse.errors import CapacityError, InFlightError, MismatchError
from coarse.parallel.data.pass_timer import PassTimer, RoundTimes
from coarse.parallel.data.reducer import DualSync, may_share
from coarse.parallel.data.ways import Wait, seconds_of_ways, sizes_up_to
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import URGENT, Descriptor
from coarse.strategy.builtin import name_of
from coarse.strategy.rounds import By, Round, first_to_devices
from coarse.strategy.strategy import Strategy, require_round

if TYPE_CHECKING:  # they start MPI, which only init() may, or are imported when there is something to decide
    from coarse.parallel.data.allreduce_stream import AllreduceStream
    from coarse.runtime import Runtime
    from coarse.simulation.live_split import MeasuredWays

_TIMED_ROUNDS = 3
_MOST_VALUES = 16
"""Most values that workers average at once, beside one for each bucket."""


class SplitChooser:
    """Chooser of one optimizer, which follows a plan; see [Note: borders]."""

    def __init__(
        self,
        runtime: "Runtime",
        stream: "AllreduceStream",
        prefix: str,
        gpu: int | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        """Make the timer; no plan has begun.

        `gpu` is the place of buckets, if they are not in device memory. `strategy` decides, by default the job's.
        """
        self._strategy = strategy or runtime.strategy
        link = runtime.require_client().link
        self.timer = PassTimer(link.job_clock, link.pace, link.point)
        self.dual_sync: DualSync | None = None
        self._runtime = runtime
        self._client = runtime.require_client()
        self._stream = stream
        self._prefix = prefix
        self._gpu = gpu
        self._buckets: Sequence[Descriptor] = ()
        self._epoch = self._client.protocol.epoch
        """Epoch of the routing tables that were in force when the plan began."""
        self._plan: Generator[Wait | Round, None, None] | None = None
        self._awaited: Wait | None = None
        self._num_borders = 0
        """Number of borders crossed since the plan began."""

    def restart(self) -> None:
        """Measure again, with all buckets on the devices until then: shared facts of all workers have changed."""
        self._plan = self._awaited = None
        self._num_borders = 0

    def close(self, num_buckets: int) -> None:
        """Give back the device memory that measuring keeps.

        All workers deregister the same name, used or not.
        """
        self._client.deregister(self._average_of(num_buckets).name)

    def next_round(self, buckets: Sequence[Descriptor]) -> Round:
        """Return the round that begins at this border.

        After a StallError it is called again, and goes on with the wait that failed.
        """
        if len(buckets) != len(self._buckets) or self._epoch != self._client.protocol.epoch:
            self._buckets = tuple(buckets)
            self._epoch = self._client.protocol.epoch
            self.restart()
        if self._plan is None:
            self._plan = self._planned()
        while True:
            step = next(self._plan) if self._awaited is None else self._go_on(self._plan, self._awaited)
            if isinstance(step, Round):
                self._num_borders += 1
                return step
            self._awaited = step

    def _go_on(self, plan: Generator[Wait | Round, None, None], awaited: Wait) -> Wait | Round:
        try:
            awaited()
        except CapacityError as error:
            self._awaited = None
            return plan.throw(error)
        self._awaited = None
        return next(plan)

    # --- the plan: waits to be waited for at a border, and each round that begins

    def _planned(self) -> Generator[Wait | Round, None, None]:
        runtime, everything = self._runtime, self._everything
        every = self._strategy.profile_every_steps
        is_shared = bool(self._buckets) and may_share(runtime, self._strategy)
        fixed = runtime.decisions.round_of(self._prefix, len(self._buckets)) if is_shared else None
        while fixed is not None:
            yield fixed
        profiled_at = 0
        while True:
            decided: Round | None = everything
            if is_shared:
                try:
                    decided = yield from self._decided()
                except CapacityError:  # of what is measured: gradients have their place
                    decided = everything
            if decided is None:
                continue
            runtime.decisions.note(self._prefix, decided)
            while every is None or self._num_borders < profiled_at + every:
                yield decided
            profiled_at = self._num_borders
            yield from self._profiled()

    @property
    def _everything(self) -> Round:
        """Round with all buckets on the devices."""
        return first_to_devices(len(self._buckets), len(self._buckets))

    def _decided(self) -> Generator[Wait | Round, None, Round | None]:
        """Measure and return the round to go on with; None if the workers had no numbers in common."""
        from coarse.simulation.live_split import MeasuredStep, MeasuredView  # not with coarse.torch: it takes time

        everything, strategy = self._everything, self._strategy
        mean = yield from self._mean(_values((yield from self._timed(everything))))
        if mean is None:
            return None
        forward_s, backward_s, step_s, *ready_s = mean
        step = MeasuredStep(forward_s=forward_s, backward_s=backward_s, step_s=step_s, ready_s=tuple(ready_s))
        ways = yield from self._measured()
        if ways is None:
            return None
        nbytes = [bucket.nbytes for bucket in self._buckets]
        view = MeasuredView(nbytes, step, ways, self._runtime.placement.num_clients, strategy.lag)
        chosen = kept = require_round(strategy, strategy.decide(view), len(nbytes))
        if not (yield from self._is_alike(chosen)):
            raise MismatchError(
                f"rank {self._runtime.client_index}: {type(strategy).__name__}.decide gives workers other rounds, here "
                f"{chosen}; let it depend on the view alone, and not on the rank, the clock or chance"
            )
        tried_s = None
        if strategy.tries and kept.by != everything.by:
            tried_s = yield from self._tried(kept)
            if tried_s is None or tried_s >= step.step_s:
                kept = everything
        self.dual_sync = DualSync(
            policy=name_of(strategy),
            num_buckets=len(nbytes),
            num_to_devices=kept.num_to_devices,
            nbytes=sum(nbytes),
            bytes_to_devices=sum(size for size, by in zip(nbytes, kept.by, strict=True) if by is By.DEVICES),
            step=step,
            ways=ways,
            simulated_s=view.iteration_s(chosen),
            simulated_all_s=view.iteration_s(everything),
            num_tried=None if tried_s is None else chosen.num_to_devices,
            tried_step_s=tried_s,
        )
        return kept

    def _is_alike(self, decided: Round) -> Generator[Wait | Round, None, bool]:
        """Return whether all workers have decided the same: numbers of it are equal if their variance is 0."""
        digest = int.from_bytes(hashlib.sha256(repr(decided).encode()).digest()[:5], "little")
        halves = [float(digest >> 20), float(digest & 0xFFFFF)]  # whose squares are exact in float64
        mean = yield from self._mean([value for half in halves for value in (half, half * half)])
        return mean is None or all(square == half * half for half, square in zip(mean[::2], mean[1::2], strict=True))

    def _measured(self) -> Generator[Wait | Round, None, "MeasuredWays | None"]:
        """Measure the two ways; None if the workers had no numbers in common."""
        from coarse.simulation.live_split import MeasuredWays

        largest = max(self._buckets, key=lambda bucket: bucket.nbytes)
        sizes = sizes_up_to(largest.nbytes)
        dtype, prefix = DType(largest.dtype), self._prefix
        found = yield from seconds_of_ways(self._client, self._stream, sizes, dtype, prefix, self._gpu)
        mean = yield from self._mean([seconds for way in found for seconds in way])
        if mean is None:
            return None
        devices, workers = mean[: len(sizes)], mean[len(sizes) :]
        return MeasuredWays(
            devices=tuple(zip(sizes, devices, strict=True)), workers=tuple(zip(sizes, workers, strict=True))
        )

    def _tried(self, tried: Round) -> Generator[Wait | Round, None, float | None]:
        """Return the seconds of a step by a round; None if the workers had no numbers in common."""
        yield tried  # the first one isn't counted
        mean = yield from self._mean(_values((yield from self._timed(tried))))
        return None if mean is None else mean[2]

    def _timed(self, timed: Round) -> Generator[Wait | Round, None, list[RoundTimes | None]]:
        """Time the next rounds, all of one kind."""
        rounds = []
        for _ in range(_TIMED_ROUNDS):
            self.timer.begin_round()
            yield timed
            rounds.append(self.timer.end_round(len(self._buckets)))
        return rounds

    def _mean(self, values: Sequence[float] | None) -> Generator[Wait | Round, None, list[float] | None]:
        """Return the mean of the workers' values.

        It is None, on all of them, if one has joined or has none.
        """
        given = [] if values is None else values
        descriptor = self._average_of(len(self._buckets))
        vector = self._client.host_array(descriptor)
        vector[:] = 0.0
        vector[: len(given)] = given
        vector[-1] = values is not None
        yield self._client.push_pull(descriptor, vector, vector).wait
        self._client.counters.pop(descriptor.name, None)  # it is no gradient
        num_workers = self._runtime.placement.num_clients
        return [total / num_workers for total in vector[: len(given)].tolist()] if vector[-1] == num_workers else None

    def _average_of(self, num_buckets: int) -> Descriptor:
        """Return the descriptor of an average: so many values at most, and how many workers have some."""
        shape = (num_buckets + _MOST_VALUES,)
        return Descriptor(f"{self._prefix}dual/{shape[0]}", int(DType.FLOAT64), int(Op.SUM), shape, URGENT)

    def _profiled(self) -> Generator[Wait | Round, None, None]:
        """Measure new routes, if no worker has joined or has a result to take."""
        try:
            self._client.require_quiet()
            quiet: list[float] | None = []
        except InFlightError:
            quiet = None
        if (yield from self._mean(quiet)) is not None:
            yield self._runtime.profile
            self._epoch = self._client.protocol.epoch


def _values(rounds: Sequence[RoundTimes | None]) -> list[float] | None:
    """Return forward, backward, step and each bucket's time, the median over rounds.

    It is None if one wasn't seen whole.
    """
    seen = [times for times in rounds if times is not None]
    if len(seen) < len(rounds):
        return None
    columns = zip(*((t.forward_s, t.backward_s, t.step_s, *t.ready_s) for t in seen), strict=True)
    return [median(column) for column in columns]

