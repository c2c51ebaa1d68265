"""Check of a strategy's plans on random layouts: each can be carried out, and all ranks agree on it."""

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from coarse.errors import ConfigError
from coarse.protocol.plan import Cluster, Facts, Placement, Plan, Tensor, misfit
from coarse.strategy.named import strategy_named
from coarse.strategy.routing import ProxyProfile
from coarse.strategy.strategy import Strategy, require_facts, require_hints

NUM_LAYOUTS = 3_000
_TENSORS = 3
_MOST_NODES, _MOST_OF_A_NODE = 4, 3
_SIZES = (1, 100, 10_000, 1_000_000, 100_000_000)


class WrongStrategy(ConfigError):
    """Error of a strategy, in a sentence that names the method and its arguments."""


class Case(NamedTuple):
    """Cluster, its workers' facts, and tensors to plan, with their hints."""

    cluster: Cluster
    facts: tuple[Facts, ...]
    tensors: tuple[Tensor, ...]


def asked(strategy: Strategy, method: str, *given: object) -> Any:  # noqa: ANN401
    """Return the answer of a strategy's method.

    Raises:
        WrongStrategy: the method raises anything but a ConfigError.
    """
    try:
        return getattr(strategy, method)(*given)
    except ConfigError:
        raise
    except Exception as error:
        name = f"{type(strategy).__name__}.{method}"
        raise WrongStrategy(f"{name} raised {type(error).__name__}: {error}; given {given}", key="mode") from error


def cluster_of(rng: random.Random) -> Cluster:
    """Return some nodes, each with some workers and devices; a worker's own device is any of its node."""
    nodes = range(rng.randint(1, _MOST_NODES))
    workers, devices = ([node for node in nodes for _ in range(rng.randint(1, _MOST_OF_A_NODE))] for _ in range(2))
    near = {node: [device for device, at in enumerate(devices) if at == node] for node in nodes}
    return Cluster(
        worker_nodes=tuple(workers),
        device_nodes=tuple(devices),
        local_devices=tuple(rng.choice(near[node]) for node in workers),
    )


def ways_of(worker: int, cluster: Cluster, sizes: Sequence[int], rng: random.Random) -> tuple[ProxyProfile, ...]:
    """Return random measurements of a worker; () if it measures nothing."""
    if not sizes:
        return ()
    found = []
    for device in cluster.devices_on(cluster.worker_nodes[worker]):
        latency_s, bytes_per_s = 10 ** rng.uniform(-6, -4), 10 ** rng.uniform(8.5, 11)
        rows = tuple((nbytes, latency_s + nbytes / bytes_per_s) for nbytes in sizes)
        is_local = device == cluster.local_devices[worker]
        found.append(ProxyProfile(device=device, is_local=is_local, latency_s=latency_s, seconds_by_nbytes=rows))
    return tuple(found)


def facts_of(strategy: Strategy, cluster: Cluster, rng: random.Random) -> tuple[Facts, ...]:
    """Return the strategy's facts of each worker, from random measurements."""
    found = []
    for worker in range(cluster.num_workers):
        ways = ways_of(worker, cluster, strategy.probes, rng)
        found.append(require_facts(strategy, asked(strategy, "facts", worker, ways, cluster)))
    return tuple(found)


def hints_of(strategy: Strategy, nbytes: Sequence[int], cluster: Cluster, facts: tuple[Facts, ...]) -> Sequence[int]:
    """Return the hint that the strategy chooses for each bucket."""
    return require_hints(strategy, asked(strategy, "hints", nbytes, cluster, facts), nbytes)


def cases(strategy: Strategy, count: int, seed: int) -> Iterator[Case]:
    """Yield random cases on clusters that the strategy does not refuse.

    Raises:
        WrongStrategy: it refuses all clusters.
    """
    rng, made, refusal = random.Random(seed), 0, ""
    for _ in range(count):
        cluster = cluster_of(rng)
        sizes = [rng.randint(1, rng.choice(_SIZES)) for _ in range(_TENSORS)]
        keys = [rng.getrandbits(64) for _ in sizes]
        try:
            asked(strategy, "check", cluster)
        except WrongStrategy:
            raise
        except ConfigError as refused:
            refusal = str(refused)
            continue
        facts = facts_of(strategy, cluster, rng)
        hints = hints_of(strategy, [4 * size for size in sizes], cluster, facts)
        made += 1
        yield Case(cluster, facts, tuple(map(Tensor, keys, sizes, [4] * len(sizes), hints)))
    if not made:
        raise WrongStrategy(f"{type(strategy).__name__}.check refuses each of {count} clusters: {refusal}", key="mode")


def plan_of(strategy: Strategy, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
    """Return a plan.

    Raises:
        WrongStrategy: the plan cannot be carried out.
    """
    plan: Plan = asked(strategy, "plan", tensor, cluster, facts)
    if wrong := misfit(plan, cluster):
        name = type(strategy).__name__
        raise WrongStrategy(f"{name}.plan: {wrong}; given {tensor}, {cluster}, facts {facts}", key="mode")
    if not strategy.meets_within_nodes:
        for block in plan.blocks:
            nodes = [cluster.device_nodes[member] for member in block.members]
            if len(set(nodes)) < len(nodes):
                raise WrongStrategy(
                    f"{type(strategy).__name__}.plan has two devices of one node in a block, {block.members}, and "
                    "meets_within_nodes says that it has not; leave that out",
                    key="mode",
                )
    return plan


def require_plans(make: Callable[[], Strategy], count: int = NUM_LAYOUTS, seed: int = 0) -> int:
    """Return how many plans were made and are right.

    Raises:
        WrongStrategy: one that cannot be carried out; or two that differ, of two ranks that have the same arguments.
    """
    strategy, other = make(), make()
    every = list(cases(strategy, count, seed))
    first = {case: [plan_of(strategy, tensor, case.cluster, case.facts) for tensor in case.tensors] for case in every}
    shuffled = list(every)
    random.Random(seed + 1).shuffle(shuffled)
    for case in shuffled:  # another rank, which has been asked for other things before
        for tensor, plan in reversed(list(zip(case.tensors, first[case], strict=True))):
            again = plan_of(other, tensor, case.cluster, case.facts)
            if again != plan:
                raise WrongStrategy(
                    f"{type(strategy).__name__}.plan gives two ranks two plans of {tensor} on {case.cluster}: {plan} "
                    f"and {again}; let it depend on its arguments alone",
                    key="mode",
                )
    return sum(map(len, first.values()))


def digest(strategy: Strategy, count: int, seed: int) -> str:
    """Return the digest of all answers to random questions, which is compared between processes."""
    found = hashlib.sha256()
    for case in cases(strategy, count, seed):
        plans = [plan_of(strategy, tensor, case.cluster, case.facts) for tensor in case.tensors]
        found.update(repr((case, plans)).encode())
    return found.hexdigest()


def placement_of(cluster: Cluster, strategy: Strategy) -> Placement:
    """Return the cluster as ranks have it."""
    return Placement(
        client_nodes=cluster.worker_nodes,
        device_nodes=cluster.device_nodes,
        local_proxies=cluster.local_devices,
        ranks=tuple(range(cluster.num_workers + cluster.num_devices)),
        planner=strategy,
    )


def main() -> None:
    """Print the digest of the strategy of a mode, its options and a seed: python -m coarse.simulation.checks.plans."""
    mode, options, count, seed = sys.argv[1:]
    print(digest(strategy_named(mode, options=json.loads(options)), int(count), int(seed)))


if __name__ == "__main__":
    main()
