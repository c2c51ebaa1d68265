"""LuWu's figures 12 and 15: what the optimizer node's own machine makes of the paper's cluster.

    python -m experiments.luwu_paper.optimizer_node

Inputs: a worker's pace, its card, and the node's disks. Outcome: steps.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from coarse.luwu.simulation.cluster import PagedCluster, PagedTraining
from coarse.luwu.simulation.training import simulate
from experiments.luwu_paper.inputs import TITLE, TOLERANCE
from experiments.validation.claims import ClaimRow, Number, Order, Unit, claim_row
from experiments.validation.script import main

SEQUENCE = 1024
PEAK_FLOPS = 183e12
"""Input: what a worker attains with OPT-175B (figure 11a); all else is predicted."""
CLUSTER = PagedCluster(
    num_workers=8, worker_flops_per_s=PEAK_FLOPS, link_bytes_per_s=12e9, num_disks=12, disk_bytes_per_s=26e9 / 12,
    sums_bytes=10**12,
)  # fmt: skip
"""Inputs (section 4.1): 12 GB/s of a worker's NIC, 12 disks with 26 GB/s each way together."""
MODELS = {"30B": (48, 7168), "66B": (64, 9216), "175B": (96, 12288), "276B": (112, 14336), "505B": (124, 18432),
          "1T": (172, 22016)}  # fmt: skip
"""Table 2: layers and width."""
CHUNKS = 48
CLOSE = 1.05
"""A step is the compute estimate's where it takes at most so much of it."""
MICRO_BATCHES = (4, 8, 12, 14, 16, 18, 20, 24, 28, 32)
DISKS = (12, 8, 4)
FLAT = 1.05
"""The longest step over the shortest."""
INPUTS = ("pace", "cards")


def training_of(name: str, micro_batch: int, flops_per_token: int = 6) -> PagedTraining:
    """A model of table 2: 12 width^2 parameters a block."""
    layers, width = MODELS[name]
    return PagedTraining(
        num_blocks=layers, block_elements=12 * width**2, tokens=micro_batch * SEQUENCE, chunks_per_block=CHUNKS,
        flops_per_token=flops_per_token,
    )  # fmt: skip


@cache
def took_s(cluster: PagedCluster, training: PagedTraining) -> float:
    """Return the seconds of a step, simulated once for all rows and tables."""
    return simulate(cluster, training).step_s


def step_s(num_disks: int, micro_batch: int) -> float:
    """Of OPT-175B."""
    return took_s(replace(CLUSTER, num_disks=num_disks), training_of("175B", micro_batch))


def crossover(flops_per_token: int) -> int:
    """The least micro-batch at which 12 disks leave the workers' compute alone."""
    for micro_batch in range(8, 33):
        training = training_of("175B", micro_batch, flops_per_token)
        if took_s(CLUSTER, training) <= CLOSE * training.compute_s(CLUSTER):
            return micro_batch
    raise AssertionError("compute never bounds")


def rows() -> list[ClaimRow]:
    """Figure 15's claims."""
    return list(_figure_15())


def _figure_15() -> Iterator[ClaimRow]:
    for num_disks in (4, 8):
        times = [step_s(num_disks, micro_batch) for micro_batch in MICRO_BATCHES if micro_batch <= 18]
        yield claim_row(
            f"opt-175b, {num_disks} disks, micro-batches to 18: a step", "4.7, Fig. 15", "constant",
            Order(max(times) <= FLAT * min(times)), times, Unit.SECONDS, inputs=INPUTS,
        )  # fmt: skip
    for flops in (6, 8):
        yield claim_row(
            f"opt-175b, 12 disks: the first micro-batch whose step is compute's within 5 %, {flops} FLOPs a token",
            "4.7, Fig. 15", "above 16", Number(16, 16, tolerance=TOLERANCE), [crossover(flops)], Unit.COUNT,
            inputs=INPUTS,
        )  # fmt: skip


def disks_table() -> list[list[str]]:
    """Figure 15: seconds of a step of OPT-175B."""
    lines = [["micro-batch", "compute", *(f"{disks} disks" for disks in DISKS), "12 disks / compute"]]
    for micro_batch in MICRO_BATCHES:
        compute_s = training_of("175B", micro_batch).compute_s(CLUSTER)
        times = [step_s(disks, micro_batch) for disks in DISKS]
        seconds = [f"{each:.1f}" for each in (compute_s, *times)]
        lines.append([str(micro_batch), *seconds, f"{times[0] / compute_s:.2f}"])
    return lines


def models_table() -> list[list[str]]:
    """Figure 12: TFLOPS of a worker at the largest batches."""
    lines = [["model", "micro-batch", "step s", "TFLOPS of a worker", "slowest"]]
    for name, micro_batch in (("30B", 64), ("66B", 48), ("175B", 32), ("276B", 24), ("505B", 16), ("1T", 8)):
        training = training_of(name, micro_batch)
        simulated_s = took_s(CLUSTER, training)
        attained = training.compute_s(CLUSTER) / simulated_s * PEAK_FLOPS
        times = {what: getattr(training, f"{what}_s")(CLUSTER) for what in ("compute", "network", "disk")}
        slowest = max(times, key=lambda what: times[what])
        lines.append([name, str(micro_batch), f"{simulated_s:.1f}", f"{attained / 1e12:.0f}", slowest])
    return lines


if __name__ == "__main__":
    main(rows, None, __doc__, title=TITLE)
