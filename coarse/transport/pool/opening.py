"""How the devices of a job come to one pool: its file, who takes which part of it, and that all have the same one."""

import fcntl
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coarse.errors import CapacityError, ConfigError
from coarse.protocol.clock import Clock
from coarse.protocol.config import PoolSettings
from coarse.storage.dax import size_and_align
from coarse.storage.pool.cache_lines import FlushedLines
from coarse.storage.pool.history import MOST_USERS, History, history_bytes
from coarse.storage.pool.memory import LINE_BYTES, CoherentLines, MappedPool, Pool, whole_lines
from coarse.storage.pool.shadow import HostCache, PoolUser, ShadowedPool, cache_bytes
from coarse.storage.region import create_memory_file
from coarse.transport.pool.ring import RingPlace, ring_place_bytes

POOL = "pool"
"""Label of the file that ranks of a node hand to one another; a host's cache has its number behind it."""


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """Which part of the pool is whose. The first line holds the job's name."""

    settings: PoolSettings
    hosts: tuple[int, ...]
    """By device the number of its node."""

    def __post_init__(self) -> None:
        if self.is_checked and len(self.hosts) > MOST_USERS:
            raise ConfigError(
                f'coherence = "checked" in [pool] watches at most {MOST_USERS} memory devices, got {len(self.hosts)}; '
                "check with fewer"
            )

    @property
    def is_checked(self) -> bool:
        """Whether the sanitizer stands between the devices and the pool."""
        return self.settings.coherence == "checked"

    @property
    def places(self) -> dict[tuple[int, int], RingPlace]:
        """By (writer, reader) their ring."""
        devices = range(len(self.hosts))
        pairs = [(writer, reader) for writer in devices for reader in devices if writer != reader]
        return {
            pair: RingPlace(LINE_BYTES + index * self._each_bytes, self._ring_bytes) for index, pair in enumerate(pairs)
        }

    @property
    def data_bytes(self) -> int:
        """Bytes of all rings and the first line."""
        num_devices = len(self.hosts)
        return LINE_BYTES + num_devices * (num_devices - 1) * self._each_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes that the file must have."""
        return self.data_bytes + (history_bytes(self.data_bytes) if self.is_checked else 0)

    @property
    def _ring_bytes(self) -> int:
        return whole_lines(self.settings.ring_bytes)

    @property
    def _each_bytes(self) -> int:
        return ring_place_bytes(self._ring_bytes)


def pool_files(plan: PoolPlan, *, locks: bool) -> dict[str, int]:
    """Descriptors of what a node's ranks share, by label; on the node's first rank.

    The job's first node has the file for itself (flock); other hosts cannot see that lock.

    Raises:
        ConfigError: there is no such file, or it is none that can be mapped, or somebody uses it.
        CapacityError: it is too small.
    """
    path = plan.settings.path
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"[pool] path {path!r} cannot be opened to read and write ({error.strerror}); name a devdax device, or a "
            f"file that exists and that all nodes map, made by truncate -s {plan.file_bytes} {path}",
            key="path",
        ) from None
    try:
        has_bytes = _size(path, descriptor)
        if has_bytes < plan.file_bytes:
            raise CapacityError(
                f"[pool] path {path!r} has {has_bytes} bytes but {len(plan.hosts)} memory devices need "
                f"{plan.file_bytes}; take a longer one, or lower ring_bytes in [pool]"
            )
        if locks:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"another job uses [pool] path {path!r}; name another file, or wait for that job's end", key="path"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    caches = sorted(set(plan.hosts)) if plan.is_checked else []
    nbytes = cache_bytes(plan.data_bytes)
    return {POOL: descriptor} | {f"{POOL} {host}": create_memory_file(f"coarse-pool-{host}", nbytes) for host in caches}


def map_pool(plan: PoolPlan, descriptors: Mapping[str, int], user: PoolUser, clock: Clock) -> Pool:
    """The pool as one device uses it.

    Raises:
        CapacityError: this process may not map so much.
        UnsupportedError: it is not coherent, and coarse knows no instruction of this processor to flush its caches.
    """
    mapped = _mapped(descriptors[POOL], plan.file_bytes)
    if not plan.is_checked:
        return MappedPool(mapped, FlushedLines() if plan.settings.coherence == "software" else CoherentLines())
    history = History(mapped[plan.data_bytes :], plan.data_bytes)
    if user.number == 0:
        history.clear()
    own_cache = descriptors[f"{POOL} {user.hosts[user.number]}"]
    cache = HostCache(_mapped(own_cache, cache_bytes(plan.data_bytes)), plan.data_bytes)
    return ShadowedPool(mapped[: plan.data_bytes], history, cache, user, clock)


def sign(pool: Pool, run: str) -> None:
    """Write the job's name into the pool, on one device; the others see it (`check_signature`)."""
    pool.store_word(0, int(run, 16))
    pool.flush(0, LINE_BYTES)


def check_signature(pool: Pool, run: str, path: str, where: str) -> None:
    """ConfigError where this device does not find the job's name that another has written."""
    pool.invalidate(0, LINE_BYTES)
    if pool.load_word(0) != int(run, 16):
        raise ConfigError(
            f"{where} does not see in [pool] path {path!r} what memory device 0 wrote there; have all nodes map the "
            "same memory under that path",
            key="path",
        )


def _mapped(descriptor: int, nbytes: int) -> np.ndarray:
    try:
        mapping = mmap.mmap(descriptor, 0 if _is_device(descriptor) else nbytes)
    except OSError as error:
        raise CapacityError(
            f"this process cannot map {nbytes} bytes of the pool ({error.strerror}); raise its limit of address space "
            "(ulimit -v), or lower ring_bytes in [pool]"
        ) from None
    return np.frombuffer(mapping, np.uint8)[:nbytes]


def _is_device(descriptor: int) -> bool:
    return stat.S_ISCHR(os.fstat(descriptor).st_mode)


def _size(path: str, descriptor: int) -> int:
    status = os.fstat(descriptor)
    if stat.S_ISCHR(status.st_mode):
        return size_and_align(path)[0]
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"[pool] path {path!r} is neither a file nor a devdax device; name one", key="path")
    return status.st_size
