# Pure: no MPI, threads, clock or environment.
"""Sharded modes as objects, which state the transfers that a unit needs and the copies that stay.

`fully_shard` and the simulator read the same ones. Sources: ZeRO-3 (FSDP), hybrid sharding (FSDP 3.2.2; MiCS), ZeRO++
(hpZ, qwZ), FCDP (table I and section IV), ODC.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

from coarse.errors import ConfigError
from coarse.protocol import override


class Source(enum.StrEnum):
    """Source of a unit's parameters."""

    HELD = "held"
    """Nothing moves: each worker has them."""
    ALL = "all workers"
    """Shards of all workers, between nodes."""
    NODE = "the node's workers"
    """Shards within the node: a worker's own in a mesh of two dimensions, else the second ones that it keeps."""
    HOST = "the node's memory"
    """Copy in the node's memory devices."""


class Keeps(enum.StrEnum):
    """Copy that stays of a unit that was gathered, until its parameters change."""

    NOTHING = "nothing"
    SECOND_SHARDS = "second shards"
    """1/L of it with each of a node's L workers."""
    HOST_COPY = "host copy"
    """All of it, once in the memory devices of each node."""


class States(enum.StrEnum):
    """Place of parameters and optimizer states between their uses; for accounts of memory."""

    REPLICATED = "replicated"
    """Parameters everywhere, gradients and optimizer states sharded over all GPUs (ZeRO-2)."""
    SHARDED = "sharded"
    """Everything over all GPUs (ZeRO-3, FCDP)."""
    SECONDARY = "secondary"
    """Everything over all GPUs, and the parameters once more over the GPUs of each node (ZeRO++)."""
    SUBGROUP = "subgroup"
    """Everything over the GPUs of each node (MiCS, hybrid sharding)."""


class Use(NamedTuple):
    """Use of a unit, or of its trainable or frozen part, that is about to begin."""

    in_backward: bool = False
    is_clean: bool = False
    """True if what is kept of it equals its parameters."""
    is_trainable: bool = True


class Gather(NamedTuple):
    """Rule by which a unit is gathered for a use."""

    source: Source
    keep: Keeps = Keeps.NOTHING
    bits: int = 16
    """16: as it is; 8: int8 with a scale for each block (ZeRO++'s qwZ), from all workers."""


class Sum(enum.StrEnum):
    """Arithmetic by which pieces are added."""

    INT64 = "int64"
    """Integers over a window of 80 bits: the bits are equal in any order of arrival."""
    FLOAT32 = "float32"
    """Floats in the order of arrival."""
    WORKER_ORDER = "worker-order"
    """Pieces in the workers' order: the n-th pieces of all workers are added as a collective would add them. All
    workers push equally many."""


SUM_TOP = 18
"""Bits of the largest gradient under `Sum.INT64`: by default gradients lie below 2**18 in size."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Rule of the transfers that a unit needs, and of the copies that stay.

    Subclass it as a frozen dataclass, whose fields are its options. Its methods are pure, and every worker calls them
    in the same way.
    """

    named_in: ClassVar[str] = "a Sharding is named in ct.fully_shard(model, mode=...), coarse shard and coarse predict"
    """Places where such a rule is named, for errors."""
    states: ClassVar[States] = States.SHARDED
    """Account of memory; `SECONDARY` where second shards are kept, `SUBGROUP` with a mesh of two
    dimensions."""
    mesh_dims: ClassVar[int] = 1
    """1: shards over all workers; 2: over the workers of a node, repeated across, whose gradients are summed across."""
    meets: ClassVar[bool] = True
    """False if each worker fetches and pushes on its own, so that no gathers are simulated; the next two attributes
    then name the implementation."""
    shards_by: ClassVar[str] = ""
    """Function that shards a torch model, as MODULE:NAME."""
    predicts_by: ClassVar[str] = ""
    """Function that simulates the mode, as MODULE:NAME: it makes a PredictedIteration of a ShardedScenario."""
    replays_by: ClassVar[str] = ""
    """Simulator of the last iterations of an emulated run, as MODULE:NAME: of a Job, each worker's Logged, the
    counted Iterations, a factor on compute, and a flag for other modes it makes an OwnStep, or says why it cannot
    (coarse.emulation.account)."""

    def gather(self, use: Use) -> Gather:
        """Return how a unit is gathered."""
        raise NotImplementedError(f"{type(self).__name__} has no gather(); return a coarse.strategy.Gather")

    def factor_of(self, num_workers: int, per_node: int) -> int:
        """Return how many workers, neighbours in their order, share a model's parameters (FSDP 3.2: F)."""
        return num_workers if self.mesh_dims == 1 else per_node

    def __str__(self) -> str:
        return name_of(self)


def require_factor(factor: int, num_nodes: int, per_node: int) -> int:
    """Return a number of workers that may share a model's parameters: within nodes, or of whole nodes.

    Raises:
        ConfigError: It is another number; the error lists those that may.
    """
    known = factors_of(num_nodes, per_node)
    if factor not in known:
        raise ConfigError(
            f"a sharding factor of {factor} divides neither the {per_node} workers of a node nor {num_nodes} whole "
            f"nodes; choose one of {', '.join(map(str, known))}",
            key="factor",
        )
    return factor


