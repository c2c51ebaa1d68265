# Pure: no MPI, threads, clock or environment.
"""Base class of strategies, which decide who sums which tensor, where and when; and their view."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from coarse.errors import ConfigError
from coarse.protocol.plan import Cluster, Facts, Plan, Tensor
from coarse.strategy.dual_sync import SyncRates
from coarse.strategy.rounds import By, Round
from coarse.strategy.routing import ProxyProfile
from coarse.strategy.wires import Wire


class Access(enum.Enum):
    """Way by which workers' bytes reach device memory."""

    COPY = "copy"
    """Copies, along the way of pushes and pulls."""
    COHERENT = "coherent"
    """Loads and stores of the worker itself (COARSE III-B)."""


class Exchanges(enum.Enum):
    """Quantity that a bucket holds and that is summed."""

    GRADIENTS = "gradients"
    """Gradients of each step, as backward produces them: all workers take equal steps."""
    UPDATES = "updates"
    """Changes that a worker's own steps made since the last exchange, sent after a step: workers step independently
    between exchanges."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of one worker's step without synchronisation; the mean over workers."""

    forward_s: float
    backward_s: float
    ready_s: tuple[float, ...]
    """Seconds from the start of backward until each bucket is complete."""


class View(Protocol):
    """Knowledge at a border between two rounds, equal on all workers.

    It is measured live, and modelled in a simulation.
    """

    @property
    def cluster(self) -> Cluster:
        """Workers and memory devices; a live view has two workers and a device that stand for all."""
        ...

    @property
    def facts(self) -> tuple[Facts, ...]:
        """Facts of each worker, as `Strategy.facts` returned them."""
        ...

    @property
    def nbytes(self) -> Sequence[int]:
        """Bytes of each bucket, in the order of backward."""
        ...

    @property
    def step(self) -> StepTimes:
        """Times of a worker's step."""
        ...

    @property
    def rates(self) -> SyncRates:
        """Members and bandwidths of the devices' ring and of the workers' (COARSE III-F)."""
        ...

    @property
    def least_gain(self) -> float:
        """Share of an iteration below which a gain is within what measurements tell; 0 where all is modelled."""
        ...

    @property
    def least_shared_s(self) -> float:
        """Seconds below which no iteration ends if the workers sum a part of it; 0 where that is not known."""
        ...

    def iteration_s(self, decided: Round, *, iterations: int = 1) -> float:
        """Return the seconds of an iteration with these rounds, simulated on the links as they are known.

        Args:
            decided: The round to repeat, with `facts` other than the view's where it has some.
            iterations: Number of iterations to simulate; the mean of all counts.
        """
        ...


