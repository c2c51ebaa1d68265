# Pure: no MPI, threads, clock or environment.
"""Simulated sharded job: units on a cluster, their sharding, and the order of their computation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coarse.errors import ConfigError
from coarse.hardware.degradation import RateChange
from coarse.hardware.links import Link
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.routes import Routes, SiteRoutes
from coarse.simulation.sharded.units import Unit, root_of


@dataclass(frozen=True, kw_only=True)
class ShardedJob:
    """Units on a cluster, and their sharding."""

    units: tuple[Unit, ...]
    """Units in forward order."""
    routes: Routes | SiteRoutes
    policy: ShardedPolicy
    in_flight_limit: int = 2
    backward_prefetch: bool = True
    ring_slow_down: float = 1.0
    """Factor on a GPU's compute time while a collective is under way on it."""
    schedule: Schedule = Schedule.FSDP2
    bucket_nbytes: int = 0
    """Bytes of gradients that are reduced together, and the rest after the last unit; 0: unit by unit."""
    num_microbatches: int = 1
    """Forward and backward passes between two steps of the optimizer, each as long as the units say."""
    reduces_each: bool = False
    """True if gradients are reduced behind each microbatch, not only the last (FSDP 3.3.4: with communication)."""
    changes: tuple[RateChange, ...] = ()
    """Changes of links' rates, by seconds since the iteration began."""

    def __post_init__(self) -> None:
        if not self.units:
            raise ConfigError("a sharded job needs at least one unit, got none", key="units")
        names = [unit.name for unit in self.units]
        if len(set(names)) < len(names):
            raise ConfigError(f"units need different names, got {names[:8]}", key="units")
        if self.bucket_nbytes and self.schedule is Schedule.FSDP2:
            raise ConfigError(
                f"FSDP2 reduces the gradients of each unit by itself, got buckets of {self.bucket_nbytes} bytes; leave "
                "them out, or take the schedule overlapped",
                key="bucket_nbytes",
            )
        if self.num_microbatches < 1:
            raise ConfigError(
                f"an iteration has at least 1 microbatch, got {self.num_microbatches}", key="num_microbatches"
            )
        if self.in_flight_limit < 1:
            raise ConfigError(
                f"at least 1 unit must be allowed in flight, got {self.in_flight_limit}", key="in_flight_limit"
            )

    @property
    def links(self) -> tuple[Link, ...]:
        """Links of the machine."""
        return self.routes.links

    @property
    def compute_s(self) -> float:
        """Seconds of forward and backward alone."""
        return self.num_microbatches * sum(unit.forward_s + unit.backward_s for unit in self.units)


@dataclass(frozen=True, kw_only=True)
class UnitPass:
    """Computation of one unit in one pass."""

    unit: Unit
    is_backward: bool
    is_kept: bool
    """True if the unit stays gathered on the GPU from forward until backward (FCDP-Cache)."""
    gathers: tuple[Unit, ...]
    """Units that have to be there before it is computed, and are not yet."""
    reduces: tuple[Unit, ...] = ()
    """Units whose gradients are complete once it has been computed, and are to be reduced."""
    microbatch: int = 0

    @property
    def compute_s(self) -> float:
        """Seconds of its computation."""
        return self.unit.backward_s if self.is_backward else self.unit.forward_s


def slots_of(job: ShardedJob) -> Iterator[UnitPass]:
    """Yield every unit forward, then every unit backward, for each microbatch.

    With FSDP2's schedule, the parameters outside of the blocks are gathered at the begin of forward, stay until
    backward has ended, and are reduced then.
    """
    kept = {unit.name for unit in job.units[: job.policy.num_cached_units]}
    if not job.policy.reshards:
        kept = {unit.name for unit in job.units}
    root = root_of(job.units) if job.schedule is Schedule.FSDP2 else None
    slots = []
    for unit in job.units:
        own = () if root is not None and unit.is_of_root else (unit,)
        slots.append(
            UnitPass(unit=unit, is_backward=False, is_kept=unit.name in kept, gathers=own, reduces=own)
        )
    if root is not None and root.nbytes:
        slots[0] = replace(slots[0], gathers=(root, *slots[0].gathers), reduces=(*slots[0].reduces, root))
    for microbatch in range(job.num_microbatches):
        reduces = job.reduces_each or microbatch == job.num_microbatches - 1
        yield from (replace(slot, microbatch=microbatch, reduces=()) for slot in slots)
        for slot in reversed(slots):
            again = tuple(unit for unit in slot.gathers if unit is not root)
            yield replace(
                slot, microbatch=microbatch, is_backward=True, gathers=again, reduces=slot.reduces if reduces else ()
            )