def factors_of(num_nodes: int, per_node: int) -> tuple[int, ...]:
    """Return every number of workers that may share a model's parameters, rising: 1 is none, the last is all."""
    within = [count for count in range(1, per_node + 1) if per_node % count == 0]
    return (*within, *(per_node * count for count in range(2, num_nodes + 1) if num_nodes % count == 0))


@dataclass(frozen=True, kw_only=True)
class Zero2(Sharding):
    """Mode whose parameters lie everywhere: changes of the optimizer are gathered after its step.

    It is only simulated.
    """

    states: ClassVar[States] = States.REPLICATED

    @override
    def gather(self, use: Use) -> Gather:
        return Gather(Source.HELD)


@dataclass(frozen=True, kw_only=True)
class Fsdp(Sharding):
    """ZeRO-3: every unit is gathered from all workers in forward and again in backward."""

    @override
    def gather(self, use: Use) -> Gather:
        return Gather(Source.ALL)


@dataclass(frozen=True, kw_only=True)
class Hybrid(Sharding):
    """Mode of shards within a node or a subgroup, repeated across (HSDP, MiCS).

    Gradients are summed across too.
    """

    states: ClassVar[States] = States.SUBGROUP
    mesh_dims: ClassVar[int] = 2
    factor: int = 0
    """Workers that share a model's parameters: a part of a node, or whole nodes; 0: those of a node."""

    def __post_init__(self) -> None:
        if not isinstance(self.factor, int) or isinstance(self.factor, bool) or self.factor < 0:
            raise ConfigError(f"factor is a whole number of workers, 0 for a node's, got {self.factor!r}", key="factor")

    @override
    def factor_of(self, num_workers: int, per_node: int) -> int:
        return self.factor or per_node

    @override
    def gather(self, use: Use) -> Gather:
        return Gather(Source.NODE)


@dataclass(frozen=True, kw_only=True)
class ZeroPP(Sharding):
    """Mode that keeps 1/L of the unit on each worker after forward's gather (hpZ).

    The node gathers from these shards in backward.
    """

    states: ClassVar[States] = States.SECONDARY
    quantised: bool = False
    """True to gather int8 in forward (qwZ)."""

    @override
    def gather(self, use: Use) -> Gather:
        if use.in_backward and use.is_clean:
            return Gather(Source.NODE)
        return Gather(Source.ALL, Keeps.SECOND_SHARDS, 8 if self.quantised else 16)


@dataclass(frozen=True, kw_only=True)
class Fcdp(Sharding):
    """Mode that keeps gathered units in the node's memory devices until their parameters change."""

    comm: bool = True
    """True to read them there in forward too, so that frozen ones are never gathered between nodes again (FCDP-Comm).
    """

    @override
    def gather(self, use: Use) -> Gather:
        if use.is_clean and (use.in_backward or self.comm):
            return Gather(Source.HOST)
        return Gather(Source.ALL, Keeps.HOST_COPY)


@dataclass(frozen=True, kw_only=True)
class OnDemand(Sharding):
    """ODC: each worker fetches shards and pushes gradients on its own.

    Workers synchronise once a minibatch.
    """

    meets: ClassVar[bool] = False
    shards_by: ClassVar[str] = "coarse.odc.torch.sharding:shard_on_demand"
    predicts_by: ClassVar[str] = "coarse.odc.simulation.on_demand:simulate_on_demand"
    replays_by: ClassVar[str] = "coarse.odc.simulation.own_step:own_minibatches"

    @override
    def gather(self, use: Use) -> Gather:
        return Gather(Source.ALL)


@dataclass(frozen=True, kw_only=True)
class InNetwork(Sharding):
    """LuWu: parameters and states lie on an optimizer node's disks, and workers pull and push units.

    The live mode is `ct.model_in_network`.
    """

    meets: ClassVar[bool] = False
    predicts_by: ClassVar[str] = "coarse.luwu.simulation.any_model:predict_in_network"

    @override
    def gather(self, use: Use) -> Gather:
        return Gather(Source.ALL)


SHARDINGS: dict[str, type[Sharding]] = {
    "zero2": Zero2,
    "fsdp": Fsdp,
    "hybrid": Hybrid,
    "zeropp": ZeroPP,
    "fcdp": Fcdp,
    "odc": OnDemand,
    "luwu": InNetwork,
}
"""Sharded modes of coarse, by their names."""
SIMULATED = tuple(name for name, kind in SHARDINGS.items() if kind.meets)
"""Modes that the simulator of collectives runs; the others follow another rule of when transfers begin."""
LIVE = tuple(name for name, kind in SHARDINGS.items() if name != "zero2" and (kind.meets or kind.shards_by))
"""Modes of `fully_shard`."""
PREDICTED = tuple(SHARDINGS)
"""Modes of `coarse predict`."""
COLLECTIVE = tuple(name for name in LIVE if name in SIMULATED)
"""Modes that are both live and simulated."""


