# Pure: no MPI, threads, clock or environment.
"""Memory that all nodes share: devices behind a switch, or with a head for each node; crossing costs."""

import math
from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.hardware.links import Link
from coarse.hardware.quantities import require_positive
from coarse.hardware.wire import Wire, reached_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class SharedPool:
    """Pool of memory devices, which one node stores into and another loads from to send bytes.

    Bytes are interleaved over all devices, so that each transfer has its share of all of them (CCCL, arXiv 2602.22457).
    """

    wire: Wire
    """Wire from each node's host to the switch, or to the devices' heads; "up" stores."""
    num_devices: int
    device_bytes_per_s: float
    """Rate of one device, for loads and stores together."""
    device_latency_s: float
    store_bytes_per_s: float | None = None
    """Most that one node stores, if that is less than its wire's rate."""
    switch: Wire | None = None
    """Switch that all transfers cross together between hosts and devices. None for devices with a head for each
    host."""
    num_uncontended_hosts: int | None = None
    """Most hosts that use the devices at full rate together; None for any number."""
    contention_growth: float = 0.0
    """Part that each host more adds to the time of every byte in the devices."""
    software_flush_bytes_per_s: float | None = None
    """Rate at which lines are flushed after a store and invalidated before a load. None if hardware is coherent, or
    if the engine that stores and loads has no caches (a GPU's copy engine)."""
    software_flush_latency_s: float = 0.0

    def __post_init__(self) -> None:
        for key in ("num_devices", "num_uncontended_hosts"):
            count = getattr(self, key)
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
                raise ConfigError(f"{key} must be a whole number of at least 1, got {count!r}", key=key)
        require_positive("device_bytes_per_s", self.device_bytes_per_s)
        for key in ("device_latency_s", "contention_growth", "software_flush_latency_s"):
            require_positive(key, getattr(self, key), or_zero=True)
        for key in ("software_flush_bytes_per_s", "store_bytes_per_s"):
            if getattr(self, key) is not None:
                require_positive(key, getattr(self, key))

    def devices_bytes_per_s(self, num_hosts: int) -> float:
        """Return the rate of all devices together for so many hosts."""
        more = 0 if self.num_uncontended_hosts is None else max(0, num_hosts - self.num_uncontended_hosts)
        return self.num_devices * self.device_bytes_per_s / (1 + self.contention_growth * more)

    def port(self, name: str, *, stores: bool) -> Link:
        """Return one direction of one node's way.

        It has its wire, the switch's and the devices' latency, and the flushes.
        """
        rate = min(self.wire.bytes_per_s, self.store_bytes_per_s or math.inf) if stores else self.wire.bytes_per_s
        crossing_s = 0.0 if self.switch is None else self.switch.latency_s
        way_s = self.wire.latency_s + crossing_s + self.device_latency_s
        byte_s = 1 / reached_bytes_per_s(rate, way_s, self.wire.outstanding_bytes)
        byte_s += 1 / (self.software_flush_bytes_per_s or math.inf)
        return Link(name=name, latency_s=way_s + self.software_flush_latency_s, bytes_per_s=1 / byte_s)

    def shared(self, num_hosts: int) -> tuple[Link, ...]:
        """Return the links that the ways of all nodes share: the devices, and the switch if there is one."""
        devices = Link(name="pool devices", latency_s=0.0, bytes_per_s=self.devices_bytes_per_s(num_hosts))
        if self.switch is None:
            return (devices,)
        return devices, Link(name="pool switch", latency_s=0.0, bytes_per_s=self.switch.bytes_per_s)
