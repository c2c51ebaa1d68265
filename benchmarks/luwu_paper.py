"""LuWu's figures 10 to 15: what the optimizer node's own machine makes of the paper's cluster (simulated).

python benchmarks/luwu_paper.py
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.luwu_peers import figure_10, ratios, scaling, small_leads
from benchmarks.provenance import provenance
from coarse.luwu.simulation.cluster import PagedCluster, PagedTraining
from coarse.luwu.simulation.training import simulate

RESULT = Path(__file__).parent / "results" / "luwu-paper.json"
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
CROSSOVER = (14, 18)
"""Figure 15's text, by the estimate with and without recomputation: between these 12 disks reach compute."""


def training_of(name: str, micro_batch: int, flops_per_token: int = 6) -> PagedTraining:
    """A model of table 2: 12 width^2 parameters a block."""
    layers, width = MODELS[name]
    return PagedTraining(
        num_blocks=layers, block_elements=12 * width**2, tokens=micro_batch * SEQUENCE, chunks_per_block=CHUNKS,
        flops_per_token=flops_per_token,
    )  # fmt: skip


def main() -> None:
    """All figures, as tables and as JSON."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = {
        "figure 15": figure_15(), "figure 12": figure_12(), "figure 10": figure_10(), "figure 14": scaling(),
        "figure 11b": small_leads(), "paper": ratios(),
    }  # fmt: skip
    document = {
        **provenance("luwu_paper.py", [], 1), "kind": "simulated", "cluster": asdict(CLUSTER), "rows": rows,
    }  # fmt: skip
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def figure_15() -> list[dict[str, object]]:
    """OPT-175B: iteration time over micro-batches, for 4, 8 and 12 disks."""
    titles = ("figure 15", "compute s", "12 disks s", "8 disks s", "4 disks s", "12 disks / compute")
    print(f"| {' | '.join(titles)} |\n|{'---:|' * len(titles)}")
    rows: list[dict[str, object]] = []
    flat: dict[int, list[float]] = {4: [], 8: []}
    for micro_batch in MICRO_BATCHES:
        training = training_of("175B", micro_batch)
        steps = {disks: simulate(replace(CLUSTER, num_disks=disks), training).step_s for disks in (12, 8, 4)}
        compute_s = training.compute_s(CLUSTER)
        share = steps[12] / compute_s
        for disks, times in flat.items():
            if micro_batch <= max(CROSSOVER):
                times.append(steps[disks])
        print(f"| {micro_batch} | {compute_s:.1f} | {steps[12]:.1f} | {steps[8]:.1f} | {steps[4]:.1f} | {share:.2f} |")
        rows.append({"micro_batch": micro_batch, "compute_s": compute_s, "step_s": steps})
    flatness = max(max(times) / min(times) for times in flat.values())
    for flops in (6, 8):
        first = crossover(flops)
        print(f"12 disks are within {CLOSE} of compute from micro-batch {first} on, by {flops} FLOPs a token")
    print(f"paper: above 16; by its rates between {CROSSOVER[0]} and {CROSSOVER[1]}")
    print(f"4 and 8 disks: longest over shortest step up to micro-batch 18: {flatness:.3f} (paper: flat)")
    return rows


def crossover(flops_per_token: int) -> int:
    """The least micro-batch at which 12 disks leave the workers' compute alone."""
    for micro_batch in range(8, 33):
        training = training_of("175B", micro_batch, flops_per_token)
        if simulate(CLUSTER, training).step_s <= CLOSE * training.compute_s(CLUSTER):
            return micro_batch
    raise AssertionError("compute never bounds")


def figure_12() -> list[dict[str, object]]:
    """Model TFLOPS of a worker at the largest batches: the fall of 505B and 1T, whose batches are small."""
    print("| figure 12 | micro-batch | step s | TFLOPS of a worker | slowest resource |\n|---|---:|---:|---:|---|")
    rows: list[dict[str, object]] = []
    for name, micro_batch in (("30B", 64), ("66B", 48), ("175B", 32), ("276B", 24), ("505B", 16), ("1T", 8)):
        training = training_of(name, micro_batch)
        step_s = simulate(CLUSTER, training).step_s
        attained = training.compute_s(CLUSTER) / step_s * PEAK_FLOPS
        times = {what: getattr(training, f"{what}_s")(CLUSTER) for what in ("compute", "network", "disk")}
        slowest = max(times, key=lambda what: times[what])
        print(f"| {name} | {micro_batch} | {step_s:.1f} | {attained / 1e12:.0f} | {slowest} |")
        rows.append({"model": name, "micro_batch": micro_batch, "step_s": step_s, "flops_per_s": attained})
    return rows


if __name__ == "__main__":
    main()