def name_of(sharding: Sharding) -> str:
    """Return a mode's name: one of coarse's own, or that of its class."""
    return next((name for name, kind in SHARDINGS.items() if kind is type(sharding)), type(sharding).__name__)


def gathers(sharding: Sharding, *, is_trainable: bool | None = None) -> Iterator[tuple[Use, Gather]]:
    """Yield every use, of trainable or frozen parameters or both, and how the unit is gathered for it."""
    kinds = (True, False) if is_trainable is None else (is_trainable,)
    for in_backward, is_clean, trained in product((False, True), (False, True), kinds):
        use = Use(in_backward, is_clean, trained)
        yield use, sharding.gather(use)


def keeps_of(sharding: Sharding, *, is_trainable: bool) -> Keeps:
    """Return the copy that a mode keeps of trainable, or frozen, units; NOTHING where no use keeps one."""
    found = {gather.keep for _, gather in gathers(sharding, is_trainable=is_trainable)} - {Keeps.NOTHING}
    return found.pop() if found else Keeps.NOTHING


def keeps_any(sharding: Sharding, *kinds: Keeps) -> bool:
    """Return whether a mode keeps one of these of trainable units or of frozen ones."""
    return any(keeps_of(sharding, is_trainable=is_trainable) in kinds for is_trainable in (True, False))


def reuses_in_forward(sharding: Sharding, *, is_trainable: bool = True) -> bool:
    """Return whether forward too is served from what is kept while no parameter has changed (FCDP-Comm)."""
    return sharding.gather(Use(is_clean=True, is_trainable=is_trainable)).source in (Source.NODE, Source.HOST)


def require_sharding(sharding: object, mode: str) -> Sharding:
    """Return a sharding whose every gather can be carried out.

    Raises:
        ConfigError: It is no sharding, or one of its uses needs a copy that it does not keep; the error says which.
    """
    if not isinstance(sharding, Sharding):
        raise ConfigError(f"mode {mode}: {sharding!r} is no coarse.strategy.Sharding", key="mode")
    name = type(sharding).__name__
    if sharding.mesh_dims not in (1, 2):
        raise ConfigError(f"{name}.mesh_dims is 1 or 2, got {sharding.mesh_dims!r}; correct the mode", key="mode")
    try:
        every = dict(gathers(sharding))
    except Exception as error:
        said = f"{name}.gather raised {type(error).__name__}: {error}; correct the mode"
        raise ConfigError(said, key="mode") from error
    for use, found in every.items():
        if wrong := "" if _is_gather(found) else "a Gather of a Source and Keeps is wanted":
            raise _wrong(name, use, found, wrong)
    for use, found in every.items():
        kept = {every[other].keep for other in every if other.is_trainable == use.is_trainable} - {Keeps.NOTHING}
        if len(kept) > 1:
            raise _wrong(name, use, found, f"one kind of copy is kept, and these are {', '.join(sorted(kept))}")
        if wrong := _misfit(sharding, use, found, next(iter(kept), Keeps.NOTHING)):
            raise _wrong(name, use, found, wrong)
    return sharding


def _is_gather(found: object) -> bool:
    return isinstance(found, Gather) and isinstance(found.source, Source) and isinstance(found.keep, Keeps)


def _wrong(name: str, use: Use, found: object, why: str) -> ConfigError:
    return ConfigError(f"{name}.gather({use}) returned {found}: {why}; correct the mode", key="mode")


def _misfit(sharding: Sharding, use: Use, found: Gather, own: Keeps) -> str:
    """Return the reason why a gather cannot be carried out where `own` is kept; "" where it can."""
    if found.bits not in (8, 16):
        return f"bits are 16 or 8, got {found.bits!r}"
    if found.bits == 8 and (found.source is not Source.ALL or found.keep is Keeps.HOST_COPY):
        return "int8 is gathered from all workers, and not into the node's memory"
    if (found.source is Source.HELD) != (sharding.states is States.REPLICATED):
        return "HELD is for states that are REPLICATED, and no other source is"
    if sharding.mesh_dims == 2:
        if found.source is Source.ALL or Keeps.SECOND_SHARDS in (found.keep, own):
            return "with mesh_dims = 2 each node has all shards: gather from Source.NODE, and keep no second ones"
    elif found.source is Source.NODE and not (use.is_clean and own is Keeps.SECOND_SHARDS):
        return "a node has second shards where these are kept and clean"
    if found.source is Source.HOST and not (use.is_clean and own is Keeps.HOST_COPY):
        return "the node's memory has a copy where one is kept and clean"
    if found.keep is not Keeps.NOTHING and found.source not in (Source.ALL, Source.NODE):
        return "what is kept is what was gathered"
    if sharding.states is not States.SECONDARY and own is Keeps.SECOND_SHARDS:
        return "second shards take memory: set states = States.SECONDARY"
    return ""
