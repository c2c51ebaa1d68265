"""Unit of mode odc, whose gathers and reductions in FSDP2 are fetches and pieces."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.distributed as dist

from coarse.errors import ConfigError
from coarse.odc.client.model import OdcModel
from coarse.odc.layout import OdcUnit
from coarse.odc.records import OdcCommitted
from coarse.odc.torch.placeholder import GradientPlaceholder
from coarse.odc.wide_sum import WideSum
from coarse.parallel.sharded.memory_ledger import MemoryKind
from coarse.parallel.sharded.passes import Mark
from coarse.parallel.sharded.transfers import Phase
from coarse.session import current
from coarse.strategy.sharding import Sum
from coarse.torch.arrivals import arrival_of
from coarse.torch.fsdp.checksum import checksum
from coarse.torch.fsdp.fsdp2 import is_in_backward
from coarse.torch.on_gpu import empty_on, goes_by_gpu, gpu_bytes_of, in_its_stream, is_host
from coarse.torch.tensors import bytes_of, wire_type_of

if TYPE_CHECKING:
    from coarse.odc.client.protocol import Fetch
    from coarse.strategy.sharding import Sharding
    from coarse.torch.fsdp.account import DeviceAccount
    from coarse.torch.fsdp.fsdp2 import Fsdp2Unit


class Tree(Protocol):
    """Tree of a unit, with the members that the unit needs."""

    def publish(self) -> None:
        """Publish this worker's shards in this minibatch."""
        ...

    def say_once_that_sync_is_always(self) -> None:
        """Warn once, as the script wanted gradients to stay."""
        ...


