"""Sharded unit: the sources of its bytes, its caches, and the two collectives that FSDP2 calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import nn

from coarse.errors import ConfigError
from coarse.parallel.sharded.memory_ledger import MemoryKind
from coarse.parallel.sharded.passes import Mark
from coarse.parallel.sharded.transfers import NodeReads, Phase
from coarse.parallel.sharded.unit_cache import UnitCache
from coarse.strategy.sharding import Gather, Keeps, Sharding, Source, Use, gathers, keeps_of, reuses_in_forward
from coarse.torch.fsdp.checksum import checksum
from coarse.torch.fsdp.fsdp2 import Fsdp2Unit, bound_to, gather_by_torch, is_in_backward
from coarse.torch.fsdp.quantised import QuantisationError, dequantise, quantise
from coarse.torch.fsdp.transfers import PendingWork, Transfers
from coarse.torch.on_gpu import empty_beside, empty_on

if TYPE_CHECKING:
    from coarse.collectives.group import WorkerGroup
    from coarse.collectives.node_memory import NodeBuffer
    from coarse.collectives.progress import Pending
    from coarse.torch.fsdp.account import DeviceAccount


class TransferListener(Protocol):
    """Listener that is told of a unit's transfers."""

    def now_s(self) -> float:
        """Return the seconds on its clock."""
        ...

    def on_gather(self, what: str, how: Gather, pending: Pending) -> None:
        """Note a gather that was submitted."""
        ...

    def on_reduced(self, what: str, submitted_s: float) -> None:
        """Note a reduce-scatter that has ended."""
        ...


