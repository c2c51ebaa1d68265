"""Collectives of a group on tensors of the CPU, and of GPUs by way of pinned host memory.

[Note: gathers of GPUs] A shard goes to the host in a separate stream, after the work that torch's stream has under way,
and its gather begins once it is there. Gathered values go to the GPU in another stream; torch's stream waits for that
when the values are asked for. The thread that computes waits for neither. For a reduce-scatter it does: FSDP2 uses its
result at once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from coarse.collectives.conditions import Copied
from coarse.gpu.available import gpus
from coarse.gpu.interface import Event
from coarse.protocol.dtypes import Op
from coarse.session import current
from coarse.torch.arrivals import Arrival, arrival_of
from coarse.torch.on_gpu import goes_by_gpu, gpu_bytes_of, gpu_of, in_its_stream, is_on_gpu
from coarse.torch.tensors import wire_type_of

if TYPE_CHECKING:
    from coarse.collectives.group import WorkerGroup
    from coarse.collectives.node_memory import NodeBuffer
    from coarse.collectives.progress import Conditions, Pending


class Transfers:
    """Transfers of a unit; every call but `reduce` returns at once. Tensors are flat and contiguous.

    All members must state the same `must_match` for a transfer; see WorkerGroup.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group

    def gather(
        self, out: torch.Tensor, own: torch.Tensor, what: str, must_match: str, keep: NodeBuffer | None = None
    ) -> PendingWork:
        """Gather all workers' `own`, (n,), into `out`, (p*n,), and into the node's buffer."""
        arrival = arrival_of(out)
        values, after = arrival.values_of(own, self.group.rank * own.nbytes)
        pending = self.group.all_gather(arrival.array, values, keep=keep, what=what, must_match=must_match, after=after)
        return self._landed(pending, arrival, out, what)

    def read_part(self, out: torch.Tensor, kept: NodeBuffer, what: str, must_match: str) -> PendingWork:
        """Read this worker's part of the node's buffer, and gather the others' parts from them, into `out`.

        Nothing moves between nodes. `out` has as many bytes for each worker of the node.
        """
        arrival, members = arrival_of(out), self.group.node_ranks
        nbytes = out.nbytes // len(members)
        begin = members.index(self.group.rank) * nbytes
        self.group.count_node_read(what, nbytes)
        own = kept.array[begin : begin + nbytes]
        pending = self.group.gather_on_node(arrival.array, own, what=what, must_match=must_match, kept=kept)
        return self._landed(pending, arrival, out, what)

    def read(self, out: torch.Tensor, kept: NodeBuffer, what: str) -> PendingWork:
        """Read the node's buffer into `out`.

        Nothing moves between nodes, and to a GPU it goes from the buffer.
        """
        self.group.count_node_read(what, out.nbytes)
        if not goes_by_gpu(out):
            arrival = arrival_of(out)
            return PendingWork(self.group.read_node(arrival.array, kept, what=what), arrival.finish)
        copies, target, source = current().require_client().copies, gpu_bytes_of(out), kept.array[: out.nbytes]
        gpu, read = gpu_of(out), list[Event]()
        with in_its_stream(out):
            is_free = gpus().current_stream(gpu).record()

        def start(_: object) -> None:
            read.append(copies.fetch(target, source, is_free))

        def end() -> Conditions:
            yield Copied(read[0])

        def finish() -> None:
            with in_its_stream(out):
                gpus().current_stream(gpu).wait_for(read[0])

        pending = self.group.submit(start, what=what)
        self.group.submit(lambda _comm: end(), what=what)  # the next gather overwrites what is read
        return PendingWork(pending, finish)

    def gather_near(self, out: torch.Tensor, own: torch.Tensor, what: str, must_match: str) -> PendingWork:
        """Gather `own`, (n,), of the node's L workers into `out`, (L*n,) of the same bytes.

        Nothing moves between nodes.
        """
        arrival = arrival_of(out)
        values, after = arrival.values_of(own, self.group.node_ranks.index(self.group.rank) * own.nbytes)
        pending = self.group.gather_on_node(arrival.array, values, what=what, must_match=must_match, after=after)
        return self._landed(pending, arrival, out, what)

    def reduce(self, out: torch.Tensor, full: torch.Tensor, what: str, must_match: str) -> None:
        """Sum all workers' `full`, (p*n,), in this worker's place into `out`, (n,).

        It returns when the sum is there, or on a GPU will be there for torch's stream.
        """
        arrival, whole = arrival_of(out), arrival_of(full)
        values, after = whole.values_of(full, 0)
        wire = wire_type_of(full, what)
        sent = self.group.reduce_scatter(
            arrival.array, values, wire, Op.SUM, what=what, must_match=must_match, after=after
        )
        sent.wait()
        whole.give_back()
        arrival.start()
        arrival.finish()

    def _landed(self, pending: Pending, arrival: Arrival, out: torch.Tensor, what: str) -> PendingWork:
        """Return work that ends once `out` has the bytes."""

        def start(_: object) -> None:
            arrival.start()

        if is_on_gpu(out):
            pending = self.group.submit(start, what=f"{what}, to the accelerator")
        return PendingWork(pending, arrival.finish)


class PendingWork(dist.Work):
    """Job of the progress thread, as torch's Work."""

    def __init__(self, pending: Pending, finish: Callable[[], None] = lambda: None) -> None:
        """Wrap a job; `finish` runs once, in the thread that waits, after the job is done."""
        super().__init__()
        self.pending = pending
        self._finish: Callable[[], None] | None = finish

    def then(self, finish: Callable[[], None]) -> PendingWork:
        """Return this work, with more to be done at the end."""
        first = self._finish or (lambda: None)

        def both() -> None:
            first()
            finish()

        self._finish = both
        return self

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once the tensors may be used, or raise coarse's errors."""
        self.pending.wait(timeout.total_seconds() if timeout else None)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Return whether `wait` would return at once."""
        return self.pending.has_come() and self.pending.is_done()