class OnDemandUnit:
    """Unit that is fetched as a whole; its `tree` may become part of another."""

    def __init__(
        self, given_name: str, fsdp: Fsdp2Unit, place: int, account: DeviceAccount | None, sharding: Sharding
    ) -> None:
        """Take over FSDP2's collectives; `place` is the unit's number in its model."""
        self._given_name = given_name
        self.fsdp = fsdp
        self.place = place
        self.sharding = sharding
        self.tree: Tree
        self.model: OdcModel
        self._account = account
        self.trained = [
            place for place, parameter in enumerate(fsdp.parameters()) if parameter.requires_grad
        ]
        """Places of the parameters that may have a gradient."""
        sizes = fsdp.row_sizes()
        self._sizes = [sizes[place] for place in self.trained]
        self._earlier: dict[int, torch.Tensor] = {}
        """Gradients of earlier minibatches by place, to which this one's are added."""
        self._pending: set[int] = set()
        """Places whose gradients this worker has pushed in this minibatch."""
        self._staged: tuple[int, int, np.ndarray] | None = None
        """Slot, mask and bytes of the piece that FSDP2 is about to fill."""
        self._published: Mark | None = None
        """Mark of the shard that was published last."""
        self._fetching: _Fetching | None = None
        """Last fetch, which may not have been used."""
        fsdp.bind(self)
        fsdp.use(_Fetches(self), _Pushes(self))
        fsdp.undivided()
        fsdp.around_reduce(self._before_reduce, self._after_reduce)

    @property
    def name(self) -> str:
        """Name in errors."""
        return self._given_name or self.fsdp.qualified_name or "root"

    def shape(self) -> OdcUnit:
        """Return the unit as members state it."""
        shard = self.fsdp.gathered_nbytes() // self.fsdp.shard_size()
        dtype = wire_type_of(torch.empty(0, dtype=self.fsdp.gradient_type(), device="cpu"), f"gradients of {self.name}")
        return OdcUnit(shard, tuple(self._sizes), int(dtype))

    # --- publishing

    @property
    def follows_arrival(self) -> bool:
        """True if sums have other bits where pieces come in another order."""
        return self.model.declaration.sum is Sum.FLOAT32

    @property
    def is_published(self) -> bool:
        """True if this worker's shard is published in this minibatch."""
        return self.model.machine.is_published(self.place)

    def write_publication(self) -> bool:
        """Pack the shard to the place where others read it; return whether its bytes have changed."""
        if self.fsdp.is_gathered():
            self.fsdp.drop_gathered()
        self._published = self._mark_now()
        place, packed = self.model.publication(self.place), self._packed()
        if np.array_equal(place, packed):
            return self.model.machine.minibatch == 0
        place[...] = packed
        return True

    def require_unchanged(self) -> None:
        """Return where the shard is the published one, or raise.

        Raises:
            ConfigError: it was changed in the middle of a minibatch.
        """
        mark = self._mark_now()
        if mark == self._published:
            return
        if self.fsdp.is_gathered():
            self.fsdp.drop_gathered()
        if not np.array_equal(self.model.publication(self.place), self._packed()):
            raise ConfigError(
                f"parameters of {self.name} were changed within minibatch {self.model.machine.minibatch}, after others "
                "may have read them: optimizer.step() publishes, and so do a forward, and end_minibatch of another "
                "model where a worker runs this one before it comes there; change them in a hook of "
                "optimizer.register_step_post_hook, which runs before that, or after "
                "coarse.torch.end_minibatch(model) on all workers, which end and step their models in one order"
            )
        self._published = mark

    def _mark_now(self) -> Mark:
        return Mark(self.fsdp.versions(), checksum(self.fsdp.shards()))

    def _packed(self) -> np.ndarray:
        shards = [bytes_of(shard.detach().cpu().contiguous().view(-1)) for shard in self.fsdp.packed_shards()]
        return shards[0] if len(shards) == 1 else np.concatenate(shards)

    # --- gathering

    def allocate(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for a gathered unit."""
        if self._account is None:
            return empty_on(device, size, dtype)
        return self._account.empty(torch.Size(size).numel(), dtype=dtype, device=device, kind=MemoryKind.GATHERED)

    def fetch(self, out: torch.Tensor) -> dist.Work:
        """Return work that fills `out`, (p*n,), once it is waited for."""
        self.tree.publish()
        what = (Phase.BACKWARD_GATHER if is_in_backward() else Phase.FORWARD_GATHER).of(self.name)
        self._fetching = _Fetching(self.model, self.model.fetch(self.place, what), out, what)
        return self._fetching

    def settle(self) -> None:
        """Wait for a fetch made ahead and not used.

        It comes before its minibatch is over: later no device has it any more.
        """
        if self._fetching is not None:
            self._fetching.wait()
            self._fetching = None

    # --- gradients

    def _before_reduce(self) -> None:
        """Remove gradients before FSDP2's reduction, so that it adds to none."""
        if self.fsdp.reduce_always():
            self.tree.say_once_that_sync_is_always()
        parameters = self.fsdp.parameters()
        for place in self.fsdp.reduced_parameters():
            if place not in self.trained:
                raise ConfigError(
                    f"parameter {place} of {self.name} has a gradient, but wanted none when the model was sharded; set "
                    "requires_grad before fully_shard"
                )
            gradient = parameters[place].grad
            if gradient is not None and not isinstance(gradient, GradientPlaceholder):
                self._earlier[place] = gradient
            parameters[place].grad = None

    def _after_reduce(self) -> None:
        parameters, reduced = self.fsdp.parameters(), self.fsdp.reduced_parameters()
        if self.fsdp.shard_size() == 1 and reduced:  # then FSDP2 reduces nothing
            rows = [parameters[place].grad.to_local().flatten() for place in reduced]  # type: ignore[union-attr]
            self.push(torch.cat(rows).to(self.fsdp.gradient_type()))
        for place in reduced:
            self._pending.add(place)
            parameters[place].grad = GradientPlaceholder(parameters[place])

    def stage(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Return room in device memory for the piece that FSDP2 is about to fill; None if it lies elsewhere."""
        if self._staged is not None or not is_host(device):
            return None
        mask = self._mask()
        slot, raw = self._slot(mask)
        self._staged = slot, mask, raw
        values = torch.from_numpy(raw).view(dtype)
        assert len(values) == num_elements, f"{num_elements} elements were to be reduced, {len(values)} were declared"
        return values

    def push(self, piece: torch.Tensor) -> None:
        """Push (p*n,), a row for each member; return once it lies in device memory."""
        if self._staged is None:
            mask = self._mask()
            slot, raw = self._slot(mask)
            with self.model.own_work():
                self._put(raw, piece)
        else:
            slot, mask, raw = self._staged
            self._staged = None
        self.model.push(self.place, mask, slot)

    def _slot(self, mask: int) -> tuple[int, np.ndarray]:
        """Wait for a place for a piece; return its number and its (p*n,) uint8."""
        return self.model.slot(self.place, mask, Phase.REDUCE_SCATTER.of(self.name))

    def _put(self, raw: np.ndarray, piece: torch.Tensor) -> None:
        """Copy a piece to device memory."""
        if not goes_by_gpu(piece) or not piece.numel():
            torch.from_numpy(raw).view(piece.dtype).copy_(piece)
            return
        with in_its_stream(piece):
            current().require_client().copies.store(raw, gpu_bytes_of(piece)).wait()

    def _mask(self) -> int:
        return sum(1 << self.trained.index(place) for place in self.fsdp.reduced_parameters())

    def require_untouched(self) -> None:
        """Return where the gradients that this worker pushed are as they were left, or raise.

        Raises:
            ConfigError: they were set to None, or to something else.
        """
        parameters = self.fsdp.parameters()
        for place in self._pending:
            if not isinstance(parameters[place].grad, GradientPlaceholder):
                raise ConfigError(
                    f"gradients of {self.name} were set within minibatch {self.model.machine.minibatch}, after they "
                    "had been pushed to their owners; call optimizer.zero_grad() after the minibatch has ended, or "
                    "before its first backward"
                )

    def write_gradients(self, committed: OdcCommitted, divisor: float) -> None:
        """Give parameters the sums of all workers' pieces over a divisor; others keep their gradients."""
        with self.model.own_work():
            self._write_gradients(committed, divisor)

    def _write_gradients(self, committed: OdcCommitted, divisor: float) -> None:
        mask, begin = committed.masks[self.place], 0
        totals = self._totals(divisor) if mask else np.empty(0)
        for bit, place in enumerate(self.trained):
            end = begin + self._sizes[bit]
            if mask >> bit & 1:
                gradient = self.fsdp.parameters()[place].grad
                is_real = gradient is not None and not isinstance(gradient, GradientPlaceholder)
                earlier = gradient if is_real else self._earlier.get(place)
                self.fsdp.parameters()[place].grad = None
                self.fsdp.set_gradient(place, torch.from_numpy(totals[begin:end]), earlier)
            begin = end
        self.forget()

    def forget(self) -> None:
        """Forget the minibatch, which is over: its pushed gradients have their values, or never will."""
        parameters = self.fsdp.parameters()
        for place in self._pending:
            if isinstance(parameters[place].grad, GradientPlaceholder):
                parameters[place].grad = None
        self._pending.clear()
        self._earlier.clear()

    def _totals(self, divisor: float) -> np.ndarray:
        """Return (n,) of this worker's own row, divided once, in float64 where sums are exact."""
        sums = self.model.sums(self.place)
        if isinstance(sums, WideSum):
            return sums.totals() / divisor
        found: np.ndarray = sums / sums.dtype.type(divisor)
        return found


class _Fetching(dist.Work):
    """Fetch under way, as torch's Work."""

    def __init__(self, model: OdcModel, fetch: Fetch, out: torch.Tensor, what: str) -> None:
        super().__init__()
        self._model = model
        self._what = what
        self._left: tuple[Fetch, torch.Tensor] | None = (fetch, out)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once the tensor may be used, or raise coarse's errors."""
        left, self._left = self._left, None
        if left is not None:
            fetch, out = left
            arrival = arrival_of(out)
            self._model.read(fetch, arrival.array, self._what)
            arrival.start()
            arrival.finish()
        return True


class _Fetches:
    """AllGather of FSDP2 for one unit."""

    def __init__(self, unit: OnDemandUnit) -> None:
        self._unit = unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for the gathered unit; see torch's Comm."""
        return self._unit.allocate(size, dtype, device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work:
        """Start a fetch; this worker's own shard, too, is read from the place where it was published."""
        return self._unit.fetch(output_tensor)


class _Pushes:
    """ReduceScatter of FSDP2 for one unit; gradients are written when the minibatch ends.

    Its output is not used.
    """

    def __init__(self, unit: OnDemandUnit) -> None:
        self._unit = unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for the input, which FSDP2 asks for first, or for the output; see torch's Comm."""
        staged = self._unit.stage(torch.Size(size).numel(), dtype, device)
        return empty_on(device, size, dtype) if staged is None else staged

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Push a piece."""
        self._unit.push(input_tensor)