class ShardedUnit:
    """Parameters that are gathered together, in one mode, by one group of workers."""

    def __init__(
        self,
        name: str,
        fsdp: Fsdp2Unit,
        group: WorkerGroup,
        sharding: Sharding,
        *,
        call: str,
        replicas: WorkerGroup | None = None,
        account: DeviceAccount | None = None,
        reads: NodeReads = NodeReads.PARTS,
    ) -> None:
        self._reads = reads
        self._given_name = name
        self.call = call
        """Call of `fully_shard` that it came from, named equally on all workers that took part in it."""
        self.identity = f"{name} of {call}"
        """Name that tells it from other units of its size: its call, then its name in the tree once that is known.
        Every transfer states it, so that workers that mean other units find out."""
        self.fsdp = fsdp
        self.sharding = sharding
        self.group = group
        is_narrowed = any(gather.bits == 8 for _, gather in gathers(sharding))
        self.quantisation = QuantisationError() if is_narrowed else None
        """Error of int8 gathers; None where gathers are exact."""
        self.recorder: TransferListener | None = None
        """Listener that is told of transfers, while they are recorded."""
        self._transfers = Transfers(group)
        self._replicas = replicas
        self._account = account
        self._cache = UnitCache(sharding)
        self._buffer: NodeBuffer | None = None
        self._secondary: torch.Tensor | None = None
        self._mark_outside: Mark | None = None
        """Mark of the shards when they were last gathered outside of any forward."""
        self._served_versions: tuple[int, ...] = ()
        """Versions of the shards whose values a forward would meet now."""
        fsdp.use(_AllGather(self), _ReduceScatter(self))

    @property
    def name(self) -> str:
        """Name in errors, counters and traces: a module's, from the root where that is known."""
        return self._given_name or self.fsdp.qualified_name or "root"

    # --- what is kept

    def take_buffer(self, nbytes: int) -> None:
        """Take a node buffer of `nbytes`; all members make the same call.

        Raises:
            CapacityError: on all of them, if there is no room.
        """
        self.release_buffer()
        self._buffer = self.group.node_buffer(
            f"the gathered parameters of {self.name}", nbytes, must_match=self.identity
        )

    def release_buffer(self) -> None:
        """Give the node buffer back; all members make the same call."""
        if self._buffer is not None:
            self._cache.on_changed()
            self._buffer.release()
            self._buffer = None

    @property
    def is_trainable(self) -> bool:
        """True if it has parameters that are trained."""
        return self.fsdp.trainable_nbytes() > 0

    @property
    def keeps(self) -> Keeps:
        """Part of it that the mode keeps."""
        return keeps_of(self.sharding, is_trainable=self.is_trainable)

    @property
    def is_clean(self) -> bool:
        """True if the kept values equal the parameters."""
        return self._cache.is_clean

    # --- changes

    def mark(self) -> Mark:
        """Return the mark of this worker's shards now.

        It has no checksum where nothing is kept that could be stale.
        """
        shards = self.fsdp.shards() if self.keeps is not Keeps.NOTHING or self.fsdp.is_gathered() else ()
        self._served_versions = self.fsdp.versions()
        return Mark(self._served_versions, checksum(shards))

    def require_current(self) -> None:
        """Return where this unit's forward meets the values that its shards have, or raise.

        Raises:
            ConfigError: shards were written to after the forward of the whole tree had begun, and the values that the
                unit's forward would meet were gathered before.
        """
        is_kept = self.is_clean and reuses_in_forward(self.sharding, is_trainable=self.is_trainable)
        if (is_kept or self.fsdp.is_gathered()) and self.fsdp.versions() != self._served_versions:
            raise ConfigError(
                f"parameters of {self.name} were changed within a forward, after it had gathered them; change them "
                "before the forward of the whole model, or after it"
            )

    def differs_from_outside(self, mark: Mark) -> bool:
        """Return whether a gather outside of a forward had another mark."""
        outside, self._mark_outside = self._mark_outside, None
        return outside is not None and outside != mark

    def on_changed(self) -> None:
        """Drop all that was gathered before, as some worker's shard has changed."""
        self._cache.on_changed()
        if self.fsdp.is_gathered():
            self.fsdp.drop_gathered()

    # --- the collectives

    def allocate(
        self, size: Sequence[int], dtype: torch.dtype, device: torch.device, kind: MemoryKind
    ) -> torch.Tensor:
        """Return a buffer for a collective, counted as `kind`."""
        if self._account is None:
            return empty_on(device, size, dtype)
        return self._account.empty(torch.Size(size).numel(), dtype=dtype, device=device, kind=kind)

    def gather(self, out: torch.Tensor, own: torch.Tensor) -> PendingWork:
        """Fill `out`, (p*n,), with the unit, of which `own`, (n,), is this worker's shard; return at once."""
        in_backward = is_in_backward()
        if self.keeps is Keeps.HOST_COPY and (self._buffer is None or self._buffer.nbytes < out.nbytes):
            self.take_buffer(out.nbytes)  # parameters were given another type
        how = self._how(in_backward)
        what = (Phase.BACKWARD_GATHER if in_backward else Phase.FORWARD_GATHER).of(self.name)
        work = self._work(how, out, own, what)
        if self.recorder is not None:
            self.recorder.on_gather(what, how, work.pending)
        return work

    def _how(self, in_backward: bool) -> Gather:
        if in_backward or self.fsdp.is_in_forward():
            how = self._cache.on_gather(in_backward=in_backward, is_trainable=self.is_trainable)
            if self._is_from_shards(how):
                self._served_versions = self.fsdp.versions()
            return how
        self._mark_outside = self.mark()
        return Gather(self.sharding.gather(Use()).source)

    def _is_from_shards(self, how: Gather) -> bool:
        """Return whether a gather takes the parameters themselves, and not kept copies of them."""
        return how.source is Source.ALL or (how.source is Source.NODE and self.sharding.mesh_dims == 2)

    def _work(self, how: Gather, out: torch.Tensor, own: torch.Tensor, what: str) -> PendingWork:
        if how.source is Source.HOST:
            assert self._buffer is not None
            if self._reads is NodeReads.PARTS and out.nbytes % len(self.group.node_ranks) == 0:
                return self._transfers.read_part(out, self._buffer, what, self.identity)
            return self._transfers.read(out, self._buffer, what)
        if not self._is_from_shards(how):
            assert self._secondary is not None
            return self._transfers.gather_near(out, self._secondary, what, self.identity)
        if how.keep is Keeps.HOST_COPY:
            return self._transfers.gather(out, own, what, self.identity, keep=self._buffer)
        work = self._gather(how, out, own, what)
        return work.then(lambda: self._keep_part(out)) if how.keep is Keeps.SECOND_SHARDS else work

    def _gather(self, how: Gather, out: torch.Tensor, own: torch.Tensor, what: str) -> PendingWork:
        """Gather from all of the group, in the parameters' type or as int8."""
        if how.bits == 16 or self.quantisation is None or not out.is_floating_point():
            return self._transfers.gather(out, own, what, self.identity)
        sent = quantise(own)
        self.quantisation.note(own, sent)
        arriving = empty_beside(out, (self.group.size * sent.numel(),), torch.uint8)

        def finish() -> None:
            for row, place in zip(arriving.view(self.group.size, -1), out.view(self.group.size, -1), strict=True):
                dequantise(row, place)

        return self._transfers.gather(arriving, sent, what, self.identity).then(finish)

    def _keep_part(self, out: torch.Tensor) -> None:
        """Copy the 1/L of a gathered unit that this worker holds for its node."""
        members = self.group.node_ranks
        nbytes = out.nbytes // len(members)
        begin = members.index(self.group.rank) * nbytes
        part = out.view(torch.uint8)[begin : begin + nbytes]
        if self._secondary is None or self._secondary.nbytes != part.nbytes:
            self._secondary = empty_beside(part, part.shape, part.dtype)
            if self._account is not None:
                self._account.hold(self._secondary, MemoryKind.CACHES)
        self._secondary.copy_(part)

    def reduce(self, out: torch.Tensor, full: torch.Tensor) -> None:
        """Sum all workers' `full`, (p*n,), of this worker's place into `out`, (n,); return when it is there."""
        what = Phase.REDUCE_SCATTER.of(self.name)
        begin_s = self.recorder.now_s() if self.recorder is not None else 0.0
        must_match = f"{self.identity}, of parameters {self.fsdp.reduced_parameters()}"
        if self._replicas is not None:  # what they sum after this are tensors without a name
            self._replicas.barrier(f"{what} among replicas", must_match=must_match)
        self._transfers.reduce(out, full, what, must_match)
        if self.recorder is not None:
            self.recorder.on_reduced(what, begin_s)


