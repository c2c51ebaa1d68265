"""Sparse gradients, of which each rank gathers all, as of an embedding with `sparse=True`.

[Note: sparse gradients] It is not known at first which gradients are sparse. So every parameter begins with a place in
a bucket. Where a sparse gradient comes instead, its place holds zeros, and a NaN behind the bucket's counts tells all
ranks. They then tell one another the kind of every parameter's gradient, gather the sparse ones, and from then on these
parameters are in no bucket: their gradients travel by their number of values, and not by the size of the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from coarse.errors import JoinedError, StallError
from coarse.protocol.dtypes import Op
from coarse.session import current, is_initialized
from coarse.torch.ddp.peers import Peers

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.torch.groups.group import Arriving

Named = Sequence[tuple[str, torch.Tensor]]
"""Parameters with their names, in one order on all ranks."""


@dataclass(eq=False)
class SparseSlot:
    """Parameter whose gradient is sparse, and in no bucket."""

    name: str
    parameter: torch.Tensor
    arrivals: int = 0
    """Number of backward passes that have given it a gradient since the last step."""
    is_summed: bool = False
    """True if `.grad` is that of all ranks."""


class SparseGradients:
    """Sparse gradients of one optimizer; see [Note: sparse gradients]."""

    def __init__(self, prefix: str, op: Op, peers: Peers) -> None:
        runtime = current()
        self.slots: list[SparseSlot] = []
        self._op = op
        self._peers = peers
        self._num_ranks = peers.size
        self._rank = runtime.client_index
        self._link = runtime.require_client().link
        self._key = f"{prefix}sparse"
        self._meeting = peers.meeting(self._key)
        self._arriving: Arriving[list[torch.Tensor | None]] | None = None
        """Sums that are under way."""

    @property
    def is_under_way(self) -> bool:
        """True if a sum has begun and its result was not taken."""
        return self._arriving is not None or self._meeting.is_open

    def add(self, named: Named) -> list[SparseSlot]:
        """Add parameters that are in no bucket any more; their gradients are those of all ranks now."""
        slots = [SparseSlot(name, parameter, is_summed=True) for name, parameter in named]
        self.slots += slots
        return slots

    def sum(self, others: Named) -> Named:
        """Let `.grad` of the slots' parameters be that of all ranks; return sparse ones of `others`.

        The gradients of parameters of `others` that some rank has as a sparse one become those of all ranks, too. After
        a StallError it may be called again, with the same parameters.

        Raises:
            JoinedError: a rank has joined.
            MismatchError: a gradient is sparse on some ranks and dense on others (on all ranks).
        """
        named = [(slot.name, slot.parameter) for slot in self.slots] + list(others)
        names, parameters = [name for name, _ in named], [parameter for _, parameter in named]
        self.meet()
        if self._arriving is None:
            for slot in self.slots:
                self.reopen(slot)
                self.keep_sparse(slot)
            self._arriving = self._peers.group().sum_those_that_are_sparse(
                [parameter.grad for parameter in parameters],
                parameters,
                names,
                self._key,
                divisor=self._num_ranks if self._op is Op.AVERAGE else 1,
            )
        try:
            sums = self._arriving.wait(self._link.stall_timeout_s)
        except StallError:
            raise
        except BaseException:
            self._end()
            raise
        self._end()
        for parameter, total in zip(parameters, sums, strict=True):
            if total is not None:
                parameter.grad = total
        for slot in self.slots:
            slot.is_summed, slot.arrivals = True, 0
        return [one for one, total in zip(others, sums[len(self.slots) :], strict=True) if total is not None]

    def clear(self, *, set_to_none: bool) -> None:
        """Zero the gradients of the slots' parameters, as zero_grad does."""
        for slot in self.slots:
            gradient = slot.parameter.grad
            if gradient is not None:
                slot.parameter.grad = None if set_to_none else torch.zeros_like(gradient)
            slot.is_summed, slot.arrivals = False, 0

    def close(self) -> None:
        """Close the synchronization point, as nothing will be summed any more."""
        if is_initialized():
            self._meeting.close()

    def reopen(self, slot: SparseSlot) -> None:
        """Make a gradient that is summed ready for one more; see [Note: a second gradient]."""
        gradient = slot.parameter.grad
        if slot.is_summed and self._op is Op.SUM and gradient is not None:
            slot.parameter.grad = gradient / self._num_ranks
        slot.is_summed = False

    def keep_sparse(self, slot: SparseSlot) -> None:
        """Make a gradient sparse again that was made dense, or added to a dense one."""
        gradient = slot.parameter.grad
        if gradient is not None and not gradient.is_sparse:
            slot.parameter.grad = gradient.to_sparse(1)

    def meet(self) -> None:
        """Return once all ranks have come to the same point; it may be called again until `part`.

        Raises:
            JoinedError: a rank has joined.
        """
        self._meeting.ask()
        if joined := self._meeting.joined():
            self._meeting.end()
            raise JoinedError(
                f"rank {self._rank}: sparse gradients such as those of {self._key!r} are gathered from all ranks, but "
                f"ranks {list(joined)} have called join(); let all ranks run as many steps, or make sparse gradients "
                "dense (sparse_as_dense=True)",
                ranks=joined,
            )

    def part(self) -> None:
        """End the synchronization of `meet`."""
        self._meeting.end()

    def _end(self) -> None:
        self._arriving = None
        self.part()
