# Pure: no MPI, threads, clock or environment.
"""Simulated job: gradients and when backward has them, which members sum which, and how ranks differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from coarse.hardware.compute import ComputeProfile
from coarse.hardware.degradation import RateChange
from coarse.hardware.models import Model
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.layout import bucket_limit_bytes, fuse
from coarse.protocol.plan import Facts, Placement
from coarse.protocol.records import Descriptor
from coarse.simulation.jitter import Jitter, compute_factors
from coarse.simulation.sites import Site
from coarse.strategy.rounds import By, Round, first_to_devices
from coarse.strategy.sent import name_in_turn, sent_of, wire_of
from coarse.strategy.strategy import Strategy, require_hints, require_round_of

DTYPE = DType.FLOAT32


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Tensor, or several fused ones, synchronised as a whole."""

    name: str
    num_elements: int
    """Number of elements that travel."""
    ready_s: float
    """Seconds from the start of backward until its last part is there."""
    dtype: DType = DTYPE
    """Type of the elements that travel."""
    op: Op = Op.AVERAGE
    """Operation that combines the elements that travel."""
    is_encoded: bool = False
    """True if something else than its values travels."""
    encode_s: float = 0.0
    """Seconds in which a worker encodes it, amid backward."""
    decode_s: float = 0.0
    """Seconds in which a worker reads its sum."""

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.num_elements * self.dtype.itemsize

    def descriptor(self, priority: int, hint: int = 0, turn: int = 0) -> Descriptor:
        """Return its descriptor, as clients register it."""
        name, shape = name_in_turn(self.name, turn), (self.num_elements,)
        return Descriptor(name, int(self.dtype), int(self.op), shape, priority, hint=hint)

    def sent(self, strategy: Strategy, num_workers: int) -> "Gradient":
        """Return it as it travels by a strategy."""
        descriptor = self.descriptor(0)
        wire = wire_of(strategy, descriptor)
        if wire is None:
            return self
        sent = sent_of(descriptor, wire, num_workers)
        return replace(
            self,
            num_elements=sent.num_elements,
            dtype=DType(sent.dtype),
            op=Op(sent.op),
            is_encoded=True,
            encode_s=self.nbytes / wire.encode_bytes_per_s,
            decode_s=self.nbytes / wire.decode_bytes_per_s,
        )


