"""One unit of mode odc: what FSDP2 gathers and reduces, by fetches and pieces."""

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
    """What a unit asks of the tree that it belongs to."""

    def publish(self) -> None:
        """Have others read this worker's shards in this minibatch."""
        ...

    def say_once_that_sync_is_always(self) -> None:
        """The script wanted gradients to stay."""
        ...


class OnDemandUnit:
    """What is fetched together. `tree` is the one that it belongs to, which may become part of another."""

    def __init__(
        self, given_name: str, fsdp: Fsdp2Unit, place: int, account: DeviceAccount | None, sharding: Sharding
    ) -> None:
        """`place` is its number in its model."""
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
        """By place gradients of minibatches before, to which this one's are added."""
        self._pending: set[int] = set()
        """Places whose gradients this worker has pushed in this minibatch."""
        self._staged: tuple[int, int, np.ndarray] | None = None
        """Slot, mask and bytes of the piece that FSDP2 is about to fill."""
        self._published: Mark | None = None
        """The mark of the shard that was published last."""
        self._fetching: _Fetching | None = None
        """The last one, which nobody may have used."""
        fsdp.bind(self)
        fsdp.use(_Fetches(self), _Pushes(self))
        fsdp.undivided()
        fsdp.around_reduce(self._before_reduce, self._after_reduce)

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._given_name or self.fsdp.qualified_name or "root"

    def shape(self) -> OdcUnit:
        """As members state it."""
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
        """Whether this worker's shard is, in this minibatch."""
        return self.model.machine.is_published(self.place)

    def write_publication(self) -> bool:
        """Pack the shard to where others read it; whether its bytes have changed since the last publication."""
        if self.fsdp.is_gathered():
            self.fsdp.drop_gathered()
        self._published = self._mark_now()
        place, packed = self.model.publication(self.place), self._packed()
        if np.array_equal(place, packed):
            return self.model.machine.minibatch == 0
        place[...] = packed
        return True

    def require_unchanged(self) -> None:
        """Return where the shard is what was published.

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
        """Memory for a gathered unit."""
        if self._account is None:
            return empty_on(device, size, dtype)
        return self._account.empty(torch.Size(size).numel(), dtype=dtype, device=device, kind=MemoryKind.GATHERED)

    def fetch(self, out: torch.Tensor) -> dist.Work:
        """Fill `out`, (p*n,), once it is waited for."""
        self.tree.publish()
        what = (Phase.BACKWARD_GATHER if is_in_backward() else Phase.FORWARD_GATHER).of(self.name)
        self._fetching = _Fetching(self.model, self.model.fetch(self.place, what), out, what)
        return self._fetching

    def settle(self) -> None:
        """What was fetched ahead, and not used, comes before its minibatch is over: later nobody has it any more."""
        if self._fetching is not None:
            self._fetching.wait()
            self._fetching = None

    # --- gradients

    def _before_reduce(self) -> None:
        """FSDP2 is to find no gradient, so that it adds to none."""
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
        """Room in device memory for the piece that FSDP2 is about to fill; None where that has to lie elsewhere."""
        if self._staged is not None or not is_host(device):
            return None
        mask = self._mask()
        slot, raw = self._slot(mask)
        self._staged = slot, mask, raw
        values = torch.from_numpy(raw).view(dtype)
        assert len(values) == num_elements, f"{num_elements} elements were to be reduced, {len(values)} were declared"
        return values

    def push(self, piece: torch.Tensor) -> None:
        """Push (p*n,), a row for each member; returns once it lies in device memory."""
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
        """Number and (p*n,) uint8 of a place for a piece, which is waited for."""
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
        """Return where the gradients that this worker pushed are as they were left.

        Raises:
            ConfigError: somebody set them to None, or to something else.
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
        """Give parameters the sums of all workers' pieces over a divisor; others keep what they have."""
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
        """The minibatch is over; what was pushed in it has its values, or never will."""
        parameters = self.fsdp.parameters()
        for place in self._pending:
            if isinstance(parameters[place].grad, GradientPlaceholder):
                parameters[place].grad = None
        self._pending.clear()
        self._earlier.clear()

    def _totals(self, divisor: float) -> np.ndarray:
        """(n,) of this worker's own row, divided once, in float64 where sums are exact."""
        sums = self.model.sums(self.place)
        if isinstance(sums, WideSum):
            return sums.totals() / divisor
        found: np.ndarray = sums / sums.dtype.type(divisor)
        return found


class _Fetching(dist.Work):
    """A fetch under way, as torch's Work."""

    def __init__(self, model: OdcModel, fetch: Fetch, out: torch.Tensor, what: str) -> None:
        super().__init__()
        self._model = model
        self._what = what
        self._left: tuple[Fetch, torch.Tensor] | None = (fetch, out)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once the tensor may be used; raises coarse's errors."""
        left, self._left = self._left, None
        if left is not None:
            fetch, out = left
            arrival = arrival_of(out)
            self._model.read(fetch, arrival.array, self._what)
            arrival.start()
            arrival.finish()
        return True


class _Fetches:
    """FSDP2's AllGather of one unit."""

    def __init__(self, unit: OnDemandUnit) -> None:
        self._unit = unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """See torch's Comm."""
        return self._unit.allocate(size, dtype, device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work:
        """Starts a fetch; this worker's own shard, too, is read from where it was published."""
        return self._unit.fetch(output_tensor)


class _Pushes:
    """FSDP2's ReduceScatter of one unit, whose output nobody uses: gradients are written when the minibatch ends."""

    def __init__(self, unit: OnDemandUnit) -> None:
        self._unit = unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """See torch's Comm; it asks for the input first."""
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
        """Pushes a piece."""
        self._unit.push(input_tensor)
