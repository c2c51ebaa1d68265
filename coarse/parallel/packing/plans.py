# Pure: no MPI, threads, clock or environment.
"""Plan of a minibatch: the samples of each rank and microbatch, and the time that they take."""

from collections.abc import Sequence
from dataclasses import dataclass

from coarse.errors import CapacityError, ConfigError
from coarse.parallel.packing.costs import Cost

Microbatch = tuple[int, ...]
"""Numbers of samples; empty: a pass of weight 0, which others wait for."""


@dataclass(frozen=True)
class MinibatchPlan:
    """Plan of a minibatch: the microbatches of each rank, in order."""

    ranks: tuple[tuple[Microbatch, ...], ...]

    @property
    def num_microbatches(self) -> tuple[int, ...]:
        """Number of microbatches of each rank."""
        return tuple(map(len, self.ranks))

    @property
    def is_in_step(self) -> bool:
        """True if all ranks have equally many microbatches, without which FSDP's collectives wait for ever."""
        return len(set(self.num_microbatches)) <= 1

    def samples(self, rank: int) -> tuple[int, ...]:
        """Return the samples of a rank, in the order in which it computes them."""
        return tuple(sample for microbatch in self.ranks[rank] for sample in microbatch)

    def costs(self, lengths: Sequence[int], cost: Cost) -> list[list[float]]:
        """Return the costs by rank and microbatch."""
        return [[cost.of_all(lengths[sample] for sample in one) for one in of_rank] for of_rank in self.ranks]

    def lockstep_s(self, lengths: Sequence[int], cost: Cost) -> float:
        """Return the seconds of ranks that wait for one another in each microbatch, as FSDP's do.

        They are the sum of the slowest (ODC's T(P)).

        Raises:
            ConfigError: some have more microbatches than others.
        """
        if not self.is_in_step:
            raise ConfigError(
                f"ranks have {list(self.num_microbatches)} microbatches, and collectives need equally many; take "
                "lb_micro, or the mode odc",
                key="plan",
            )
        by_rank: list[list[float]] = self.costs(lengths, cost)
        slowest: list[float] = [max(of_all) for of_all in zip(*by_rank, strict=True)]
        return sum(slowest)

    def independent_s(self, lengths: Sequence[int], cost: Cost) -> float:
        """Return the seconds of ranks that meet once a minibatch: the slowest one's sum (ODC)."""
        return max(sum(of_rank) for of_rank in self.costs(lengths, cost))

    def idle_share(self, lengths: Sequence[int], cost: Cost, *, in_step: bool) -> float:
        """Return the mean share of a minibatch's time for which ranks wait for others."""
        took_s = self.lockstep_s(lengths, cost) if in_step else self.independent_s(lengths, cost)
        busy_s = sum(map(sum, self.costs(lengths, cost)))
        return 1.0 - busy_s / (len(self.ranks) * took_s) if took_s else 0.0


def require_lengths(lengths: Sequence[int], num_ranks: int, cap: int | None = None) -> None:
    """Check lengths, ranks and a cap.

    Raises:
        ConfigError: no samples, no ranks, or a length or cap that is none.
        CapacityError: a sample that is longer than the cap.
    """
    if num_ranks < 1:
        raise ConfigError(f"wanted at least one rank, got {num_ranks}", key="num_ranks")
    if not len(lengths):
        raise ConfigError("a minibatch without samples cannot be divided; give it some", key="lengths")
    if cap is not None and cap < 1:
        raise ConfigError(f"a microbatch holds at least one token, got a cap of {cap}", key="cap")
    for sample, length in enumerate(lengths):
        if length < 0:
            raise ConfigError(f"sample {sample} has {length} tokens; lengths are at least 0", key="lengths")
        if cap is not None and length > cap:
            raise CapacityError(
                f"sample {sample} has {length} tokens, and a microbatch holds {cap}; raise the cap, or cut the sample"
            )