def units_of(model: nn.Module) -> list[ShardedUnit]:
    """Return the units of a model that `fully_shard` has sharded, the outer ones first."""
    found = (bound_to(module) for module in model.modules())
    return list(dict.fromkeys(unit for unit in found if isinstance(unit, ShardedUnit)))


class _AllGather:
    """AllGather of FSDP2 for one unit."""

    def __init__(self, unit: ShardedUnit) -> None:
        self._unit = unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a counted buffer for the gathered unit; see torch's Comm."""
        return self._unit.allocate(size, dtype, device, MemoryKind.GATHERED)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work:
        """Start the gather; FSDP2 waits for the Work, asked for or not."""
        if group.size() != self._unit.group.size:  # reshard_after_forward=n: in backward by n workers
            return gather_by_torch(output_tensor, input_tensor, group)
        return self._unit.gather(output_tensor, input_tensor)


class _ReduceScatter:
    """ReduceScatter of FSDP2 for one unit, whose output becomes gradients at once."""

    def __init__(self, unit: ShardedUnit) -> None:
        self._unit = unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a counted buffer for gradients; see torch's Comm."""
        return self._unit.allocate(size, dtype, device, MemoryKind.GRADIENTS)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Sum the gradients; FSDP2 divides."""
        self._unit.reduce(output_tensor, input_tensor)
