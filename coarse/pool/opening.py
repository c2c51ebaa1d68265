"""Opening of a job's pool by its devices: its file, the parts of each, and the check that it is one."""

import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coarse.errors import CapacityError, ConfigError
from coarse.pool.ring import RingPlace, ring_place_bytes
from coarse.pool.shared.coherence_checker import HostCache, PoolUser, ShadowedPool, cache_bytes
from coarse.pool.shared.line_history import MOST_USERS, History, history_bytes
from coarse.pool.shared.memory import CoherentLines, MappedPool, Pool, whole_lines
from coarse.protocol.clock import Clock
from coarse.protocol.config import PoolSettings
from coarse.protocol.units import LINE_BYTES
from coarse.storage.cache_lines import FlushedLines
from coarse.storage.dax import device_number, open_dax, size_and_align
from coarse.storage.existing_file import open_existing
from coarse.storage.region import create_memory_file

POOL = "pool"
"""Label of the file that ranks of a node pass to one another; a host's cache has its number behind it."""


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """Division of the pool among devices; its first line holds the job's name."""

    settings: PoolSettings
    hosts: tuple[int, ...]
    """Number of each device's node."""

    def __post_init__(self) -> None:
        if self.is_checked and len(self.hosts) > MOST_USERS:
            raise ConfigError(
                f'coherence = "checked" in [pool] watches at most {MOST_USERS} memory devices, got {len(self.hosts)}; '
                "check with fewer"
            )

    @property
    def is_checked(self) -> bool:
        """True if the coherence checker stands between the devices and the pool."""
        return self.settings.coherence == "checked"

    @property
    def places(self) -> dict[tuple[int, int], RingPlace]:
        """Ring of each pair (writer, reader)."""
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
        """Bytes that the file must have, whole pages."""
        nbytes = self.data_bytes + (history_bytes(self.data_bytes) if self.is_checked else 0)
        return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE

    @property
    def _ring_bytes(self) -> int:
        return whole_lines(self.settings.ring_bytes)

    @property
    def _each_bytes(self) -> int:
        return ring_place_bytes(self._ring_bytes)


def pool_files(plan: PoolPlan, *, claims: bool) -> dict[str, int]:
    """Return the descriptors that a node's ranks share, by label; called on the node's first rank.

    The job's first node has the bytes for itself; other hosts cannot see its lock.

    Raises:
        ConfigError: there is no such file, or it is none that can be mapped, or it is in use.
        CapacityError: it is too small, or has holes that cannot be filled.
    """
    settings = plan.settings
    try:
        is_device = device_number(settings.path) is not None
    except OSError:
        is_device = False
    open_file = open_dax if is_device else open_existing
    try:
        file = open_file(settings.path, plan.file_bytes, settings.offset_bytes, claims=claims)
    except ConfigError as error:
        raise ConfigError(f"[pool] path {settings.path!r}: {error}", key="path") from None
    except CapacityError as error:
        raise CapacityError(
            f"[pool] path {settings.path!r}, of which {len(plan.hosts)} memory devices need {plan.file_bytes} bytes: "
            f"{error}; or lower ring_bytes in [pool]"
        ) from None
    caches = sorted(set(plan.hosts)) if plan.is_checked else []
    nbytes = cache_bytes(plan.data_bytes)
    made = {f"{POOL} {host}": create_memory_file(f"coarse-pool-{host}", nbytes) for host in caches}
    return {POOL: file.descriptor, **made}


def map_pool(plan: PoolPlan, descriptors: Mapping[str, int], user: PoolUser, clock: Clock) -> Pool:
    """Map the pool as one device uses it.

    Raises:
        CapacityError: this process may not map so much.
        UnsupportedError: it is not coherent, and coarse knows no instruction of this processor to flush its caches.
    """
    settings, descriptor = plan.settings, descriptors[POOL]
    is_device = stat.S_ISCHR(os.fstat(descriptor).st_mode)
    unit_bytes = size_and_align(settings.path)[1] if is_device else 1  # a devdax device is mapped in whole units
    mapped = _mapped(descriptor, -(-plan.file_bytes // unit_bytes) * unit_bytes, settings.offset_bytes)
    if not plan.is_checked:
        return MappedPool(mapped, FlushedLines() if settings.coherence == "software" else CoherentLines())
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
    """Raise ConfigError where this device does not find the job's name that another has written."""
    pool.invalidate(0, LINE_BYTES)
    if pool.load_word(0) != int(run, 16):
        raise ConfigError(
            f"{where} does not see in [pool] path {path!r} what memory device 0 wrote there; have all nodes map the "
            "same memory under that path",
            key="path",
        )


def _mapped(descriptor: int, nbytes: int, offset_bytes: int = 0) -> np.ndarray:
    try:
        mapping = mmap.mmap(descriptor, nbytes, offset=offset_bytes)
    except OSError as error:
        raise CapacityError(
            f"this process cannot map {nbytes} bytes of the pool ({error.strerror}); raise its limit of address space "
            "(ulimit -v), or lower ring_bytes in [pool]"
        ) from None
    return np.frombuffer(mapping, np.uint8)
