# Pure: no MPI, threads, clock or environment.
"""Sharded modes as the simulator knows them: what is gathered from where, and what is left to do afterwards.

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
    """Schedule of gathers, frees and reductions of units."""

    FSDP2 = "fsdp2"
    """Schedule as live: the parameters outside of the model's blocks are one unit that stays gathered.

    It stays from the begin of forward to the end of backward, and compute waits for each reduce-scatter, whose result
    FSDP2 uses at once.
    """
    OVERLAPPED = "overlapped"
    """Schedule of the papers' systems: every layer is gathered for itself, and reductions run beside compute."""


@dataclass(frozen=True, kw_only=True)
class ShardedPolicy:
    """A mode, and what else decides what moves."""

    sharding: Sharding
    collective: Collective = Collective.HIERARCHICAL
    """Collective; by default that of `fully_shard`."""
    num_cached_units: int = 0
    """fcdp: how many units, in forward order, stay gathered on the GPU from forward to backward (FCDP-Cache, IV-D)."""
    reshards: bool = True
    """True if units are freed behind their forward.

    Else all stay gathered until backward (FSDP's SHARD_GRAD_OP, FSDP2's reshard_after_forward=False).
    """
    keeps_adapters: bool = False
    """True if adapters stay gathered, and one gather after the optimizer's step brings the changes.

    DeepSpeed does so with all tensors below its stage3_param_persistence_threshold.
    """

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
        """The mode's name."""
        return name_of(self.sharding)


class Moves:
    """The chains of one policy on one cluster."""

    def __init__(self, policy: ShardedPolicy, routes: GroupRoutes) -> None:
        self._policy = policy
        self._sharding = policy.sharding
        self._routes = routes
        self._is_ring = policy.collective is Collective.RING
        per_node = len(routes.nodes[0])
        self._factor = policy.sharding.factor_of(len(routes.members), per_node)

    @property
    def keeps(self) -> bool:
        """Return whether something is served from what forward has left."""
        return keeps_any(self._sharding, Keeps.SECOND_SHARDS, Keeps.HOST_COPY)

    def forward_gather(self, unit: Unit, *, is_again: bool = False) -> tuple[Chain, ...]:
        """Return the transfers that must arrive before a unit's forward; frozen parameters come from a warm cache."""
        return self._gathered(self._parts(unit, is_again=is_again))

    def stored(self, unit: Unit, *, is_kept: bool, is_again: bool = False) -> Chain:
        """Return the store that forward leaves: gathers from other nodes are kept on the host, if not on the GPU."""
        if is_kept:
            return ()
        stored = [
            nbytes
            for use, nbytes in self._parts(unit, is_again=is_again)
            if self._sharding.gather(use).keep is Keeps.HOST_COPY
        ]
        return store_on_host(self._routes, sum(stored)) if stored else ()

    def backward_gather(self, unit: Unit, *, is_kept: bool) -> tuple[Chain, ...]:
        """Return the transfers that must arrive before a unit's backward: forward's kept copy equals the parameters."""
        if is_kept:
            return ()
        return self._gathered([(self._use(use.is_trainable, in_backward=True), n) for use, n in self._parts(unit)])

    def reduced(self, nbytes: int) -> Chain:
        """Return the reduction that backward leaves: so many bytes of gradients, of which every GPU keeps its shard."""
        return reduce_scatter(self._routes, nbytes, self._factor, is_ring=self._is_ring)

    def after_step(self, units: Sequence[Unit]) -> Chain:
        """Return the gather behind the optimizer's step: the changes, where parameters stay gathered."""
        if self._sharding.states is States.REPLICATED:
            return self._from_all(sum(unit.trainable_nbytes for unit in units))
        kept = sum(unit.trainable_nbytes - self._without_kept(unit).trainable_nbytes for unit in units)
        return self._from_sharers(kept)

    def _parts(self, unit: Unit, *, is_again: bool = False) -> list[tuple[Use, int]]:
        """Return (Use in forward, bytes) of a unit's trainable parameters, and of its frozen ones.

        `is_again`: in another microbatch, whose parameters are those of the one before.
        """
        unit = self._without_kept(unit)
        uses = (self._use(is_trainable, is_again=is_again) for is_trainable in (True, False))
        return list(zip(uses, (unit.trainable_nbytes, unit.frozen_nbytes), strict=True))

    def _use(self, is_trainable: bool, *, in_backward: bool = False, is_again: bool = False) -> Use:
        """Return a use of parameters that change in each step, or never; a kept copy that equals them is clean."""
        is_kept = keeps_of(self._sharding, is_trainable=is_trainable) is not Keeps.NOTHING
        return Use(in_backward, is_kept and (in_backward or is_again or not is_trainable), is_trainable)

    def _gathered(self, parts: Sequence[tuple[Use, int]]) -> tuple[Chain, ...]:
        """Return one chain where all parts come the same way."""
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
        """Return a gather from all GPUs."""
        return gather_from_all(self._routes, nbytes, is_ring=self._is_ring)

    def _from_sharers(self, nbytes: int) -> Chain:
        """Return a gather from the GPUs that share a model's parameters."""
        return gather_in_groups(self._routes, nbytes, self._factor, is_ring=self._is_ring)
