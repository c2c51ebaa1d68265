# Pure: no MPI, threads, clock or environment.
"""Simulated iteration of sharded training: every unit is gathered, computed and freed in both passes.

All GPUs do the same at the same time, so one timeline stands for all, and collectives are flows over all links.

[Note: in flight] A unit is in flight from the start of its gather until its computation has ended. At most so many are:
1 gathers when it is needed, 2 gathers the next unit while one computes (FSDP's rate limiter, section 3.4.2 of its
paper). Collectives of all GPUs run one after the other in the order in which they are asked for, as on NCCL's stream,
so a gather that is asked for after a reduce-scatter waits for it (3.3.2): that is what backward's prefetch avoids.

[Note: asking] The papers' systems ask for the next unit as soon as the limit lets them. FSDP2's hooks ask for it when
the one before has come and begins to compute, and for the first of a pass when the pass before has ended: so does its
schedule.
"""

from collections import deque
from functools import partial

from coarse.protocol import override
from coarse.simulation.compute import Compute
from coarse.simulation.engine import Action, Engine
from coarse.simulation.sharded.chains import Chain, Stream
from coarse.simulation.sharded.job import ShardedJob, UnitPass, slots_of
from coarse.simulation.sharded.modes import Schedule, UnitTransfers
from coarse.simulation.sharded.queues import PhaseQueue, Submitted, run_chain
from coarse.simulation.sharded.report import Moved, ShardedReport
from coarse.simulation.sharded.routes import crossing_nbytes
from coarse.simulation.sharded.units import Unit

_COLLECTIVE = (Stream.BETWEEN, Stream.WITHIN)
"""Streams whose phases run on the processors that compute; copies from and to the host do not."""


class _Queue(PhaseQueue):
    """Queue of a stream's phases, which are reported.

    They share the processor with compute if they are collectives.
    """

    def __init__(self, stream: Stream, engine: Engine, compute: Compute, report: ShardedReport) -> None:
        super().__init__(engine, stream)
        self._stream = stream
        self._compute = compute if stream in _COLLECTIVE else None
        self._report = report

    @override
    def on_begun(self) -> None:
        if self._compute is not None:
            self._compute.on_ring_begun()

    @override
    def on_ended(self, submitted: Submitted, begin_s: float) -> None:
        if self._compute is not None:
            self._compute.on_ring_ended()
        self._report.moved.append(
            Moved(
                stream=self._stream, what=submitted.what, unit=submitted.unit, begin_s=begin_s,
                end_s=self._engine.now_s, crossing_nbytes=crossing_nbytes(submitted.phase),
            )
        )  # fmt: skip


