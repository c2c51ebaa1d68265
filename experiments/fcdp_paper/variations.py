"""How much each open choice of inputs.py matters: the key results with one choice changed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from coarse.collectives.shape import Collective
from experiments.fcdp_paper.cells import Cell, System, gain, samples_per_s
from experiments.fcdp_paper.inputs import CENTRAL, Inputs, Network
from experiments.fcdp_paper.memory import num_equal

VARIATIONS: dict[str, Inputs] = {
    "as declared": CENTRAL,
    "a step over a border takes no time of its own": replace(CENTRAL, border_step_s=0.0),
    "a step over a border takes 0.45 ms": replace(CENTRAL, border_step_s=0.45e-3),
    "a step over a border takes 1.8 ms": replace(CENTRAL, border_step_s=1.8e-3),
    "13 % of the peak, as BERT on V100": replace(CENTRAL, peak_share=0.126),
    "44 % of the peak": replace(CENTRAL, peak_share=0.44),
    "a socket's staged copies share 26.1 GB/s": replace(CENTRAL, staging_bytes_per_s=26.1e9),
    "a socket's staged copies share 20 GB/s (nccl-tests 74: 19 to 21)": replace(CENTRAL, staging_bytes_per_s=20e9),
    "44 %, and staged copies share 26.1 GB/s": replace(CENTRAL, peak_share=0.44, staging_bytes_per_s=26.1e9),
    "44 %, 384 tokens, recomputation": replace(CENTRAL, peak_share=0.44, sequence=384, recomputes=True),
    "384 tokens": replace(CENTRAL, sequence=384),
    "128 tokens": replace(CENTRAL, sequence=128),
    "adapters gathered and reduced unit by unit": replace(CENTRAL, keeps_adapters=False, bucket_numel=0),
    "hierarchical collectives": replace(CENTRAL, collective=Collective.HIERARCHICAL),
    "one unit in flight": replace(CENTRAL, in_flight_limit=1),
    "eight units in flight": replace(CENTRAL, in_flight_limit=8),
    "secondary shards by W/g": replace(CENTRAL, secondary_growth=1.0),
}


@dataclass(frozen=True)
class Quantity:
    """A key result."""

    name: str
    paper: str
    value: Callable[[Inputs], str]


def _rate(network: Network) -> Callable[[Inputs], str]:
    return lambda inputs: f"{samples_per_s(Cell(network=network, inputs=inputs)):.2f}"


def _gain(
    network: Network, over: System, system: System = System.FCDP, *, is_lora: bool = True
) -> Callable[[Inputs], str]:
    def value(inputs: Inputs) -> str:
        return f"{gain(Cell(network=network, system=system, is_lora=is_lora, inputs=inputs), over):.2f}x"

    return value


def _kept(inputs: Inputs) -> str:
    fast = Cell(network=Network.RDMA, system=System.COMM, is_lora=True, inputs=inputs)
    return f"{samples_per_s(replace(fast, network=Network.ETHERNET_1)) / samples_per_s(fast):.1%}"


QUANTITIES = (
    Quantity("Fig. 2 RDMA", "14.1", _rate(Network.RDMA)),
    Quantity("Fig. 2 IPoIB", "4.1", _rate(Network.IPOIB)),
    Quantity("Fig. 2 10GbE", "2.4", _rate(Network.ETHERNET_10)),
    Quantity("Fig. 5 IPoIB", "up to 1.40x", _gain(Network.IPOIB, System.ZERO3, is_lora=False)),
    Quantity("Fig. 7 IPoIB", "up to 6.8x", _gain(Network.IPOIB, System.ZERO3)),
    Quantity("Fig. 7 IPoIB, FCDP-Comm", "up to 6.2x", _gain(Network.IPOIB, System.ZERO3, System.COMM)),
    Quantity("Fig. 9 over ZeRO-3", "100x", _gain(Network.ETHERNET_1, System.ZERO3)),
    Quantity("Fig. 9 over ZeRO++", "51x", _gain(Network.ETHERNET_1, System.ZEROPP)),
    Quantity("FCDP-Comm keeps", "90.5 %", _kept),
    Quantity("equal batches of Tables V, VI", "30", lambda inputs: str(num_equal(inputs))),
)


def table() -> list[list[str]]:
    """A header, the paper's values, and a line per variation; GPT-10B at batch 8 on two nodes."""
    lines = [["input", *(quantity.name for quantity in QUANTITIES)], ["paper", *(q.paper for q in QUANTITIES)]]
    for name, inputs in VARIATIONS.items():
        lines.append([name, *(quantity.value(inputs) for quantity in QUANTITIES)])
    return lines
