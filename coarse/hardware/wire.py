# Pure: no MPI, threads, clock or environment.
"""Wire of a machine: its costs in each direction, and the links of the fabric that stand for it."""

from collections.abc import Iterator
from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.hardware.links import Link
from coarse.hardware.quantities import SizeTable, require_name, require_positive, require_size_table


def reached_bytes_per_s(bytes_per_s: float, latency_s: float, outstanding_bytes: float | None) -> float:
    """Return the rate that is reached if no more than so many bytes are under way until they are answered."""
    if outstanding_bytes is None or not latency_s:
        return bytes_per_s
    return min(bytes_per_s, outstanding_bytes / latency_s)


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Kind of wire; "up" leads away from the device it serves, "down" to it.

    [Note: limits that directions share] A duplex limit is a link that both directions use (a path that goes up and down
    the wire lists it twice, so a transfer draws twice its rate from it). A turn limit is used by a transfer that comes
    up a wire and goes down the same wire again, as does one between two GPUs under one switch that is staged through
    the host (DGX-1: such a pair reaches, in both directions together, half of what two GPUs under two switches reach).
    """

    name: str
    bytes_per_s: float
    """Rate of each direction, for transfers of any length together."""
    latency_s: float = 0.0
    """Seconds of each crossing."""
    up_table: SizeTable = ()
    down_table: SizeTable = ()
    duplex_bytes_per_s: float | None = None
    """Rate of both directions together; None is twice `bytes_per_s`."""
    duplex_table: SizeTable = ()
    turn_bytes_per_s: float | None = None
    """Rate of all transfers that turn around on this wire; None is no limit beside the others."""
    turn_table: SizeTable = ()
    outstanding_bytes: float | None = None
    """Bytes of each direction that may be under way before they are answered. The rate is at most this over the
    latency. None if that never limits."""

    def __post_init__(self) -> None:
        require_name("name", self.name)
        require_positive("bytes_per_s", self.bytes_per_s)
        require_positive("latency_s", self.latency_s, or_zero=True)
        if self.outstanding_bytes is not None:
            require_positive("outstanding_bytes", self.outstanding_bytes)
            if self.up_table or self.down_table:
                raise ConfigError(
                    f"wire {self.name!r} states times by size and outstanding_bytes; the times have its effect "
                    "already, so remove one",
                    key="outstanding_bytes",
                )
        for limit in ("duplex", "turn"):
            key = f"{limit}_bytes_per_s"
            if getattr(self, key) is not None:
                require_positive(key, getattr(self, key))
            elif getattr(self, f"{limit}_table"):
                raise ConfigError(
                    f"{limit}_table of wire {self.name!r} is of no use without {key}; set it",
                    key=f"{limit}_table",
                )
        for direction in ("up", "down", "duplex", "turn"):
            require_size_table(f"{direction}_table", getattr(self, f"{direction}_table"))

    @property
    def reached_bytes_per_s(self) -> float:
        """Rate of each direction, by the wire's own rate and the limit of its latency (Little's law)."""
        return reached_bytes_per_s(self.bytes_per_s, self.latency_s, self.outstanding_bytes)

    def links(self, user: str) -> Iterator[tuple[str, Link]]:
        """Yield (role, link) for one use of the wire: "up", "down", and "duplex" and "turn" if limited."""
        for role in ("up", "down"):
            yield role, self._link(user, role, self.latency_s, self.reached_bytes_per_s)
        for role in ("duplex", "turn"):
            limit: float | None = getattr(self, f"{role}_bytes_per_s")
            if limit is not None:
                yield role, self._link(user, role, 0.0, limit)

    def one_way(self, name: str) -> Link:
        """Return one link for a place that every transfer crosses once, in either direction."""
        return Link(name=name, latency_s=self.latency_s, bytes_per_s=self.reached_bytes_per_s, table=self.up_table)

    def _link(self, user: str, role: str, latency_s: float, bytes_per_s: float) -> Link:
        table: SizeTable = getattr(self, f"{role}_table")
        return Link(name=f"{user} {role}", latency_s=latency_s, bytes_per_s=bytes_per_s, table=table)
