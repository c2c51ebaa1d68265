"""Times at which buckets are pushed and taken: hooks of autograd in, calls of a reducer out."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import torch
from torch.autograd.graph import get_gradient_edge

from coarse.errors import CoarseError, InFlightError, JoinedError, MismatchError
from coarse.parallel.data.flight import BucketPhase, reopened
from coarse.parallel.data.reducer import Reducer
from coarse.protocol.dtypes import Op
from coarse.torch.ddp.buckets import Bucket
from coarse.torch.ddp.sparse_gradients import Named, SparseGradients, SparseSlot
from coarse.torch.on_gpu import gpu_of

_ON_HOST = nullcontext()
"""Context of work with buckets that are on no GPU, which have no streams."""


class GradientExchange:
    """Buckets of one optimizer, each of which is pushed as soon as backward has filled it.

    [Note: a second gradient] Autograd may have another gradient for a parameter whose bucket was
    pushed already: a second loss, a module that reentrant checkpointing runs twice, accumulation
    over steps. A hook then waits for the result before autograd adds to it, and `synchronize`
    pushes the bucket once more. That is right since the result is equal on all ranks: the average
    of (avg(g1) + g2) is avg(g1) + avg(g2); for sums, it is first divided by the number of ranks.
    All ranks must run as many backward passes; where one ran more, it waits for the others' pushes
    until StallError names them.

    [Note: a hook before] A hook of the parameter itself would run for `torch.autograd.grad` as well,
    which adds to no gradient. So the one that runs before is a hook of autograd's node that adds.
    """

    def __init__(
        self,
        reducer: Reducer,
        *,
        op: Op,
        rank: int,
        num_ranks: int,
        num_passes: int,
        sparse: SparseGradients | None = None,
        take_out: Callable[[], None] | None = None,
        sparse_as_dense: bool = False,
        place: int | None = None,
    ) -> None:
        """Start without buckets.

        `place` is this worker's among the `num_ranks` whose gradients are combined; it is `rank` where they are all.
        `sparse` gathers sparse gradients; without it they are refused, or made dense.

        Once a step has ended in which parameters in buckets turned out to be `newly_sparse`, `take_out` is to replace
        the buckets; after a StallError it is called again.
        """
        self._reducer = reducer
        self._rounds = reducer.rounds
        self._timer = reducer.timer
        self._op = op
        self._rank = rank
        self._place = rank if place is None else place
        self._num_ranks = num_ranks
        self._num_passes = num_passes
        self._sparse = sparse
        self._slots: list[SparseSlot] = [] if sparse is None else sparse.slots
        """Parameters that are in no bucket; the same list as that of `sparse`."""
        self._take_out = take_out
        self._sparse_as_dense = sparse_as_dense
        self._buckets: list[Bucket] = []
        self._by_gpu: dict[int, Bucket] = {}
        """One bucket on each GPU."""
        self._removables: list[torch.utils.hooks.RemovableHandle] = []
        self._accumulators: list[torch.autograd.graph.Node] = []
        """Autograd's nodes that add to gradients, which have no other reference between passes."""
        self._warned: set[str] = set()
        self._disturbed: list[str] = []
        """One name of each bucket whose gradients were changed or replaced while devices added them."""
        self._is_silent = False
        self.has_arrivals = False
        """True if all gradients of some parameter have come since the last synchronisation."""
        self.is_synchronised = False
        self.last_absent: dict[str, int] = {}
        self.newly_sparse: Named = ()
        """Parameters in buckets whose gradients turned out to be sparse; `replace` takes them out."""
        self._places: dict[torch.Tensor, tuple[Bucket, int] | SparseSlot] = {}
        """Parameter -> its bucket and slot there, or its place among the sparse ones."""
        self._has_found_sparse = False
        """True if some rank has a sparse gradient of a parameter that is in a bucket."""
        self._has_summed_sparse = False
        """True if the sparse gradients of the step that ends are those of all ranks."""
        self._has_ended = False
        """True if all of a step is done but the work of `_all_landed`."""
        self._refused: CoarseError | None = None
        """Error because of which the sparse gradients of the step that ends were not summed, equal on all ranks."""

    def add(self, buckets: Sequence[Bucket]) -> None:
        """Watch the gradients of more buckets, whose indices follow those of the earlier ones."""
        for bucket in buckets:
            self._buckets.append(bucket)
            if bucket.is_on_gpu:
                self._by_gpu[gpu_of(bucket.flat)] = bucket
            for slot, parameter in enumerate(bucket.parameters):
                if parameter not in self._places:
                    accumulator = get_gradient_edge(parameter).node
                    self._accumulators.append(accumulator)
                    self._removables.append(accumulator.register_prehook(partial(self._before, parameter)))
                    self._removables.append(parameter.register_post_accumulate_grad_hook(self._after))
                self._places[parameter] = bucket, slot

    def drop_buckets(self) -> None:
        """Wait for gradients under way, and give the buckets' memory back; `.grad` keeps its values.

        After a StallError it may be called again.
        """
        if self._rounds is not None:
            with self._in_streams() if self._by_gpu else _ON_HOST:
                self._rounds.all_started()
        for bucket in self._buckets:
            if bucket.phase is BucketPhase.IN_FLIGHT:
                self._finish(bucket)
            bucket.release()
        self._reducer.drop()
        self._buckets, self._by_gpu = [], {}

    def replace(self, buckets: Sequence[Bucket]) -> None:
        """Replace the buckets by those of all parameters but the `newly_sparse` ones.

        It is called after a step, and after `drop_buckets`.
        """
        assert self._sparse is not None
        for bucket in buckets:
            bucket.take_over()
        self.add(buckets)
        for slot in self._sparse.add(self.newly_sparse):
            self._places[slot.parameter] = slot
        self.newly_sparse = ()

    def close(self) -> None:
        """Stop watching, and drop the buckets as `drop_buckets` does."""
        for removable in self._removables:
            removable.remove()
        self._removables.clear()
        self._accumulators.clear()
        self.drop_buckets()
        self._reducer.close()
        if self._sparse is not None:
            self._sparse.close()

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Let gradients accumulate on this rank alone, uncounted, within the context."""
        was_silent, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = was_silent

    def synchronize(self) -> None:
        """Push the buckets that were not pushed, wait for all, and note the gradients that ranks lacked.

        After a StallError it may be called again: no bucket is pushed twice by that.
        """
        if not self._has_ended:
            self.start_all()
            for bucket in self._buckets:
                if bucket.phase is BucketPhase.IN_FLIGHT:
                    self._finish(bucket)
            if self._sparse is not None and (self._has_found_sparse or self._slots):
                self._sum_sparse(self._sparse)
            if self._rounds is not None and self._buckets:
                self._rounds.begin_round()
            for bucket in self._buckets:
                self._end(bucket)
            self._has_summed_sparse, self._has_ended = False, True
        self._all_landed()

    def start_all(self) -> None:
        """Push the buckets that were not pushed, and wait for nothing."""
        has_landed = False  # before a wait that stalled
        for bucket in self._buckets:
            has_landed |= bucket.phase is BucketPhase.LANDED
            if bucket.phase in (BucketPhase.FILLING, BucketPhase.SUMMED):
                self._start(bucket)
        if not has_landed:
            self.last_absent = {}
        for bucket in self._buckets:
            if bucket.phase is BucketPhase.LATE:
                self._start(bucket)
        if self._rounds is not None:
            with self._in_streams() if self._by_gpu else _ON_HOST:
                self._rounds.all_started()

    def land(self, bucket: Bucket, *, is_last: bool) -> None:
        """Wait for a bucket that `start_all` has pushed; `is_last`: no other is to be waited for."""
        if bucket.phase is BucketPhase.IN_FLIGHT:
            self._finish(bucket)
        if is_last and self._rounds is not None:
            self._rounds.begin_round()
        self._end(bucket)
        if is_last:
            self._all_landed()

    def clear_landed(self, bucket: Bucket, *, set_to_none: bool) -> None:
        """Zero the gradients of a bucket that has landed."""
        bucket.clear(set_to_none=set_to_none)
        bucket.move(BucketPhase.FILLING)
        bucket.begin_step()

    @property
    def buckets(self) -> Sequence[Bucket]:
        """All buckets, by index."""
        return self._buckets

    def _sum_sparse(self, sparse: SparseGradients) -> None:
        """Gather sparse gradients, on all ranks where one has any; see [Note: sparse gradients]."""
        if self._has_summed_sparse:
            return
        buckets = self._buckets if self._has_found_sparse else ()
        named = [pair for bucket in buckets for pair in zip(bucket.plan.names, bucket.parameters, strict=True)]
        try:
            self.newly_sparse = sparse.sum(named)
        except (JoinedError, MismatchError) as refused:  # the step is over for all ranks, which go on alike
            self._refused = refused
        self._has_summed_sparse, self._has_found_sparse = True, False

    def _end(self, bucket: Bucket) -> None:
        bucket.move(BucketPhase.SUMMED)
        bucket.begin_step()

    def _all_landed(self) -> None:
        self.has_arrivals = False
        if self.newly_sparse:
            assert self._take_out is not None
            self._take_out()
        self._has_ended = False
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused
        if self._disturbed:
            raise self._disturbance()
        self.is_synchronised = True
        if self.last_absent:
            self._report_absent()

    def clear(self, *, set_to_none: bool) -> None:
        """Zero all gradients; where some were pushed, first let all ranks take the results."""
        is_landing = self._any(BucketPhase.IN_FLIGHT) or self._any(BucketPhase.LANDED)
        is_gathering = self._has_ended or (self._sparse is not None and self._slots and self._sparse.is_under_way)
        if self.has_arrivals or is_landing or is_gathering:
            self.synchronize()
        for bucket in self._buckets:
            self.clear_landed(bucket, set_to_none=set_to_none)
        if self._sparse is not None and self._slots:
            self._sparse.clear(set_to_none=set_to_none)
        self.is_synchronised = False

    def set_num_passes(self, num_passes: int) -> None:
        """Set the number of backward passes of a step from now on.

        Raises:
            InFlightError: called within a step.
        """
        if any(any(bucket.arrivals) for bucket in self._buckets) or any(slot.arrivals for slot in self._slots):
            raise InFlightError(
                f"rank {self._rank}: the number of backward passes cannot change once gradients have come; call step() "
                "first"
            )
        self._num_passes = num_passes

    def require_landed(self) -> None:
        """Raise InFlightError where a device may still write to a gradient."""
        if self._any(BucketPhase.IN_FLIGHT):
            raise InFlightError(
                f"rank {self._rank}: step() came under skip_sync() while gradients are in flight; "
                "call synchronize() first"
            )

    def _any(self, phase: BucketPhase) -> bool:
        return any(bucket.phase is phase for bucket in self._buckets)

    # --- what autograd calls

    def _before(self, parameter: torch.Tensor, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Make way for the gradient that autograd is about to add to a parameter's; see [Note: a hook before]."""
        (gradient,) = gradients
        if gradient is None:  # some function has none for this parameter, and nothing will be added
            return
        if self._has_ended:  # but for buckets that are yet to be replaced
            self._all_landed()
        self._has_summed_sparse = False
        place = self._places[parameter]
        if isinstance(place, SparseSlot):
            assert self._sparse is not None
            self._sparse.reopen(place)
            return
        bucket, slot = place
        if gradient.layout is not torch.strided and not self._sparse_as_dense:
            if self._sparse is None or not gradient.is_sparse:
                raise TypeError(
                    f"rank {self._rank}: the gradient of {bucket.plan.names[slot]!r} is {gradient.layout}, and a dense "
                    "one was wanted; build its module with sparse=False, or give the optimizer sparse_as_dense"
                )
            bucket.make_way(slot)
        if bucket.phase >= BucketPhase.IN_FLIGHT:
            self._reopen(bucket)

    def _after(self, parameter: torch.Tensor) -> None:
        """Handle a gradient that autograd has added to a parameter's."""
        place = self._places[parameter]
        if isinstance(place, SparseSlot):
            self._on_sparse_gradient(place)
            return
        bucket, slot = place
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided and self._sparse_as_dense:
            gradient = parameter.grad = gradient.to_dense()
        is_dense = gradient is None or gradient.layout is torch.strided
        if is_dense and bucket.shows_results and gradient is not bucket.views[slot] and gradient is not None:
            bucket.put(slot, gradient)
        bucket.has_gradient[slot], bucket.came_sparse[slot] = is_dense, not is_dense
        if self._is_silent:
            return
        timer = self._timer
        if timer is not None and timer.is_running:
            timer.on_gradient()
        self.is_synchronised = False
        bucket.arrivals[slot] += 1
        if bucket.arrivals[slot] == self._num_passes:
            self.has_arrivals = True
            bucket.num_awaited -= 1
            if not bucket.num_awaited and bucket.phase is not BucketPhase.LATE:
                self._start(bucket)

    def _on_sparse_gradient(self, slot: SparseSlot) -> None:
        """Handle a sparse gradient that is in no bucket."""
        assert self._sparse is not None
        self._sparse.keep_sparse(slot)
        if self._is_silent:
            return
        if self._timer is not None and self._timer.is_running:
            self._timer.on_gradient()
        self.is_synchronised = False
        slot.arrivals += 1
        self.has_arrivals |= slot.arrivals == self._num_passes

    def _reopen(self, bucket: Bucket) -> None:
        """Make a pushed bucket ready for one more gradient (see [Note: a second gradient])."""
        if bucket.phase is BucketPhase.IN_FLIGHT and self._reducer.cancel(bucket.plan.index):
            bucket.move(BucketPhase.FILLING)
            bucket.open(None)
            if bucket.was_disturbed:
                self._disturbed.append(bucket.plan.names[0])
        else:
            if bucket.phase is BucketPhase.IN_FLIGHT:
                self._finish(bucket)
            bucket.move(reopened(bucket.phase))
            if self._op is Op.SUM:
                bucket.scale(1.0 / self._num_ranks)
        if self._disturbed:
            raise self._disturbance()

    def _start(self, bucket: Bucket) -> None:
        if bucket.phase is BucketPhase.SUMMED:
            self._reopen(bucket)
        if self._timer is not None and self._timer.is_running:
            self._timer.on_bucket(bucket.plan.index)
        bucket.seal(self._place)
        with self._in_streams() if self._by_gpu else _ON_HOST:
            bucket.flight = self._reducer.start(bucket.plan.index)
        bucket.move(BucketPhase.IN_FLIGHT)

    @contextmanager
    def _in_streams(self) -> Iterator[None]:
        """Have this thread work with the memory of buckets on GPUs in torch's streams, within the context.

        One bucket may start others.
        """
        with ExitStack() as entered:
            for bucket in self._by_gpu.values():
                entered.enter_context(bucket.in_its_stream())
            yield

    def _finish(self, bucket: Bucket) -> None:
        assert bucket.flight is not None
        with bucket.in_its_stream() if bucket.is_on_gpu else _ON_HOST:
            bucket.flight.wait()
        bucket.move(BucketPhase.LANDED)
        self.last_absent.update(bucket.open(self._num_ranks))
        self._has_found_sparse |= bucket.has_sparse
        if bucket.was_disturbed:
            self._disturbed.append(bucket.plan.names[0])

    def _disturbance(self) -> InFlightError:
        """Return the error of gradients that were disturbed; it is reported once."""
        disturbed, self._disturbed = self._disturbed, []
        return InFlightError(
            f"rank {self._rank}: gradients, such as that of {disturbed[0]!r}, were changed or replaced "
            "while they were in flight; call optimizer.synchronize() before clipping or unscaling them, and "
            "step() within optimizer.skip_sync()"
        )

    def _report_absent(self) -> None:
        new = [name for name in self.last_absent if name not in self._warned]
        if new:
            self._warned.update(new)
            said = ", ".join(f"{name!r} ({self.last_absent[name]})" for name in new)
            warnings.warn(
                f"rank {self._rank}: some ranks had no gradient for {said} (how many) and counted as "
                "zero; if that is not a branch of the model, see which ranks skip these layers",
                stacklevel=4,
            )