class Strategy:
    """Rule of who sums which tensor, where and when.

    Subclass it as a frozen dataclass, whose fields are its options.

    All methods are pure: equal arguments give equal answers on every rank. Workers and memory devices both ask it, so
    its module may import the standard library, numpy and `coarse.strategy` alone.
    """

    named_in: ClassVar[str] = (
        "a Strategy is the job's: coarse run --mode, or the optimizer's: ct.DistributedOptimizer(strategy=...)"
    )
    """Places where such a rule is named, for errors."""
    access: ClassVar[Access] = Access.COPY
    """Way of workers' bytes into device memory."""
    exchanges: ClassVar[Exchanges] = Exchanges.GRADIENTS
    """Quantity that buckets hold."""
    uses_devices: ClassVar[bool] = True
    """False where `decide` leaves every bucket to the workers: they keep buckets in memory of their own, and a
    predicted job has no memory devices."""
    tries: ClassVar[bool] = False
    """True if a live job runs a few steps as decided, and keeps to devices alone where these were faster."""

    def check(self, cluster: Cluster) -> None:
        """Raise ConfigError where the strategy cannot work on the cluster."""

    def num_devices(self, asked: int, num_workers: int) -> int:
        """Return the number of memory devices of a predicted or emulated job.

        Args:
            asked: The number that was asked for; 0 where none was.
            num_workers: Workers of the job.
        """
        return (asked or num_workers) if self.uses_devices else 0

    @property
    def probes(self) -> tuple[int, ...]:
        """Bytes of the copies that each worker times on its way to each device of its node, rising; () for none.

        Timed at the start of a job, and again where it profiles as it runs; see `facts`.
        """
        return ()

    def facts(self, worker: int, ways: Sequence[ProxyProfile], cluster: Cluster) -> Facts:
        """Return the whole numbers that a worker tells all others, from what it has measured.

        Args:
            worker: The worker that measured.
            ways: Its way to each device of its node; () without `probes`.
            cluster: Workers and devices.
        """
        return ()

    def is_settled(self, facts: Facts, worker: int, cluster: Cluster) -> bool:
        """Return whether facts need no further rounds of measurements; else the best of four counts."""
        return False

    @property
    def profile_every_steps(self) -> int | None:
        """Optimizer steps after which a live job times ways anew; None for never."""
        return None

    @property
    def meets_within_nodes(self) -> bool:
        """False if no plan has two devices of one node in a block, so that one node's devices send nothing."""
        return True

    def measured_again(
        self, used: tuple[Facts, ...], measured: tuple[Facts, ...], cluster: Cluster
    ) -> tuple[Facts, ...]:
        """Return the facts to use after ways were measured once more, instead of those in use."""
        return measured

    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        """Return the plan of a tensor; see `on_each_node`, `ring_of_all` and `central`.

        It says where the tensor lies and who sums it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no plan(); return one of coarse.strategy's, or a Plan")

    def hints(self, nbytes: Sequence[int], cluster: Cluster, facts: tuple[Facts, ...]) -> Sequence[int]:
        """Return a number for each bucket of a model, for plans that have to know all buckets: `Tensor.hint`.

        Args:
            nbytes: Bytes of each bucket, in the order of backward.
            cluster: Workers and devices.
            facts: Facts that each worker told all others, by worker.
        """
        return [0] * len(nbytes)

    def wire(self, tensor: Tensor) -> Wire | None:
        """Return the wire of a bucket of float32 or float64; None for values that travel as they are.

        It is asked for buckets of gradients and of updates, not for arrays of a script. The tensor's hint is 0.
        """
        return None

    @property
    def has_wires(self) -> bool:
        """True if `wire` may replace a bucket's values by something else."""
        return type(self).wire is not Strategy.wire

    @property
    def lag(self) -> int:
        """Rounds by which the sums that a step applies are late.

        With 1 a step applies the sums of the step before, which travel in parallel with it. The first `lag` steps find
        zeros, and change nothing (coarse.torch).
        """
        return 0

    @property
    def shares(self) -> bool:
        """True if `decide` may leave buckets to the workers, so that steps are timed before it is asked."""
        return type(self).decide is not Strategy.decide

    def decide(self, view: View) -> Round:
        """Return the round to repeat until the next border; by default the devices sum every bucket."""
        return Round(by=(By.DEVICES,) * len(view.nbytes))

    @property
    def period(self) -> int:
        """Rounds after which `round` repeats: a prediction is the mean over as many iterations."""
        return 1

    def round(self, number: int, decided: Round) -> Round:
        """Return round `number`, counted from 0.

        It is `decided`. Where updates are exchanged, some of its buckets may stay as they are (By.NOBODY).
        """
        return decided

    def outer(self, mean: np.ndarray, state: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the update that follows from the mean of all workers' updates.

        The next state of this outer optimizer comes with it.

        Args:
            mean: Changes of a bucket's parameters since the last exchange, (n,) float32 or float64; the mean over
                workers.
            state: State that the last call returned for the bucket, (n,) of the same type; None at first.
        """
        return mean, state


def require_round(strategy: Strategy, decided: object, num_buckets: int, method: str = "decide") -> Round:
    """Return the round that a method returned; ConfigError where it is no round of so many buckets."""
    if isinstance(decided, Round) and len(decided.by) == num_buckets and all(isinstance(by, By) for by in decided.by):
        return decided
    raise ConfigError(
        f"{type(strategy).__name__}.{method} must return a Round that says who sums each of {num_buckets} buckets, got "
        f"{decided!r}; correct the strategy",
        key="mode",
    )


def require_round_of(strategy: Strategy, number: int, decided: Round) -> Round:
    """Return round `number` of a strategy; ConfigError where it moves buckets, or leaves gradients out."""
    if type(strategy).round is Strategy.round:
        return decided
    found = require_round(strategy, strategy.round(number, decided), len(decided.by), "round")
    pairs = list(zip(found.by, decided.by, strict=True))
    if any(by not in (By.NOBODY, at_first) for by, at_first in pairs):
        raise ConfigError(
            f"{type(strategy).__name__}.round({number}) gives buckets to others than decide() did; leave some out "
            "(By.NOBODY), or decide otherwise",
            key="mode",
        )
    if strategy.exchanges is Exchanges.GRADIENTS and found.num_exchanged < decided.num_exchanged:
        raise ConfigError(
            f"{type(strategy).__name__}.round({number}) leaves gradients out, by which workers would come to differ; "
            "set exchanges = Exchanges.UPDATES",
            key="mode",
        )
    return found


_MOST_LAG = 64


def require_lag(strategy: Strategy) -> int:
    """Return the rounds by which sums come late; ConfigError where the strategy cannot have them so."""
    lag, name = strategy.lag, type(strategy).__name__
    if type(lag) is not int or not 0 <= lag <= _MOST_LAG:
        raise ConfigError(
            f"{name}.lag must be a whole number from 0 to {_MOST_LAG}, got {lag!r}; correct the strategy", key="mode"
        )
    if lag and strategy.exchanges is Exchanges.UPDATES:
        raise ConfigError(
            f"{name} exchanges updates, and its sums come {lag} rounds late; an update belongs to the parameters that "
            "it was made from: leave lag out, or exchange gradients",
            key="mode",
        )
    if lag and strategy.profile_every_steps:
        raise ConfigError(
            f"{name}'s sums come {lag} rounds late, so that there is no moment without any for measuring anew; leave "
            "routing.profile_every_steps out",
            key="routing",
        )
    return lag


_LOOKED_AT = 16


def require_rounds(strategy: Strategy) -> None:
    """Refuse a strategy whose first rounds move buckets or leave gradients out, or whose sums cannot be late."""
    require_lag(strategy)
    decided = Round(by=(By.DEVICES, By.DEVICES))
    for number in range(max(strategy.period, _LOOKED_AT) if type(strategy).round is not Strategy.round else 0):
        require_round_of(strategy, number, decided)


def require_hints(strategy: Strategy, hints: object, nbytes: Sequence[int]) -> Sequence[int]:
    """Return hints as descriptors have them; ConfigError where they are not a whole number for each bucket."""
    if isinstance(hints, Sequence) and len(hints) == len(nbytes) and all(map(_is_whole, hints)):
        return hints
    raise ConfigError(
        f"{type(strategy).__name__}.hints must return a whole number of 64 bits for each of {len(nbytes)} buckets, got "
        f"{hints!r}; correct the strategy",
        key="mode",
    )


def require_facts(strategy: Strategy, facts: object) -> Facts:
    """Return facts as they travel; ConfigError where they are not whole numbers of 64 bits."""
    if isinstance(facts, tuple) and all(map(_is_whole, facts)):
        return facts
    raise ConfigError(
        f"{type(strategy).__name__}.facts must be a tuple of whole numbers of 64 bits, got {facts!r}; round them, in a "
        "unit that leaves enough digits",
        key="mode",
    )


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 63
