"""FSDP figures 6b and 6c: backward's prefetch, and the limit of all-gathers in flight, on GPT-175B.

    python -m experiments.fsdp_paper.fig6_overlap --out results/fsdp-fig6

Input: the pace of an A100, links. Outcome: iterations. What an allocator loses when too much is in flight (15.33 s
for 5.02 s in Fig. 6c) is not modelled: here the limit costs or saves overlap alone, and memory.
"""

from collections.abc import Iterator
from functools import cache

from coarse.collectives.shape import Collective
from coarse.simulation.sharded.iteration import simulate_sharded
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.report import ShardedReport
from coarse.simulation.sharded.routes import Routes
from coarse.simulation.sharded.units import Unit
from coarse.strategy.sharding import Fsdp
from experiments.fsdp_paper.machines import GPUS_PER_HOST, TITLE, Inputs, a100_cluster, inputs_now
from experiments.validation.claims import ClaimRow, Number, Order, claim_row
from experiments.validation.claims import Unit as Shown
from experiments.validation.script import main

HIDDEN = 12288
NUM_BLOCKS = 24
SEQUENCE = 2048
NUM_HOSTS = 16
INPUTS = ("A100 host", "RoCE", "A100 compute", "GPT-175B", "one stream")
_SAME = 0.01


def rows() -> list[ClaimRow]:
    """Figures 6b and 6c."""
    return [*_prefetch(), *_limits()]


def blocks(batch: int) -> tuple[Unit, ...]:
    """GPT-175B's, of which each is a unit; backward computes forward again."""
    numel = 12 * HIDDEN**2
    forward_s = 2 * numel * SEQUENCE * batch / inputs_now().flops_per_s
    return tuple(
        Unit(name=f"h.{number}", trainable_nbytes=2 * numel, forward_s=forward_s, backward_s=3 * forward_s)
        for number in range(NUM_BLOCKS)
    )


def simulated(*, batch: int, prefetch: bool = True, limit: int = 2) -> ShardedReport:
    """One iteration of 128 GPUs."""
    return _simulated(inputs_now(), batch, prefetch=prefetch, limit=limit)


@cache
def _simulated(_: Inputs, batch: int, *, prefetch: bool, limit: int) -> ShardedReport:
    return simulate_sharded(
        ShardedJob(
            units=blocks(batch),
            routes=Routes(machine=a100_cluster(NUM_HOSTS), num_nodes=NUM_HOSTS, gpus_per_node=GPUS_PER_HOST),
            policy=ShardedPolicy(sharding=Fsdp(), collective=Collective.RING),
            schedule=Schedule.OVERLAPPED,
            backward_prefetch=prefetch,
            in_flight_limit=limit,
        )
    )


def _prefetch() -> Iterator[ClaimRow]:
    for batch in (1, 2):
        without_s, with_s = (simulated(batch=batch, prefetch=prefetch).iteration_s for prefetch in (False, True))
        yield claim_row(
            f"GPT-175B, 128 GPUs, batch {batch}: what backward's prefetch gains", "5.2, Fig. 6b", "about +18 %",
            Number(1.18, 1.18), [without_s / with_s], Shown.CHANGE, inputs=INPUTS,
            why="a batch twice as large computes twice as long beside the same bytes; the paper's batch is not noted",
        )  # fmt: skip


def _limits() -> Iterator[ClaimRow]:
    times_s = {limit: simulated(batch=1, limit=limit).iteration_s for limit in (1, 2, 8)}
    yield claim_row(
        "GPT-175B, batch 1: iterations with 1, 2 and 8 units in flight, over that with 2", "3.4.2",
        "2 suffice for overlap",
        Order(times_s[1] > (1 + _SAME) * times_s[2] and abs(times_s[8] / times_s[2] - 1) < _SAME),
        [seconds / times_s[2] for seconds in times_s.values()], Shown.TIMES, inputs=INPUTS,
    )  # fmt: skip
    most = [simulated(batch=1, limit=limit).most_in_flight for limit in (1, 2, 8)]
    yield claim_row(
        "units in flight at most, limits 1, 2 and 8", "3.4.2", "at most 2 by the limiter", Order(most[:2] == [1, 2]),
        most, Shown.COUNT, inputs=("one stream",),
    )  # fmt: skip


if __name__ == "__main__":
    main(rows, None, __doc__, title=TITLE)
