# Pure: no MPI, threads, clock or environment.
"""Sharded modes as the simulator knows them: sources of each gather, and moves left afterwards.

FSDP and ZeRO-3 gather every unit from all GPUs in forward and again in backward. The others are told apart by where a
unit lies between: Table I and Section IV of FCDP, section 3.2.2 of the FSDP paper for hybrid sharding.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coarse.collectives.shape import Collective
from coarse.errors import ConfigError
from coarse.simulation.sharded.chains import (
    Chain,
    gather_from_all,
    gather_from_host,
    gather_in_groups,
    gather_within,
    reduce_scatter,
    store_on_host,
)
from coarse.simulation.sharded.routes import GroupRoutes
from coarse.simulation.sharded.units import Unit
from coarse.strategy.sharding import Keeps, Sharding, Source, States, Use, keeps_any, keeps_of, name_of


class Schedule(enum.StrEnum):
    """Schedules of gathering, freeing and reducing units."""

    FSDP2 = "fsdp2"
    """Schedule of live training. The parameters outside of the model's blocks are one unit that stays gathered from
    the begin of forward to the end of backward, and compute waits for each reduce-scatter, whose result FSDP2 uses
    at once."""
    OVERLAPPED = "overlapped"
    """Schedule of the papers' systems: every layer is gathered alone, and reductions run beside compute."""


@dataclass(frozen=True, kw_only=True)
class ShardedPolicy:
    """Mode, with the other options that decide what moves."""

    sharding: Sharding
    collective: Collective = Collective.HIERARCHICAL
    """Collective of gathers and reductions; by default that of `fully_shard`."""
    num_cached_units: int = 0
    """Number of units that stay gathered on the GPU from forward to backward, in forward order. It is for fcdp
    (FCDP-Cache, IV-D)."""
    reshards: bool = True
    """True if units are freed behind their forward. Else all stay gathered until backward (FSDP's SHARD_GRAD_OP,
    FSDP2's reshard_after_forward=False)."""
    keeps_adapters: bool = False
    """True if adapters stay gathered. Then one gather after the optimizer's step brings the changed ones, as
    DeepSpeed does with all tensors below its stage3_param_persistence_threshold."""

    def __post_init__(self) -> None:
        if not self.sharding.meets:
            raise ConfigError(
                f"mode {name_of(self.sharding)!r} has no collectives, and those are simulated; ask for another",
                key="modes",
            )
        if self.num_cached_units < 0:
            raise ConfigError(
                f"num_cached_units must be at least 0, got {self.num_cached_units}", key="num_cached_units"
            )

    @property
    def mode(self) -> str:
        """Name of the mode."""
        return name_of(self.sharding)


class UnitTransfers:
    """Chains of one policy on one cluster."""

    def __init__(self, policy: ShardedPolicy, routes: GroupRoutes) -> None:
        self._policy = policy
        self._sharding = policy.sharding
        self._routes = routes
        self._is_ring = policy.collective is Collective.RING
        per_node = len(routes.nodes[0])
        self._factor = policy.sharding.factor_of(len(routes.members), per_node)

    @property
    def keeps(self) -> bool:
        """True if something is served from the copies that forward has left."""
        return keeps_any(self._sharding, Keeps.SECOND_SHARDS, Keeps.HOST_COPY)

    def forward_gather(self, unit: Unit, *, is_again: bool = False) -> tuple[Chain, ...]:
        """Return the chains that end before a unit's forward; frozen parameters are those of a warm cache."""
        return self._gathered(self._parts(unit, is_again=is_again))

    def stored(self, unit: Unit, *, is_kept: bool, is_again: bool = False) -> Chain:
        """Return the chain that forward leaves.

        Parameters from other nodes are kept on the host, if not on the GPU.
        """
        if is_kept:
            return ()
        stored = [
            nbytes
            for use, nbytes in self._parts(unit, is_again=is_again)
            if self._sharding.gather(use).keep is Keeps.HOST_COPY
        ]
        return store_on_host(self._routes, sum(stored)) if stored else ()

    def backward_gather(self, unit: Unit, *, is_kept: bool) -> tuple[Chain, ...]:
        """Return the chains that end before a unit's backward; copies kept by forward equal the parameters."""
        if is_kept:
            return ()
        return self._gathered([(self._use(use.is_trainable, in_backward=True), n) for use, n in self._parts(unit)])

    def reduced(self, nbytes: int) -> Chain:
        """Return the chain that backward leaves: so many bytes of gradients summed, a shard for each GPU."""
        return reduce_scatter(self._routes, nbytes, self._factor, is_ring=self._is_ring)

    def after_step(self, units: Sequence[Unit]) -> Chain:
        """Return the chain after the optimizer's step: changed parameters are gathered if they stay gathered."""
        if self._sharding.states is States.REPLICATED:
            return self._from_all(sum(unit.trainable_nbytes for unit in units))
        kept = sum(unit.trainable_nbytes - self._without_kept(unit).trainable_nbytes for unit in units)
        return self._from_sharers(kept)

    def _parts(self, unit: Unit, *, is_again: bool = False) -> list[tuple[Use, int]]:
        """Return (use in forward, bytes) of a unit's trainable parameters, and of its frozen ones.

        `is_again`: in another microbatch, whose parameters are those of the one before.
        """
        unit = self._without_kept(unit)
        uses = (self._use(is_trainable, is_again=is_again) for is_trainable in (True, False))
        return list(zip(uses, (unit.trainable_nbytes, unit.frozen_nbytes), strict=True))

    def _use(self, is_trainable: bool, *, in_backward: bool = False, is_again: bool = False) -> Use:
        """Return the use of parameters that change in each step, or never.

        It is clean if something is kept of them that equals them.
        """
        is_kept = keeps_of(self._sharding, is_trainable=is_trainable) is not Keeps.NOTHING
        return Use(in_backward, is_kept and (in_backward or is_again or not is_trainable), is_trainable)

    def _gathered(self, parts: Sequence[tuple[Use, int]]) -> tuple[Chain, ...]:
        """Return the chains of a gather: one if all parts come the same way."""
        by_way: dict[tuple[Source, int], int] = {}
        for use, nbytes in parts:
            found = self._sharding.gather(use)
            way = found.source, found.bits
            by_way[way] = by_way.get(way, 0) + nbytes
        return tuple(
            self._chain(source, nbytes if bits == 16 else -(-nbytes // 2))
            for (source, bits), nbytes in by_way.items()
            if source is not Source.HELD
        )

    def _chain(self, source: Source, nbytes: int) -> Chain:
        if source is Source.ALL:
            return self._from_all(nbytes)
        if self._sharding.mesh_dims == 2 and source is Source.NODE:
            return self._from_sharers(nbytes)
        gather = gather_within if source is Source.NODE else gather_from_host
        return gather(self._routes, nbytes)

    def _without_kept(self, unit: Unit) -> Unit:
        """Return the unit without adapters that stay gathered."""
        return replace(unit, trainable_nbytes=0) if self._policy.keeps_adapters and unit.frozen_nbytes else unit

    def _from_all(self, nbytes: int) -> Chain:
        """Gather from all GPUs."""
        return gather_from_all(self._routes, nbytes, is_ring=self._is_ring)

    def _from_sharers(self, nbytes: int) -> Chain:
        """Gather from the GPUs that share a model's parameters."""
        return gather_in_groups(self._routes, nbytes, self._factor, is_ring=self._is_ring)
