"""Messages between a job's devices by a pool: the part of it that the runtime opens."""

from collections.abc import Mapping

from coarse.errors import ConfigError
from coarse.pool.opening import PoolPlan, check_signature, map_pool, pool_files, sign
from coarse.pool.shared.coherence_checker import PoolUser
from coarse.pool.shared.memory import Pool
from coarse.pool.transport import PoolTransport
from coarse.protocol.clock import Clock
from coarse.protocol.config import PoolSettings


class PoolCarrier:
    """Pool as one rank uses it (coarse.transport.device_transport.Carrier)."""

    def __init__(
        self, settings: PoolSettings, hosts: tuple[int, ...], names: tuple[str, ...], device: int | None, run: str,
        clock: Clock,
    ) -> None:  # fmt: skip
        """Plan the pool.

        `hosts` and `names` are by device: the host whose caches it uses, and the device for people. `device` is this
        rank's, if any. `run` is the job's name in hexadecimal digits.
        """
        self._plan = PoolPlan(settings=settings, hosts=hosts)
        self._names = names
        self._device = device
        self._run = run
        self._clock = clock
        self._pool: Pool | None = None

    def files(self, *, claims: bool) -> dict[str, int]:
        """Return the pool's file, and under the coherence checker each host's cache."""
        return pool_files(self._plan, claims=claims)

    def open(self, files: Mapping[str, int]) -> None:
        """Map the pool on a device; the first writes the job's name into it."""
        if self._device is None:
            return
        self._pool = map_pool(self._plan, files, PoolUser(self._device, self._plan.hosts, self._names), self._clock)
        if self._device == 0:
            sign(self._pool, self._run)

    def check(self) -> ConfigError | None:
        """Return an error where this device's pool is not the first device's; None where it is."""
        if self._pool is None or self._device is None:
            return None
        try:
            check_signature(self._pool, self._run, self._plan.settings.path, self._names[self._device])
        except ConfigError as error:
            return error
        return None

    def transport(self) -> PoolTransport:
        """Return this device's rings to and from all others."""
        assert self._pool is not None
        assert self._device is not None
        return PoolTransport(self._pool, self._plan.places, self._device, len(self._plan.hosts))