class StepMoments(NamedTuple):
    """Seconds of one worker's iteration, if nothing else shares its processor."""

    forward_s: float
    ready_s: tuple[float, ...]
    """Seconds from the end of forward until the bytes to send of each gradient are there."""
    backward_s: float
    """Seconds of backward, encoding included."""
    decode_s: float
    """Seconds that pass between the last sum and the step."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Training job on a site: memory devices sum some gradients, the workers the others (COARSE III-F)."""

    site: Site
    placement: Placement
    facts: tuple[Facts, ...]
    """Facts of each worker, from which plans of tensors follow; () if no device sums anything."""
    gradients: tuple[Gradient, ...]
    """Gradients in the order in which backward produces them: the model's last layer first."""
    forward_s: float
    backward_s: float
    round: Round
    """Decision which members sum which gradients, and when these set out; its facts are the job's."""
    ring_slow_down: float = 1.0
    """Factor on a worker's compute time while a ring of the workers is under way."""
    slow_downs: tuple[float, ...] = ()
    """Factor on each worker's compute time; () for equal ones."""
    jitter: Jitter | None = None
    """Random increase of each iteration's compute time."""
    num_iterations: int = 3
    one_stands_for_all: bool = False
    """True if the first worker and its proxy are simulated, as slow as the slowest, for all: see representative.py."""
    profile_every: int = 0
    """Number of iterations after which all workers profile again, and the job is decided anew; 0: never."""
    lag: int = 0
    """Number of rounds by which the sums that a step applies are late."""
    rate_changes: tuple[RateChange, ...] = ()
    """Changes of links' rates while the job runs; its first iteration begins at second 0."""

    def __post_init__(self) -> None:
        _require(len(self.round.by) == len(self.gradients), "round", f"{len(self.round.by)} gradients")
        _require(self.num_iterations >= 1, "num_iterations", self.num_iterations)
        _require(self.profile_every >= 0, "profile_every", self.profile_every)
        _require(self.lag >= 0 and not (self.lag and self.profile_every), "lag", self.lag)
        known = range(len(self.site.links))
        _require(all(change.link in known for change in self.rate_changes), "rate_changes", self.rate_changes)
        _require(self.forward_s >= 0 and self.backward_s >= 0, "compute", (self.forward_s, self.backward_s))
        _require(len(self.slow_downs) in (0, self.num_workers), "slow_downs", self.slow_downs)
        _require(all(factor > 0 for factor in self.slow_downs), "slow_downs", self.slow_downs)
        _require(self.ring_slow_down >= 1, "ring_slow_down", self.ring_slow_down)
        _require(_rises([gradient.ready_s for gradient in self.gradients]), "gradients", "ready in another order")
        late = [gradient.name for gradient in self.gradients if gradient.ready_s > self.backward_s * (1 + 1e-9)]
        _require(not late, "gradients", f"{late[:3]} ready after backward has ended")

    @property
    def num_workers(self) -> int:
        """Number of workers that train."""
        return self.placement.num_clients

    @property
    def strategy(self) -> Strategy:
        """Strategy that plans tensors and decides rounds."""
        strategy = self.placement.planner
        assert isinstance(strategy, Strategy)
        return strategy

    @property
    def num_turns(self) -> int:
        """Number of rounds that may be under way, each with names of its own for all gradients."""
        return self.lag + 1

    def descriptors(self) -> list[Descriptor]:
        """Return the descriptors that clients register, turn by turn, with the hints of the job's strategy."""
        nbytes = [gradient.nbytes for gradient in self.gradients]
        hints = require_hints(self.strategy, self.strategy.hints(nbytes, self.placement.cluster, self.facts), nbytes)
        pairs = list(zip(self.gradients, hints, strict=True))
        return [
            gradient.descriptor(position, hint, turn)
            for turn in range(self.num_turns)
            for position, (gradient, hint) in enumerate(pairs)
        ]

    @property
    def encodes_for_nothing(self) -> bool:
        """True if wires encode gradients in no time."""
        wired = [gradient for gradient in self.gradients if gradient.is_encoded]
        return bool(wired) and not any(gradient.encode_s or gradient.decode_s for gradient in wired)

    def places_by(self, by: By) -> tuple[int, ...]:
        """Return the places among `descriptors` of all that devices, or workers, sum."""
        count = len(self.gradients)
        return tuple(turn * count + at for turn in range(self.num_turns) for at in self.gradients_by(by))

    def place(self, position: int, iteration: int) -> int:
        """Return the place among `descriptors` of a gradient in an iteration."""
        return iteration % self.num_turns * len(self.gradients) + position

    def moments(self, worker: int, iteration: int) -> StepMoments:
        """Return the moments of a worker's step in an iteration; encoding delays all that follows."""
        slow_down, encode_s, decode_s, ready_s = self.slow_down(worker, iteration), 0.0, 0.0, []
        for gradient, by in zip(self.gradients, self.round_at(iteration).by, strict=True):
            if by is not By.NOBODY:
                encode_s += gradient.encode_s
                decode_s += gradient.decode_s
            ready_s.append((gradient.ready_s + encode_s) * slow_down)
        return StepMoments(
            forward_s=self.forward_s * slow_down,
            ready_s=tuple(ready_s),
            backward_s=(self.backward_s + encode_s) * slow_down,
            decode_s=decode_s * slow_down,
        )

    @property
    def num_to_devices(self) -> int:
        """Number of gradients that the devices sum."""
        return self.round.num_to_devices

    def with_split(self, num_to_devices: int) -> "Job":
        """Return the job with so many first gradients summed by the devices and the others by the workers.

        They are held back as before.
        """
        by = first_to_devices(num_to_devices, len(self.gradients)).by
        return replace(self, round=replace(self.round, by=by))

    def round_at(self, iteration: int) -> Round:
        """Return the round of one iteration: which members sum which gradients."""
        return require_round_of(self.strategy, iteration, self.round)

    def gradients_by(self, by: By) -> tuple[int, ...]:
        """Return the positions of the gradients that devices, or workers, sum; in the order of backward."""
        return tuple(position for position, other in enumerate(self.round.by) if other is by)

    @property
    def simulated_workers(self) -> range:
        """Workers that the report has rows of."""
        return range(1 if self.one_stands_for_all else self.num_workers)

    def slow_down(self, worker: int, iteration: int = 0) -> float:
        """Return the factor on a worker's compute time in an iteration.

        It is the slowest's if one stands for all.
        """
        if self.one_stands_for_all:
            return max(self._factors(iteration), default=1.0)
        factors = self._factors(iteration)
        return factors[worker] if factors else 1.0

    def others_idle_s(self, iteration: int) -> float:
        """Return the mean wait of all workers for the slowest's backward; 0 unless one stands for all."""
        factors = self._factors(iteration)
        if not factors or not self.one_stands_for_all:
            return 0.0
        return (max(factors) - fmean(factors)) * (self.forward_s + self.backward_s)

    def _factors(self, iteration: int) -> tuple[float, ...]:
        """Return the factor of every worker; () if all are equal."""
        return compute_factors(self.slow_downs, self.jitter, self.num_workers, iteration)


def _rises(times_s: Sequence[float]) -> bool:
    return all(earlier <= later for earlier, later in pairwise(times_s))


def _require(holds: bool, name: str, came: object) -> None:
    if not holds:
        raise ValueError(f"Job.{name} makes no sense: {came}")


def gradients_of(model: Model, profile: ComputeProfile, *, bucket_bytes: int) -> tuple[Gradient, ...]:
    """Return a model's gradients, with small neighbours fused as DistributedOptimizer does.

    A gradient is ready when the last of its tensors is.
    """
    itemsize = DType.FLOAT32.itemsize
    entries: list[tuple[str, int]] = []
    ready_s: dict[str, float] = {}
    numels: dict[str, int] = {}
    now_s = 0.0
    for layer, seconds in zip(reversed(model.layers), reversed(profile.backward_s), strict=True):
        now_s += seconds
        for name, shape in reversed(layer.parameters):
            numel = math.prod(shape)
            entries.append((name, numel * itemsize))
            ready_s[name], numels[name] = now_s, numel
    limit_bytes = bucket_limit_bytes(sum(nbytes for _, nbytes in entries), bucket_bytes)
    return tuple(
        Gradient(name=names[0], num_elements=sum(numels[name] for name in names), ready_s=ready_s[names[-1]])
        for names in fuse(entries, bucket_bytes=limit_bytes)
    )
