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
from coarse.simulation.sharded.routes import Phase, Routes
from coarse.simulation.sharded.units import Unit


class SimulatedMode(enum.StrEnum):
    """Who keeps what."""

    ZERO2 = "zero2"
    """Parameters are everywhere; gradients and optimizer states are sharded."""
    FSDP = "fsdp"
    """ZeRO-3."""
    HYBRID = "hybrid"
    """Sharded within each node and repeated across (HSDP; MiCS with a node as its subgroup)."""
    ZEROPP = "zeropp"
    """ZeRO++: a second shard of every unit on each GPU, from which the node gathers in backward (hpZ)."""
    FCDP = "fcdp"
    """The second shards lie in the host's memory."""


class Schedule(enum.StrEnum):
    """When units are gathered, freed and reduced."""

    FSDP2 = "fsdp2"
    """As live: what lies outside of the model's blocks is one unit that stays gathered from the begin of forward to the
    end of backward, and compute waits for each reduce-scatter, whose result FSDP2 uses at once."""
    OVERLAPPED = "overlapped"
    """As the papers' systems: every layer is gathered for itself, and reductions run beside compute."""


class Stream(enum.StrEnum):
    """What does one thing after the other on every GPU, beside the others."""

    BETWEEN = "between nodes"
    WITHIN = "within a node"
    STORE = "to the host"
    LOAD = "from the host"


Chain = tuple[tuple[Stream, Phase], ...]
"""Moves of which each begins when the one before has ended and its stream has come to it."""


@dataclass(frozen=True, kw_only=True)
class ShardedPolicy:
    """A mode and its options."""

    mode: SimulatedMode
    collective: Collective = Collective.HIERARCHICAL
    """By default that of `fully_shard`."""
    quantised: bool = False
    """zeropp: int8 in forward's gather, half of fp16's bytes (qwZ)."""
    comm: bool = True
    """fcdp: frozen parameters, once gathered, are never gathered from other nodes again (FCDP-Comm)."""
    num_cached_units: int = 0
    """fcdp: how many units, in forward order, stay gathered on the GPU from forward to backward (FCDP-Cache, IV-D)."""
    keeps_adapters: bool = False
    """Whether adapters stay gathered, and one gather after the optimizer's step brings what has changed, as DeepSpeed
    does with all tensors below its stage3_param_persistence_threshold."""

    def __post_init__(self) -> None:
        if self.quantised and self.mode is not SimulatedMode.ZEROPP:
            raise ConfigError(f"quantised gathers belong to the mode zeropp, got {self.mode}", key="quantised")
        if self.num_cached_units < 0:
            raise ConfigError(
                f"num_cached_units must be at least 0, got {self.num_cached_units}", key="num_cached_units"
            )


class Moves:
    """The chains of one policy on one cluster."""

    def __init__(self, policy: ShardedPolicy, routes: Routes) -> None:
        self._policy = policy
        self._routes = routes

    @property
    def keeps(self) -> bool:
        """Whether backward is served from what forward has left."""
        return self._policy.mode in (SimulatedMode.ZEROPP, SimulatedMode.FCDP)

    def forward_gather(self, unit: Unit) -> tuple[Chain, ...]:
        """What must arrive before a unit's forward; frozen parameters are those of a warm cache."""
        policy, unit = self._policy, self._without_kept(unit)
        match policy.mode:
            case SimulatedMode.ZERO2:
                return ()
            case SimulatedMode.HYBRID:
                return (self._within(unit.nbytes),)
            case SimulatedMode.ZEROPP if policy.quantised:
                return (self._gather(-(-unit.nbytes // 2)),)
            case SimulatedMode.FCDP if policy.comm:
                return self._gather(unit.trainable_nbytes), self._from_node(unit.frozen_nbytes)
            case _:
                return (self._gather(unit.nbytes),)

    def stored(self, unit: Unit, *, is_kept: bool) -> Chain:
        """What forward leaves to do: what was gathered from other nodes is kept on the host, if not on the GPU."""
        if self._policy.mode is not SimulatedMode.FCDP or is_kept:
            return ()
        unit = self._without_kept(unit)
        nbytes = unit.trainable_nbytes if self._policy.comm else unit.nbytes
        return ((Stream.STORE, self._routes.host_copies(nbytes, to_host=True)),)

    def backward_gather(self, unit: Unit, *, is_kept: bool) -> tuple[Chain, ...]:
        """What must arrive before a unit's backward."""
        if is_kept:
            return ()
        unit = self._without_kept(unit)
        match self._policy.mode:
            case SimulatedMode.ZERO2:
                return ()
            case SimulatedMode.FSDP:
                return (self._gather(unit.nbytes),)
            case SimulatedMode.HYBRID | SimulatedMode.ZEROPP:
                return (self._within(unit.nbytes),)
            case SimulatedMode.FCDP:
                return (self._from_node(unit.nbytes),)

    def reduced(self, nbytes: int) -> Chain:
        """What backward leaves to do: the sum of so many bytes of gradients, of which every GPU keeps its shard."""
        routes = self._routes
        if self._policy.mode is SimulatedMode.HYBRID:
            return (
                (Stream.WITHIN, routes.within(nbytes)),
                (Stream.BETWEEN, routes.rails(nbytes, num_passes=2)),
            )
        if self._policy.collective is Collective.RING:
            return ((Stream.BETWEEN, routes.ring(nbytes)),)
        return ((Stream.WITHIN, routes.within(nbytes)), (Stream.BETWEEN, routes.rails(nbytes)))

    def after_step(self, units: Sequence[Unit]) -> Chain:
        """What follows the optimizer's step: what has changed is gathered where parameters stay gathered."""
        if self._policy.mode is SimulatedMode.ZERO2:
            return self._gather(sum(unit.trainable_nbytes for unit in units))
        kept = sum(unit.trainable_nbytes - self._without_kept(unit).trainable_nbytes for unit in units)
        return self._within(kept) if self._policy.mode is SimulatedMode.HYBRID else self._gather(kept)

    def _without_kept(self, unit: Unit) -> Unit:
        """The unit without adapters that stay gathered."""
        return replace(unit, trainable_nbytes=0) if self._policy.keeps_adapters and unit.frozen_nbytes else unit

    def _gather(self, nbytes: int) -> Chain:
        """From all GPUs."""
        if self._policy.collective is Collective.RING:
            return ((Stream.BETWEEN, self._routes.ring(nbytes)),)
        return (Stream.BETWEEN, self._routes.rails(nbytes)), *self._within(nbytes)

    def _within(self, nbytes: int) -> Chain:
        """From the GPUs of the node."""
        return ((Stream.WITHIN, self._routes.within(nbytes)),)

    def _from_node(self, nbytes: int) -> Chain:
        """From the node's copy on the host: each GPU loads its part, and the node gathers (FCDP IV-C)."""
        return (Stream.LOAD, self._routes.host_copies(nbytes, to_host=False)), *self._within(nbytes)
