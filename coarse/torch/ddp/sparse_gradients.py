"""Sparse gradients, of which each rank gathers all: what an embedding with `sparse=True` gives.

[Note: sparse gradients] Nobody says beforehand which gradients are sparse. So every parameter has a place in a bucket
at first. Where a sparse gradient comes instead, its place holds zeros, and a NaN behind the bucket's counts tells all
ranks. They then tell one another what each has of every parameter, gather what is sparse, and from then on these
parameters are in no bucket: their gradients travel by what is in them, and not by the size of the table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from coarse.errors import JoinedError
from coarse.parallel.data.roll_call import RollCall
from coarse.protocol.dtypes import Op
from coarse.session import current, is_initialized
from coarse.torch.collectives.process_sets import global_process_set, group_of

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.torch.collectives.group import Arriving

Named = Sequence[tuple[str, torch.Tensor]]
"""Parameters with their names, in one order on all ranks."""
Removable = torch.utils.hooks.RemovableHandle


@dataclass(eq=False)
class SparseSlot:
    """A parameter whose gradient is sparse, and in no bucket."""

    name: str
    parameter: torch.Tensor
    arrivals: int = 0
    """Backward passes that have given it a gradient since the last step."""
    is_summed: bool = False
    """Whether `.grad` is that of all ranks."""


class SparseGradients:
    """The sparse gradients of one optimizer; see [Note: sparse gradients]."""

    def __init__(self, prefix: str, op: Op) -> None:
        runtime = current()
        self.slots: list[SparseSlot] = []
        self._op = op
        self._num_ranks = runtime.placement.num_clients
        self._rank = runtime.client_index
        self._link = runtime.require_client().link
        self._key = f"{prefix}sparse"
        self._roll_call = RollCall(runtime, self._key)
        self._arriving: Arriving[list[torch.Tensor | None]] | None = None
        """The sums that are under way."""

    def add(self, named: Named) -> None:
        """More parameters are in no bucket any more; their gradients are those of all ranks now."""
        self.slots += [SparseSlot(name, parameter, is_summed=True) for name, parameter in named]

    def watch(self, slot: SparseSlot, on_gradient: Callable[[SparseSlot], None]) -> Iterator[Removable]:
        """Hooks of autograd; `on_gradient` hears of each gradient that has come."""

        def after(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            if gradient is not None and not gradient.is_sparse:  # it was added to a dense one
                parameter.grad = gradient.to_sparse(1)
            on_gradient(slot)

        yield slot.parameter.register_hook(lambda _: self._reopen(slot))
        yield slot.parameter.register_post_accumulate_grad_hook(after)

    def sum(self, others: Named) -> Named:
        """Let `.grad` of the slots' parameters be that of all ranks, and of those of `others` that some rank has as a
        sparse one; these are returned.

        After a StallError it may be called again, with the same parameters.

        Raises:
            JoinedError: a rank has joined.
            MismatchError: a gradient is sparse on some ranks and dense on others (on all ranks).
        """
        named = [(slot.name, slot.parameter) for slot in self.slots] + list(others)
        names, parameters = [name for name, _ in named], [parameter for _, parameter in named]
        self._require_all()
        if self._arriving is None:
            for slot in self.slots:
                self._reopen(slot)
            gradients = [parameter.grad for parameter in parameters]
            group = group_of(global_process_set)
            self._arriving = group.sum_those_that_are_sparse(gradients, parameters, names, self._key)
        try:
            sums = self._arriving.wait(self._link.stall_timeout_s)
        finally:
            if self._arriving.done():
                self._arriving = None
                self._roll_call.end()
        for parameter, total in zip(parameters, sums, strict=True):
            if total is not None:
                is_average = self._op is Op.AVERAGE
                parameter.grad = (total / self._num_ranks).coalesce() if is_average else total
        for slot in self.slots:
            slot.is_summed, slot.arrivals = True, 0
        return [one for one, total in zip(others, sums[len(self.slots) :], strict=True) if total is not None]

    def clear(self, *, set_to_none: bool) -> None:
        """What zero_grad means for the slots' parameters."""
        for slot in self.slots:
            gradient = slot.parameter.grad
            if gradient is not None:
                slot.parameter.grad = None if set_to_none else torch.zeros_like(gradient)
            slot.is_summed, slot.arrivals = False, 0

    def close(self) -> None:
        """Nothing will be summed any more."""
        if is_initialized():
            self._roll_call.close()

    def _reopen(self, slot: SparseSlot) -> None:
        """Make a gradient that is summed ready for one more; see [Note: a second gradient]."""
        gradient = slot.parameter.grad
        if slot.is_summed and self._op is Op.SUM and gradient is not None:
            slot.parameter.grad = gradient / self._num_ranks
        slot.is_summed = False

    def _require_all(self) -> None:
        self._roll_call.ask()
        if joined := self._roll_call.joined():
            self._roll_call.end()
            raise JoinedError(
                f"rank {self._rank}: sparse gradients such as those of {self._key!r} are gathered from all ranks, but "
                f"ranks {list(joined)} have called join(); let all ranks run as many steps, or make sparse gradients "
                "dense (sparse_as_dense=True)",
                ranks=joined,
            )
