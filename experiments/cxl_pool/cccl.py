"""CCCL's collectives over six CZ120 behind a TITAN-II switch, against 200 Gbit/s InfiniBand (arXiv 2602.22457).

    python -m experiments.cxl_pool.cccl --out results/cccl

The paper states means over sizes that its abstract does not name; here they are 1 MiB to 4 GiB, each four times the one
before. Input: rates of the preset, that of stores fitted to Scatter. Outcome: the other ratios.
"""

from collections.abc import Callable, Iterator
from functools import cache
from statistics import fmean

from coarse.hardware.machine import Machine
from coarse.protocol.units import MIB
from experiments.cxl_pool.collectives import Primitive, pool_s, ratio
from experiments.cxl_pool.inputs import cccl_machine, inputs_now
from experiments.validation.claims import ClaimRow, Given, Number, Order, Unit, claim_row
from experiments.validation.script import main

TITLE = "CCCL over InfiniBand"
NUM_NODES = 3
_SIZES = tuple(1 << power for power in range(20, 33, 2))
STATED = {
    Primitive.ALL_GATHER: 1.34,
    Primitive.BROADCAST: 1.84,
    Primitive.GATHER: 1.94,
    Primitive.SCATTER: 1.04,
}
INPUTS = ("ports", "devices", "stores", "InfiniBand")


def rows() -> list[ClaimRow]:
    """The abstract's four ratios, the range that a summary of the paper gives, and contention."""
    return [*_means(), _range(), _contention()]


def sizes() -> tuple[int, ...]:
    """Return the sizes over which means are, under the inputs that are taken now."""
    return tuple(nbytes for nbytes in _SIZES if nbytes <= inputs_now().largest_bytes)


def mean_ratio(machine: Machine, primitive: Primitive) -> float:
    """How many times as long InfiniBand takes as the pool, the mean over sizes."""
    return fmean(_ratio(machine, primitive, nbytes) for nbytes in sizes())


def _ratio(machine: Machine, primitive: Primitive, nbytes: int) -> float:
    return ratio(machine, primitive, NUM_NODES, nbytes, inputs_now().chunk_bytes)


def with_stores(bytes_per_s: float) -> Machine:
    """The machine whose nodes store at such a rate."""
    return cccl_machine(store_bytes_per_s=bytes_per_s)


def with_devices(bytes_per_s: float) -> Machine:
    """The machine whose devices have such a rate each."""
    return cccl_machine(device_bytes_per_s=bytes_per_s)


def solved(make: Callable[[float], Machine], primitive: Primitive, low: float, high: float) -> float | None:
    """The rate with which a primitive's mean comes out, to a part in a thousand; None where none in the range does."""
    wanted = STATED[primitive]
    if not mean_ratio(make(low), primitive) <= wanted <= mean_ratio(make(high), primitive):
        return None
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if mean_ratio(make(middle), primitive) < wanted else (low, middle)
    return low


def _means() -> Iterator[ClaimRow]:
    machine = cccl_machine()
    for primitive, stated in STATED.items():
        is_fitted = primitive is Primitive.SCATTER
        yield claim_row(
            f"{primitive}: InfiniBand's time over the pool's, mean of {len(_SIZES)} sizes from 1 MiB to 4 GiB",
            "abstract", f"{stated}x", Given() if is_fitted else Number(stated, stated),
            [mean_ratio(machine, primitive)], Unit.TIMES, inputs=INPUTS, why=_why(primitive),
        )  # fmt: skip


@cache
def _why(primitive: Primitive) -> str:
    match primitive:
        case Primitive.SCATTER:
            return "the rate of stores is fitted to it"
        case Primitive.ALL_GATHER:
            rate = solved(with_devices, primitive, 5e9, 36e9)
            return f"it comes out where a device has {_gb(rate)} and not 36 GB/s; nothing at hand says what it had"
        case Primitive.BROADCAST:
            rate = solved(with_stores, primitive, 25e9, 55e9)
            return (
                f"it would take stores at {_gb(rate)}, with which Scatter is no longer what it is: one rate of stores "
                "does not give both, so CCCL's broadcast over InfiniBand was slower than its line, or Scatter stores "
                "in another way"
            )
        case _:
            return "loads reach 55 GB/s here"


def _gb(rate: float | None) -> str:
    return "more than its port has" if rate is None else f"{rate / 1e9:.3g} GB/s"


def _range() -> ClaimRow:
    machine = cccl_machine()
    every = [(primitive, nbytes) for primitive in Primitive for nbytes in sizes()]
    cells = {(primitive, nbytes): _ratio(machine, primitive, nbytes) for primitive, nbytes in every}
    least = min(cells, key=lambda cell: cells[cell])
    return claim_row(
        "the least of all ratios, over primitives and sizes", "a summary of the paper", "0.48x", Number(0.48, 0.48),
        [cells[least]], Unit.TIMES, inputs=INPUTS,
        why="which primitive and size it is does not stand in what is at hand; here it is "
        f"{least[0]} of {least[1] // MIB} MiB, of which all is stored before any is loaded",
    )  # fmt: skip


def _contention() -> ClaimRow:
    machine, chunk = cccl_machine(), inputs_now().chunk_bytes
    times = [pool_s(machine, Primitive.ALL_GATHER, nodes, 1 << 26, chunk) / (nodes * nodes) for nodes in (3, 6, 8, 12)]
    return claim_row(
        "AllGather of 64 MiB on 3, 6, 8 and 12 nodes: time of a stored and loaded byte, relative to six nodes",
        "limitations", "contention above six nodes on six devices",
        Order(times[1] <= times[0] and times[1] < times[2] < times[3]), [time_s / times[1] for time_s in times],
        Unit.TIMES, inputs=INPUTS,
    )  # fmt: skip


if __name__ == "__main__":
    main(rows, None, __doc__, title=TITLE)
