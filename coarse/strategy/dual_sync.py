# Pure: no MPI, threads, clock or environment.
"""Dual synchronisation: the split of gradients between memory devices and workers (COARSE III-F).

Backward produces the last layers' gradients first, and forward needs the first layers' parameters first. So the
first m of n bytes, in the order of backward, go to the proxies, whose ring also has the next forward pass to finish
in; the rest is summed by a ring of the workers as soon as backward ends. Push and pull are not in the formula.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from coarse.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class IterationTimes:
    """Measured seconds of the two passes, without synchronisation."""

    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        for key in ("forward_s", "backward_s"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ConfigError(f"{key} must be finite and at least 0, got {getattr(self, key)}", key=key)


@dataclass(frozen=True, kw_only=True)
class SyncRates:
    """The two rings: how many members each has and what one member sends to its neighbour in a second.

    The paper has as many memory devices as workers; one device that two workers share makes the rings differ.
    """

    num_workers: int
    num_devices: int
    worker_bytes_per_s: float
    proxy_bytes_per_s: float

    def __post_init__(self) -> None:
        for key in ("num_workers", "num_devices"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} must be at least 1, got {getattr(self, key)}", key=key)
        for key in ("worker_bytes_per_s", "proxy_bytes_per_s"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(f"{key} must be finite and above 0, got {getattr(self, key)}", key=key)

    def worker_sync_s(self, nbytes: int) -> float:
        """Return the paper's T_sync(GPU): 2(p-1)/p of the bytes over the workers' rate."""
        return _ring_bytes(self.num_workers, nbytes) / self.worker_bytes_per_s

    def proxy_sync_s(self, nbytes: int) -> float:
        """Return the paper's T_sync(proxy): 2(p-1)/p of the bytes over the proxies' rate."""
        return _ring_bytes(self.num_devices, nbytes) / self.proxy_bytes_per_s


def train_s(nbytes: int, proxy_bytes: int, times: IterationTimes, rates: SyncRates) -> float:
    """Return the seconds of an iteration with `proxy_bytes` of `nbytes` on the proxies: T_train."""
    if not 0 <= proxy_bytes <= nbytes:
        raise ConfigError(f"between 0 and {nbytes} bytes can go to the proxies, got {proxy_bytes}")
    return max(
        times.forward_s + times.backward_s + rates.worker_sync_s(nbytes - proxy_bytes),
        times.forward_s + rates.proxy_sync_s(proxy_bytes),
    )


def best_proxy_bytes(nbytes: int, times: IterationTimes, rates: SyncRates) -> int:
    """Return the paper's m: the whole number in [0, nbytes] that minimises `train_s`, the least of ties.

    The workers' side falls with m and the proxies' side rises, both linearly, so the least maximum is where
    they cross: T_BP + w(n - m) = d*m, with w and d each ring's seconds per byte. One worker alone has
    nothing to synchronise (w = 0) and keeps all; one device alone sums without a ring (d = 0) and takes all.
    """
    if nbytes < 0:
        raise ConfigError(f"a model has at least 0 bytes of gradients, got {nbytes}")
    worker_s = _ring_share(rates.num_workers) / Fraction(rates.worker_bytes_per_s)
    proxy_s = _ring_share(rates.num_devices) / Fraction(rates.proxy_bytes_per_s)
    if worker_s == 0:
        return 0
    crossing = (Fraction(times.backward_s) + worker_s * nbytes) / (worker_s + proxy_s)
    if crossing >= nbytes:
        return nbytes
    below = math.floor(crossing)
    worker_side_s = Fraction(times.backward_s) + worker_s * (nbytes - below)
    return below if worker_side_s <= proxy_s * (below + 1) else below + 1


def split_keys(nbytes_in_backward_order: Sequence[int], proxy_bytes: int) -> int:
    """Return the number of keys, counted from the first that backward produces, that go to the proxies.

    The other keys go to the workers' ring. Keys stay whole. A key that straddles m goes where more than half of it
    lies, and to the workers if it is halved exactly, so that the proxies' bytes are as near to m as a prefix of keys
    can be.
    """
    if min(nbytes_in_backward_order, default=0) < 0:
        raise ConfigError(f"keys have at least 0 bytes, got {min(nbytes_in_backward_order)}")
    ends = accumulate(nbytes_in_backward_order, initial=0)
    return min(enumerate(ends), key=lambda prefix: (abs(prefix[1] - proxy_bytes), prefix[0]))[0]


def _ring_share(num_members: int) -> Fraction:
    """Return the share of the payload that each member of a ring all-reduce sends: 2(p-1)/p."""
    return Fraction(2 * (num_members - 1), num_members)


def _ring_bytes(num_members: int, nbytes: int) -> float:
    return 2 * (num_members - 1) / num_members * nbytes
