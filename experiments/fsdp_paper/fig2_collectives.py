"""FSDP figure 2 and section 3.2: large and even all-gathers, and what hybrid sharding sends between hosts.

    python -m experiments.fsdp_paper.fig2_collectives --out results/fsdp-fig2

Input: rates and start-ups of the links. Outcome: seconds and bytes. An all-gather of uneven shards is one broadcast per
rank, one after the other, as PyTorch's NCCL backend does it, with a copy out of the ranks' list.
"""

from collections.abc import Iterator
from itertools import pairwise

from coarse.simulation.engine import Engine
from coarse.simulation.sharded.routes import Flow, Phase, Routes
from experiments.fsdp_paper.machines import GPUS_PER_HOST, TITLE, a100_cluster
from experiments.validation.claims import ClaimRow, Number, Order, Unit, claim_row
from experiments.validation.script import main

TOTAL_NUMEL = 1 << 30
"""Elements that are gathered in all, however many calls it takes."""
KNEE_NUMEL = 33 * 10**6
SIZES = tuple(1 << power for power in range(20, 31))
"""Elements of a call."""
ITEMSIZE = 4
INPUTS = ("A100 host", "RoCE")
WORLD = 512
_NEAR = 0.02
_NEARLY = 4
"""Start-ups are assumed, and what counts as a drop is ours to say: only the order of magnitude is held."""


def rows() -> list[ClaimRow]:
    """Figure 2, 3.2.1 and 3.2.2."""
    return [*_sizes(), *_uneven(), *_volumes()]


def routes(num_hosts: int = 2) -> Routes:
    """All GPUs of so many hosts."""
    return Routes(machine=a100_cluster(num_hosts), num_nodes=num_hosts, gpus_per_node=GPUS_PER_HOST)


def total_s(numel: int) -> float:
    """Seconds of gathering `TOTAL_NUMEL` elements by calls of `numel`, one after the other."""
    ways = routes()
    return TOTAL_NUMEL // numel * _alone_s(ways, ways.ring(numel * ITEMSIZE))


def _alone_s(ways: Routes, phase: Phase) -> float:
    engine = Engine(ways.machine.links)
    for number, flow in enumerate(phase):
        engine.move_in_turns(number, flow.path, flow.nbytes, flow.num_turns, lambda: None)
    engine.run()
    return engine.now_s


def knee_numel(times_s: dict[int, float]) -> int:
    """The smallest call with which gathering everything takes less than half as long again as with the largest."""
    return min(size for size, seconds in times_s.items() if seconds < 1.5 * times_s[max(times_s)])


def _sizes() -> Iterator[ClaimRow]:
    times_s = {size: total_s(size) for size in SIZES}
    yield claim_row(
        "all-gathers of 2^30 elements in all, 16 GPUs: time by elements of a call, 1 Mi to 1 Gi, over the largest's",
        "3.2.1, Fig. 2b", "falls with the size", Order(all(more > less for more, less in pairwise(times_s.values()))),
        [seconds / times_s[max(SIZES)] for seconds in times_s.values()], Unit.TIMES, inputs=INPUTS,
    )  # fmt: skip
    knee = knee_numel(times_s)
    yield claim_row(
        "millions of elements of a call below which gathering takes 1.5 times as long", "3.2.1, Fig. 2b",
        "drops below about 33 M", Order(KNEE_NUMEL / _NEARLY <= knee <= KNEE_NUMEL * _NEARLY), [knee / 1e6], Unit.COUNT,
        inputs=INPUTS, why="it follows start-ups, which are assumed",
    )  # fmt: skip


def uneven_s(numel: int) -> float:
    """Seconds of one all-gather of uneven shards: a broadcast around the ring from every rank, and a copy of all."""
    ways = routes()
    ring, nbytes = ways.ring(numel * ITEMSIZE), numel * ITEMSIZE
    shard = -(-nbytes // ways.num_gpus)
    one = tuple(Flow(flow.path, shard, 1, flow.crosses) for flow in ring[:-1])
    start_up_s = sum(ways.machine.links[link].latency_s for flow in one for link in flow.path)
    slowest_s = max(_alone_s(ways, (flow,)) for flow in one)
    copy_s = 2 * nbytes / ways.machine.accelerator.memory_bytes_per_s
    return ways.num_gpus * (start_up_s + slowest_s) + copy_s


def _uneven() -> Iterator[ClaimRow]:
    ratios = [uneven_s(size) / (total_s(size) / (TOTAL_NUMEL // size)) for size in SIZES]
    yield claim_row(
        "an all-gather of uneven shards over an even one, 16 GPUs, 1 Mi to 1 Gi elements", "3.2.1, Fig. 2a", "slower",
        Order(min(ratios) > 1), ratios, Unit.TIMES, inputs=INPUTS,
    )  # fmt: skip


def traffic(num_hosts: int) -> dict[str, float]:
    """Bytes that one GPU sends to the next of its ring in an iteration, over those of the model.

    FSDP 3.2.2 counts them all as between hosts, as if no two neighbours shared one.
    """
    ways, nbytes = routes(num_hosts), 1 << 40
    whole, rail = ways.ring(nbytes)[0], ways.replicas(nbytes, GPUS_PER_HOST)[0]
    once = whole.nbytes * whole.num_turns / nbytes
    return {"full": 3 * once, "replicated": 2 * once, "hybrid": rail.nbytes * rail.num_turns / nbytes}


def _volumes() -> Iterator[ClaimRow]:
    ours = traffic(WORLD // GPUS_PER_HOST)
    part = (WORLD - 1) / WORLD
    for name, formula, stated in (
        ("full", "3M(W-1)/W", 3 * part),
        ("replicated", "2M(W-1)/W", 2 * part),
        ("hybrid", "2M(W-1)/(GW)", 2 * part / GPUS_PER_HOST),
    ):
        yield claim_row(
            f"bytes between hosts per GPU over M, {name} sharding, 512 GPUs", "3.2.2", formula,
            Number(stated, stated, tolerance=_NEAR), [ours[name]], Unit.TIMES, inputs=("one stream",),
        )  # fmt: skip
    small = traffic(4)["hybrid"]
    yield claim_row(
        "the same, hybrid, 32 GPUs", "3.2.2", "2M(W-1)/(GW)", Number(2 * 31 / 32 / 8, 2 * 31 / 32 / 8, tolerance=_NEAR),
        [small], Unit.TIMES, inputs=("one stream",),
        why="a ring of the 4 hosts' replicas sends 2 (N-1)/N M/G, N = W/G; the paper has (W-1)/W for (N-1)/N",
    )  # fmt: skip
    yield claim_row(
        "volume of full sharding over that of replication", "3.2.1", "about 1.5x", Number(1.5, 1.5),
        [ours["full"] / ours["replicated"]], Unit.TIMES, inputs=("one stream",),
    )  # fmt: skip


if __name__ == "__main__":
    main(rows, None, __doc__, title=TITLE)