class _Iteration:
    """Iteration of a job, unit by unit; see [Note: in flight]."""

    def __init__(self, job: ShardedJob) -> None:
        self._job = job
        self._engine = Engine(job.links)
        self._moves = UnitTransfers(job.policy, job.routes)
        self._slots = tuple(slots_of(job))
        self.report = ShardedReport()
        self._compute_times = Compute(self._engine, job.ring_slow_down)
        self._queues: dict[Stream, PhaseQueue] = {
            stream: _Queue(stream, self._engine, self._compute_times, self.report) for stream in Stream
        }
        self._num_asked = 0
        self._num_computed = 0
        self._is_computing = False
        self._left_to_gather: dict[int, int] = {}
        """Chains that have not ended, by slot."""
        self._is_kept = dict.fromkeys((unit.name for unit in job.units), False)
        """True if forward has left the copy that serves backward, by unit."""
        self._after_store: dict[str, list[Action]] = {}
        self._bucket_nbytes = 0
        self._num_reducing = 0
        self._to_reduce: deque[Unit] = deque()

    def run(self) -> ShardedReport:
        """Simulate from the first gather until nothing is left to do, and return the report."""
        self._engine.set_rates(self._job.changes)
        self._ask()
        self._engine.run()
        report = self.report
        report.iteration_s = max(report.backward_end_s, *(one.end_s for one in report.moved), 0.0)
        report.compute_s = sum(slot.compute_s for slot in self._slots) + self._compute_times.lost_s
        report.link_nbytes = tuple(self._engine.bytes_moved(link) for link in range(len(self._job.links)))
        return report

    def _ask(self) -> None:
        """Gather the next units, as far as the limit lets them."""
        slots = self._slots
        while self._num_asked < len(slots) and not self._is_reduction_awaited:
            slot = slots[self._num_asked]
            if not self._may_ask(slot):
                return
            number, self._num_asked = self._num_asked, self._num_asked + 1
            self.report.most_in_flight = max(self.report.most_in_flight, self._num_asked - self._num_computed)
            self._gather(number, slot)

    def _may_ask(self, slot: UnitPass) -> bool:
        """Return whether the limit and the schedule let the next slot be gathered; see [Note: asking]."""
        job = self._job
        limit = job.in_flight_limit if job.backward_prefetch or not slot.is_backward else 1
        if self._num_asked - self._num_computed >= limit:
            return False
        if job.schedule is not Schedule.FSDP2 or self._num_asked == self._num_computed:
            return True
        is_first_of_pass = slot.is_backward is not self._slots[self._num_asked - 1].is_backward
        num_begun = self._num_computed + self._is_computing
        return not is_first_of_pass and self._num_asked < num_begun + limit - 1

    def _gather(self, number: int, slot: UnitPass) -> None:
        what = "backward gather" if slot.is_backward else "forward gather"
        begins: list[tuple[Unit, Action]] = []
        for unit in slot.gathers:
            if slot.is_backward:
                chains = self._moves.backward_gather(unit, is_kept=slot.is_kept)
            else:
                chains = self._moves.forward_gather(unit, is_again=slot.microbatch > 0)
            gathered = partial(self._gathered, number)
            begins += [(unit, partial(self._chain, chain, what, unit.name, gathered)) for chain in chains]
        self._left_to_gather[number] = 1 + len(begins)
        for unit, begin in begins:
            if slot.is_backward and self._moves.keeps and not self._is_kept[unit.name]:
                self._after_store.setdefault(unit.name, []).append(begin)
            else:
                begin()
        self._gathered(number)

    def _gathered(self, number: int) -> None:
        self._left_to_gather[number] -= 1
        self._compute()

    def _compute(self) -> None:
        """Begin the next slot if all of it is there."""
        number = self._num_computed
        if self._is_computing or self._left_to_gather.get(number) != 0 or self._is_reduction_awaited:
            return
        self._is_computing = True
        slot = self._slots[number]
        begin_s = self._engine.now_s
        self._ask()
        self._compute_times.begin([(begin_s + slot.compute_s, partial(self._computed, slot, begin_s))])

    def _computed(self, slot: UnitPass, begin_s: float) -> None:
        """Free the unit, leave its moves to the streams, and go on."""
        self.report.computed.append((slot, begin_s, self._engine.now_s))
        self._is_computing = False
        self._num_computed += 1
        if slot.is_backward:
            self._to_reduce += slot.reduces
            self._reduce_next()
            self.report.backward_end_s = self._engine.now_s
        else:
            self._store(slot)
            self.report.forward_end_s = self._engine.now_s
        self._ask()
        self._compute()

    @property
    def _is_reduction_awaited(self) -> bool:
        """True if the thread that computes is within a reduce-scatter."""
        return self._job.schedule is Schedule.FSDP2 and self._num_reducing > 0

    def _store(self, slot: UnitPass) -> None:
        for unit in slot.gathers:
            is_kept = slot.is_kept and unit is slot.unit
            chain = self._moves.stored(unit, is_kept=is_kept, is_again=slot.microbatch > 0)
            self._chain(chain, "store", unit.name, partial(self._stored, unit.name))

    def _stored(self, name: str) -> None:
        self._is_kept[name] = True
        for begin in self._after_store.pop(name, ()):
            begin()

    def _reduce_next(self) -> None:
        """Reduce the gradients that backward has left, one unit after the other where each is waited for."""
        while self._to_reduce and not self._is_reduction_awaited:
            self._reduce(self._to_reduce.popleft())

    def _reduce(self, unit: Unit) -> None:
        """Reduce the bucket if it is full, or if no more will come."""
        self._bucket_nbytes += unit.trainable_nbytes
        is_last = self._is_between_passes and not self._to_reduce
        if is_last or self._bucket_nbytes >= self._job.bucket_nbytes:
            chain, self._bucket_nbytes = self._moves.reduced(self._bucket_nbytes), 0
            self._num_reducing += 1
            self._chain(chain, "reduce-scatter", unit.name, self._reduced)

    @property
    def _is_between_passes(self) -> bool:
        """True if a backward has ended and no forward has begun."""
        count = self._num_computed
        return count == len(self._slots) or not self._slots[count].is_backward

    def _reduced(self) -> None:
        """Go on after a reduction; after the last, step, and gather the changed parameters that stay gathered."""
        self._num_reducing -= 1
        self._reduce_next()
        self._ask()
        self._compute()
        if self._num_reducing == 0 and self._num_computed == len(self._slots):
            chain = self._moves.after_step(self._job.units)
            self._chain(chain, "gather after the step", "all", lambda: None)

    def _chain(self, chain: Chain, what: str, unit: str, action: Action) -> None:
        run_chain(self._queues, chain, what, unit, action)


def simulate_sharded(job: ShardedJob) -> ShardedReport:
    """Simulate one iteration, from when all GPUs begin until all gradients are reduced; deterministic."""
    return _Iteration(job).run()
