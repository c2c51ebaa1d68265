"""Counted memory of one rank's accelerator, which FCDP-Cache's tau reads (FCDP IV-D).

[Note: counted by storage] Memory belongs to a tensor's storage, which views, detached tensors and saved variables
share. So a storage is counted once, from the first `hold` until its last reference is gone, for any owner; and where
FSDP2 resizes a storage in place, to free a gathered parameter and to fill it again, the count follows. A storage may
die anywhere, within the garbage collector too: its end is only noted then, and counted by the next call.

Temporaries inside operations, gradients of activations, and an allocator's rounding and fragmentation are not counted.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import MethodType

import torch

from coarse import errors
from coarse.parallel.sharded.memory_ledger import MemoryLedger
from coarse.protocol.units import MIB
from coarse.torch.on_gpu import empty_on

Reclaim = Callable[[int], None]


class OutOfDeviceMemoryError(errors.OutOfDeviceMemoryError, torch.OutOfMemoryError):
    """Error of coarse that scripts which catch torch's own error catch too.

    Those that search for a batch size do so.
    """


class DeviceAccount:
    """Memory of an emulated accelerator: counted, and full when its capacity is in use.

    Any thread may call it.
    """

    def __init__(self, capacity_bytes: int | None = None, *, rank: int | None = None) -> None:
        if capacity_bytes is not None and capacity_bytes < 1:
            raise errors.ConfigError(f"an accelerator has at least 1 byte, got {capacity_bytes}", key="capacity_bytes")
        self.rank = rank
        """Rank named in errors."""
        self._capacity_bytes = capacity_bytes
        self._ledger = MemoryLedger()
        self._held: dict[int, _Held] = {}
        self._dead: deque[_Held] = deque()
        self._reclaimers: list[tuple[float, Callable[[], Reclaim | None]]] = []
        self._lock = threading.RLock()

    def take(self, kind: str, nbytes: int) -> None:
        """Count `nbytes` more of a kind.

        Raises:
            OutOfDeviceMemoryError: they don't fit even after reclaiming.
        """
        self._reclaim(nbytes)
        with self._lock:
            self._settle()
            self._require_room(kind, nbytes)
            self._ledger.take(kind, nbytes)

    def give_back(self, kind: str, nbytes: int) -> None:
        """Count `nbytes` less of a kind."""
        with self._lock:
            self._ledger.give_back(kind, nbytes)

    def add_reclaimer(self, reclaim: Reclaim, *, limit: float = 1.0) -> None:
        """Call `reclaim(lacking_bytes)` before more than `limit` of the capacity is in use.

        It gives back the memory that it can do without, at best `lacking_bytes`, so that a cache which may be dropped
        never makes a training fail that fits without it. It is called in the thread that takes memory, and must not
        wait for another rank. A method is called as long as its object lives, which the account does not keep alive.
        """
        reference = weakref.WeakMethod(reclaim) if isinstance(reclaim, MethodType) else lambda: reclaim
        self._reclaimers.append((limit, reference))

    def empty(self, numel: int, *, dtype: torch.dtype, device: torch.device, kind: str) -> torch.Tensor:
        """Return a new tensor (numel,) held as `kind`; its room is made before it is allocated."""
        self._reclaim(numel * dtype.itemsize)
        self._require_room(kind, numel * dtype.itemsize)
        return self.hold(empty_on(device, (numel,), dtype), kind)

    def hold(self, tensor: torch.Tensor, kind: str) -> torch.Tensor:
        """Count a tensor's storage as `kind` until it is freed, and return the tensor.

        A storage held before as another kind changes kind.
        """
        storage = tensor.untyped_storage()
        held = self._held_of(storage)
        if held is None:
            self.take(kind, storage.nbytes())
            self._held[storage._cdata] = _Held(self, storage, kind)
        elif held.kind != kind:
            with self._lock:
                self._ledger.give_back(held.kind, held.nbytes)
                self._ledger.take(kind, held.nbytes)
                held.kind = kind
        return tensor

    def note(self, tensor: torch.Tensor, kind: str) -> torch.Tensor:
        """Hold a tensor as `kind` where its storage is not counted yet, and return the tensor."""
        return tensor if self.counts(tensor) else self.hold(tensor, kind)

    def counts(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage is counted now."""
        return self._held_of(tensor.untyped_storage()) is not None

    @property
    def ledger(self) -> MemoryLedger:
        """Ledger of the memory by kind."""
        with self._lock:
            self._settle()
            return self._ledger

    @property
    def used_bytes(self) -> int:
        """Bytes in use now."""
        return self.ledger.used_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes in use at one moment, since the start or `restart_peaks`."""
        return self.ledger.peak_bytes

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes of the accelerator; None where there is no limit."""
        return self._capacity_bytes

    def fraction_used(self) -> float:
        """Return the part of the capacity in use, in [0, 1]; 0.0 without a capacity."""
        return self.used_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    def restart_peaks(self) -> None:
        """Let peaks count from the bytes in use now."""
        with self._lock:
            self._settle()
            self._ledger.restart_peaks()

    def _lacking_bytes(self, nbytes: int, limit: float) -> int:
        """Return the bytes to be given back so that `nbytes` more use no more than `limit` of the capacity."""
        if self.capacity_bytes is None:
            return 0
        return max(0, self.used_bytes + nbytes - int(limit * self.capacity_bytes))

    def _reclaim(self, nbytes: int) -> None:
        """Have reclaimers make room, outside of the lock, since they may wait for another thread's work."""
        for limit, reference in self._reclaimers:
            reclaim = reference()
            if reclaim is not None and (lacking_bytes := self._lacking_bytes(nbytes, limit)):
                reclaim(lacking_bytes)

    def _require_room(self, kind: str, nbytes: int) -> None:
        if self._lacking_bytes(nbytes, 1.0):
            raise self._out_of_memory(kind, nbytes)

    def _held_of(self, storage: torch.UntypedStorage) -> "_Held | None":
        with self._lock:
            self._settle()
            return self._held.get(storage._cdata)

    def _settle(self) -> None:
        """Count the storages that have died since."""
        while self._dead:
            held = self._dead.popleft()
            self._ledger.give_back(held.kind, held.nbytes)
            del self._held[held.key]

    def _resized(self, held: "_Held", nbytes: int) -> None:
        if nbytes > held.nbytes:
            self._reclaim(nbytes - held.nbytes)
            self.take(held.kind, nbytes - held.nbytes)
        else:
            self.give_back(held.kind, held.nbytes - nbytes)
        held.nbytes = nbytes

    def _out_of_memory(self, kind: str, nbytes: int) -> OutOfDeviceMemoryError:
        used = self._ledger.used_by_kind()
        by_kind = ", ".join(f"{name} {_mib(held)}" for name, held in sorted(used.items(), key=lambda item: -item[1]))
        who = "" if self.rank is None else f"rank {self.rank}: "
        capacity_bytes = self.capacity_bytes or 0
        return OutOfDeviceMemoryError(
            f"{who}the accelerator's memory is full: {_mib(nbytes)} ({nbytes} bytes) wanted for {kind}, but of "
            f"{_mib(capacity_bytes)} only {_mib(capacity_bytes - self.used_bytes)} are free (in use: "
            f"{by_kind or 'nothing that is known here'}); lower the batch, shard over more workers, checkpoint "
            "activations, or keep no cache on the accelerator (mode fcdp)",
            rank=self.rank,
            kind=str(kind),
            wanted_bytes=nbytes,
            used_by_kind={str(name): held for name, held in used.items()},
            capacity_bytes=self.capacity_bytes,
        )


class _Held:
    """Counted storage, watched for resizes in place and for its end."""

    def __init__(self, account: DeviceAccount, storage: torch.UntypedStorage, kind: str) -> None:
        if "resize_" in vars(storage):
            raise ValueError("a tensor's memory is counted by one account, but another one counts this tensor's")
        self.kind = kind
        self.nbytes = storage.nbytes()
        self.key = storage._cdata
        self._storage = weakref.ref(storage, lambda _: account._dead.append(self))
        resize = type(storage).resize_

        def counted_resize(nbytes: int) -> torch.UntypedStorage:
            living = self._storage()
            assert living is not None
            account._resized(self, nbytes)
            return resize(living, nbytes)

        storage.resize_ = counted_resize  # type: ignore[method-assign, assignment]


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.2f} MiB"
