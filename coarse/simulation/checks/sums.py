"""Check of a strategy's real sums: a whole job in one process, with messages in any order."""

import random
from collections.abc import Callable

import numpy as np

from coarse.protocol.dtypes import Op
from coarse.protocol.plan import Cluster
from coarse.simulation.checks.loopback import Loopback
from coarse.simulation.checks.plans import WrongStrategy, cluster_of, facts_of, hints_of, placement_of
from coarse.strategy.strategy import Strategy

NUM_LAYOUTS, NUM_ORDERS = 12, 200
_SIZES = (1, 7, 300, 5_000)
_TURNS = 2
_TWO_BY_TWO = Cluster(worker_nodes=(0, 0, 1, 1), device_nodes=(0, 0, 1, 1), local_devices=(0, 1, 2, 3))
_ONE_NODE = Cluster(worker_nodes=(0, 0), device_nodes=(0, 0), local_devices=(0, 1))


def require_sums(make: Callable[[], Strategy], seed: int = 0) -> int:
    """Return how many sums were made and are right, on random layouts and in random orders of messages.

    Raises:
        WrongStrategy: a sum that is wrong, or a wait without end.
    """
    strategy, rng, made = make(), random.Random(seed), 0
    clusters = [each for each in (_ONE_NODE, _TWO_BY_TWO, *(cluster_of(rng) for _ in range(NUM_LAYOUTS)))]
    clusters = [cluster for cluster in clusters if _is_taken(strategy, cluster)]
    for cluster in clusters:
        made += _sums_on(strategy, cluster, rng, sizes=_SIZES)
    for number in range(NUM_ORDERS if clusters else 0):
        made += _sums_on(strategy, clusters[number % min(2, len(clusters))], rng, sizes=_SIZES[:2])
    return made


def _is_taken(strategy: Strategy, cluster: Cluster) -> bool:
    try:
        strategy.check(cluster)
    except Exception:  # said by the check of plans
        return False
    return True


def _sums_on(strategy: Strategy, cluster: Cluster, rng: random.Random, sizes: tuple[int, ...]) -> int:
    """Have all clients push all arrays, twice; messages come in an order that is drawn."""
    facts = facts_of(strategy, cluster, rng)
    hints = hints_of(strategy, [8 * size for size in sizes], cluster, facts)
    loopback = Loopback(placement_of(cluster, strategy), facts)
    workers = range(cluster.num_workers)
    for turn in range(_TURNS):
        for worker in workers:
            for size, hint in rng.sample(list(zip(sizes, hints, strict=True)), len(sizes)):
                values = np.arange(size, dtype=np.int64) * (worker + 1) + turn
                loopback.push(worker, f"array {size}", values, Op.SUM, hint=hint)
    while choices := loopback.step_choices():
        loopback.step(rng.choice(choices))
    _require_ended(strategy, cluster, loopback)
    for size in sizes:
        for turn in range(_TURNS):
            wanted = np.arange(size, dtype=np.int64) * sum(worker + 1 for worker in workers) + turn * len(workers)
            for worker in workers:
                found = loopback.results(worker, f"array {size}")[turn].array
                if not np.array_equal(found, wanted):
                    raise WrongStrategy(
                        f"{type(strategy).__name__}: worker {worker} has {found[:3]}... as the sum of an array of "
                        f"{size} elements, wanted {wanted[:3]}..., on {cluster}",
                        key="mode",
                    )
    return _TURNS * len(sizes) * len(workers)


def _require_ended(strategy: Strategy, cluster: Cluster, loopback: Loopback) -> None:
    if unfinished := loopback.unfinished():
        raise WrongStrategy(
            f"{type(strategy).__name__}: workers {list(unfinished)} wait for ever for a sum on {cluster}; each block "
            "of a plan must be begun by those who have something to add",
            key="mode",
        )
