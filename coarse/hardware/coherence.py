# Pure: no MPI, threads, clock or environment.
"""Loads and stores to shared memory, kept coherent by snooping or by flushes."""

from dataclasses import dataclass

from coarse.hardware.quantities import require_positive
from coarse.hardware.wire import Wire, reached_bytes_per_s

SNOOP_OVER_LINE = 1 / 5
"""Growth per sharer. A line of 64 bytes takes five slots of CXL's 68-byte flits, its header and four of data; to
snoop one more sharer takes one slot each way. A protocol with filters asks fewer, and one that lets sharers take
turns has 1."""


@dataclass(frozen=True, kw_only=True)
class Coherence:
    """Loads and stores of one client to coherent device memory (DENSE, COARSE III and V-B).

    Within a host, and over CXL 3, hardware keeps memory coherent: each access asks the sharers. A pool of CXL 2.0 is
    not coherent between hosts, and software flushes after a store and invalidates before a load (cMPI, arXiv
    2510.05476): no access asks a sharer, and each takes the time of flushing its lines in addition.
    """

    load_bytes_per_s: float
    store_bytes_per_s: float
    latency_s: float
    sharer_growth: float
    """Part of a lone client's time that each further sharer of the memory adds to every access. With flushes none
    does. SNOOP_OVER_LINE is for machines of which nothing else is known."""
    load_outstanding_bytes: float | None = None
    """Cache lines that a client has under way at once, in bytes. The rate of loads is at most this over the latency.
    None if latency is hidden, however long."""
    store_outstanding_bytes: float | None = None
    software_flush_bytes_per_s: float | None = None
    """Rate at which lines are flushed or invalidated. Software keeps the memory coherent if this or the latency is
    stated; the other is then no limit."""
    software_flush_latency_s: float | None = None
    """Seconds from the last flush until it is done, once an access."""

    def __post_init__(self) -> None:
        for key in ("load_bytes_per_s", "store_bytes_per_s"):
            require_positive(key, getattr(self, key))
        for key in ("latency_s", "sharer_growth"):
            require_positive(key, getattr(self, key), or_zero=True)
        for key in ("load_outstanding_bytes", "store_outstanding_bytes", "software_flush_bytes_per_s"):
            if getattr(self, key) is not None:
                require_positive(key, getattr(self, key))
        if self.software_flush_latency_s is not None:
            require_positive("software_flush_latency_s", self.software_flush_latency_s, or_zero=True)

    @property
    def is_by_software(self) -> bool:
        """True if flushes keep the memory coherent."""
        return self.software_flush_bytes_per_s is not None or self.software_flush_latency_s is not None

    def slowdown(self, num_sharers: int) -> float:
        """Return the factor on the time of an access if `num_sharers` share the memory."""
        return 1.0 if self.is_by_software else 1 + self.sharer_growth * (num_sharers - 1)

    def wires(self, num_sharers: int) -> tuple[Wire, ...]:
        """Return wires "load" and "store" at one client's rates, as slow as sharers or flushes make them."""
        return (
            self._wire("load", self.load_bytes_per_s, self.load_outstanding_bytes, num_sharers),
            self._wire("store", self.store_bytes_per_s, self.store_outstanding_bytes, num_sharers),
        )

    def _wire(self, name: str, bytes_per_s: float, outstanding_bytes: float | None, num_sharers: int) -> Wire:
        if not self.is_by_software:
            slower = self.slowdown(num_sharers)
            latency_s = self.latency_s * slower
            rate = bytes_per_s / slower
            return Wire(name=name, bytes_per_s=rate, latency_s=latency_s, outstanding_bytes=outstanding_bytes)
        byte_s = 1 / reached_bytes_per_s(bytes_per_s, self.latency_s, outstanding_bytes)
        byte_s += 1 / (self.software_flush_bytes_per_s or float("inf"))
        latency_s = self.latency_s + (self.software_flush_latency_s or 0.0)
        return Wire(name=name, bytes_per_s=1 / byte_s, latency_s=latency_s)
