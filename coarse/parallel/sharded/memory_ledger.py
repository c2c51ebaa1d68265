# Pure: no MPI, threads, clock or environment.
"""Ledger of one accelerator's memory: bytes by kind, now and at the peak."""

from collections import Counter
from enum import StrEnum


class MemoryKind(StrEnum):
    """Kind of accelerator memory in sharded training."""

    SHARDS = "shards"
    """Pieces of the parameters that this rank has."""
    GATHERED = "gathered units"
    """Full parameters of units, and the buffers that collectives fill."""
    CACHES = "caches"
    """Copies that stay from forward to backward so that nothing crosses between nodes. They are zeropp's secondary
    shards, and units that fcdp keeps on the accelerator."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer states"
    ACTIVATIONS = "activations"
    """Tensors that autograd saved for backward."""
    BUFFERS = "buffers"
    """Tensors of the modules that are no parameters."""


class MemoryLedger:
    """Ledger of bytes by kind of one accelerator, their sum, and the largest sum there has been."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self.peak_bytes = 0
        self._used: Counter[str] = Counter()
        self._used_at_peak: dict[str, int] = {}
        self._highest: dict[str, int] = {}

    def take(self, kind: str, nbytes: int) -> None:
        """Count `nbytes` more of a kind."""
        if nbytes < 0:
            raise ValueError(f"{kind}: memory is taken in bytes of at least 0, got {nbytes}")
        self._used[kind] += nbytes
        self.used_bytes += nbytes
        self._highest[str(kind)] = max(self._highest.get(kind, 0), self._used[kind])
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
            self._used_at_peak = self.used_by_kind()

    def give_back(self, kind: str, nbytes: int) -> None:
        """Count `nbytes` less of a kind."""
        if not 0 <= nbytes <= self._used[kind]:
            raise ValueError(f"{kind}: {nbytes} bytes are given back, but {self._used[kind]} are in use")
        self._used[kind] -= nbytes
        self.used_bytes -= nbytes

    def used_by_kind(self) -> dict[str, int]:
        """Return the bytes in use now, kinds that hold none left out."""
        return {str(kind): nbytes for kind, nbytes in self._used.items() if nbytes}

    def used_at_peak(self) -> dict[str, int]:
        """Return the bytes by kind when the sum was largest; their sum is `peak_bytes`."""
        return dict(self._used_at_peak)

    def highest_by_kind(self) -> dict[str, int]:
        """Return the most that each kind has held, not all at one moment."""
        return dict(self._highest)

    def restart_peaks(self) -> None:
        """Let peaks count from the bytes in use now."""
        self.peak_bytes = self.used_bytes
        self._used_at_peak = self.used_by_kind()
        self._highest = self.used_by_kind()
