"""LuWu's figures 2b, 3b, 10, 11, 12, 13 and 14: it beside its baselines on the paper's cluster.

    python -m experiments.luwu_paper.baselines

Inputs: inputs.py. Nothing was fitted but what is said to be; such rows count as inputs.
"""

from collections.abc import Iterator
from math import inf

from coarse.hardware.gpt import OPT_SHAPES
from coarse.luwu.simulation.capacity import LUWU, MODES
from experiments.luwu_paper.cells import (
    billions,
    gains,
    lead,
    luwu_step,
    peak,
    scenario_of,
    zero_infinity,
)
from experiments.luwu_paper.inputs import BATCHES, NUM_WORKERS, TITLE, TOLERANCE, inputs_now
from experiments.validation.claims import ClaimRow, Given, Listed, Number, Order, Statement, Unit, claim_row
from experiments.validation.script import main

STEP = ("cards", "workers' disks", "pace", "disk share", "units")
PEAKS = (*STEP, "micro-batches", "logits", "memory")
_WHAT_2B = "opt-175b, micro-batch 16, zero-infinity"


def _close(value: float) -> Number:
    return Number(value, value, tolerance=TOLERANCE)


def rows() -> list[ClaimRow]:
    """All claims."""
    return [
        *figure_2b(), *figure_3b(), *figure_10(), *figure_11(), *figure_12(), *figure_13(), *figure_14(),
    ]  # fmt: skip


def figure_2b() -> Iterator[ClaimRow]:
    """ZeRO-Infinity's step with OPT-175B at micro-batch 16."""
    scenario = scenario_of("opt-175b", 16)
    step, cluster, training = zero_infinity(scenario), scenario.baseline_cluster, scenario.training
    backward_s = step.ends_s["backward"] - step.ends_s["forward"]
    shard_s = 2 * training.num_parameters / NUM_WORKERS / cluster.pcie_bytes_per_s
    pcie_s = step.busy_s["pcie in"] + step.busy_s["pcie out"] - shard_s
    pcie_s -= training.num_blocks * training.input_bytes / cluster.pcie_bytes_per_s
    share = 1 - step.ends_s["backward"] / step.step_s
    yield claim_row(
        f"{_WHAT_2B}: the optimizer's share of a step", "2.1, Fig. 2b", "37 %", Given(), [share], Unit.SHARE,
        inputs=STEP, why="the share of their rate that disks attain was fitted to it",
    )  # fmt: skip
    yield claim_row(
        f"{_WHAT_2B}: a step", "Figs. 2b, 11a", "374 s (6 FLOPs a parameter and token at 183 TFLOPS / 3.98)",
        _close(374), [step.step_s], Unit.SECONDS, inputs=STEP,
        why="a unit that comes while another is computed takes less",
    )  # fmt: skip
    yield claim_row(
        f"{_WHAT_2B}: GPU busy", "2.1, Fig. 2b", "23 %", _close(0.23), [step.busy_s["gpu"] / step.step_s], Unit.SHARE,
        inputs=STEP, why="a shorter step has the same compute",
    )  # fmt: skip
    yield claim_row(
        f"{_WHAT_2B}: PCIe's part of backward", "2.1", "10 % to 20 %", Number(0.10, 0.20, tolerance=TOLERANCE),
        [pcie_s / backward_s], Unit.SHARE, inputs=STEP,
        why="at 12 GB/s a worker's shards and inputs take no longer; the paper does not say what else crosses PCIe",
    )  # fmt: skip


def figure_3b() -> Iterator[ClaimRow]:
    """A block's gather and reduction, beside a pull and a push, which use one direction each."""
    scenario = scenario_of("opt-175b", 16)
    ring_s = 2 * (1 - 1 / NUM_WORKERS) / scenario.baseline_cluster.link_bytes_per_s
    less = 1 - 1 / scenario.luwu_cluster.link_bytes_per_s / ring_s
    yield claim_row(
        "luwu's communication beside backward is shorter than zero-infinity's by", "4.5, Fig. 3b", "42 %", _close(0.42),
        [less], Unit.SHARE, inputs=("cards",),
    )  # fmt: skip


def figure_10() -> Iterator[ClaimRow]:
    """Billions of parameters of the largest OPT."""
    by_count = {count: scenario_of("opt-1.3b", 1, count).capacity for count in (1, 4, 8)}
    fitted = "the host memory of a shard's parameter was fitted to it"
    fitted_at_8 = "our account of the host's memory is fitted at 8 workers, and has 66B fit 4"
    cases: tuple[tuple[str, int, float, bool, str], ...] = (
        (LUWU, 1, 1000, False, ""), (LUWU, 8, 1000, False, ""), ("zero-infinity", 8, 175, True, fitted),
        ("switchml", 8, 1.3, False, ""), ("sharp", 4, 30, False, fitted_at_8),
    )  # fmt: skip
    for mode, count, paper, is_input, why in cases:
        stated: Statement = Given() if is_input else _close(paper)
        yield claim_row(
            f"{mode}, {count} worker{'s' if count > 1 else ''}: the largest OPT", "4.2, Fig. 10", f"{paper:g}B", stated,
            [billions(by_count[count].largest_model(mode))], Unit.BILLIONS, inputs=("memory", "host memory"), why=why,
        )  # fmt: skip
    for mode in ("zero3", "zero-infinity"):
        grown = [by_count[count].limit(mode).num_parameters / 1e9 for count in (1, 8)]
        yield claim_row(
            f"{mode}: its largest model grows from 1 to 8 workers", "4.2, Fig. 10", "grows", Order(grown[0] < grown[1]),
            grown, Unit.BILLIONS, inputs=("memory", "host memory"),
        )  # fmt: skip


def figure_11() -> Iterator[ClaimRow]:
    """Peaks at 175B and 1.3B, and their ratios."""
    none_found = "no micro-batch of ours has so long a step, and no stated rate explains it"
    reasons = {
        "zero-infinity": "the text does not say at which micro-batches the peaks are",
        "zero3": none_found,
        "switchml": f"{none_found}; the paper names CPUs that convert gradients, without a rate",
    }
    for model, top, papers in (
        ("opt-175b", 183, {"zero-infinity": 3.98}),
        ("opt-1.3b", 145, {"zero-infinity": 2.90, "zero3": 2.33, "switchml": 5.80}),
    ):  # fmt: skip
        best = peak(LUWU, model)
        assert best is not None
        yield claim_row(
            f"{model}: luwu's peak of a worker", "4.3, Fig. 11", f"{top} TFLOPS", Given(), [best.flops_per_s / 1e12],
            Unit.TFLOPS, inputs=("pace",), why="a worker's pace is this number",
        )  # fmt: skip
        for mode, paper in papers.items():
            ours = lead(model, mode)
            assert ours is not None
            yield claim_row(
                f"{model}: luwu's peak over {mode}'s", "4.3, Fig. 11", f"{paper}x", _close(paper), [ours], Unit.TIMES,
                inputs=(*PEAKS, *(("float32", "packets") if mode == "switchml" else ())), why=reasons[mode],
            )  # fmt: skip
    small = peak("switchml", "opt-1.3b")
    assert small is not None
    yield claim_row(
        "opt-1.3b: a GPU's idle share of switchml's fastest step", "1, Fig. 4", "30 % to 50 %",
        Number(0.3, 0.5, tolerance=TOLERANCE), [small.idle_share], Unit.SHARE, inputs=(*PEAKS, "float32", "packets"),
        why="of which models and micro-batches the range is, the paper does not say",
    )  # fmt: skip


def figure_12() -> Iterator[ClaimRow]:
    """The least lead at the largest batches from 13B to 175B, where the other fits; and what larger models attain."""
    names = list(OPT_SHAPES)
    between = names[names.index("opt-13b") : names.index("opt-175b") + 1]
    for mode, paper in (("zero3", 2.04), ("zero-infinity", 2.34)):
        leads = [found for name in between if (found := lead(name, mode)) is not None]
        yield claim_row(
            f"13B to 175B: luwu over {mode}, the least of {len(leads)} that fit", "4.3, Fig. 12", f"at least {paper}x",
            Number(paper, inf, tolerance=TOLERANCE), [min(leads)], Unit.TIMES, inputs=PEAKS,
            why="the largest micro-batch that our account of memory allows hides more of its communication",
        )  # fmt: skip
    big = luwu_step("opt-276b", 24).flops_per_s
    yield claim_row(
        "opt-276b: luwu, of a worker", "4.3, Fig. 12", "184 TFLOPS", _close(184), [big / 1e12], Unit.TFLOPS, inputs=STEP
    )
    for name, batch in (("opt-505b", 16), ("opt-1t", 8)):
        scenario = scenario_of(name, 1)
        largest = scenario.capacity.largest_batch(LUWU, scenario.model)
        yield claim_row(
            f"{name}: luwu's largest micro-batch", "4.3, Fig. 12", str(batch), Listed((batch,)), [largest], Unit.COUNT,
            inputs=("memory", "logits"), why="by our account of a GPU's memory more or fewer fit",
        )  # fmt: skip
    falls = [luwu_step(name, batch).flops_per_s / 1e12 for name, batch in (("opt-505b", 16), ("opt-1t", 8))]
    yield claim_row(
        "opt-505b and opt-1t: luwu falls behind its 276B", "4.3, Fig. 12", "drops significantly",
        Order(big / 1e12 > falls[0] > falls[1]), falls, Unit.TFLOPS, inputs=STEP,
    )  # fmt: skip
    other = peak("zero-infinity", "opt-13b")
    assert other is not None
    yield claim_row(
        "luwu with opt-1t over zero-infinity with opt-13b", "4.3, Fig. 12", "comparable", _close(1),
        [luwu_step("opt-1t", 8).flops_per_s / other.flops_per_s], Unit.TIMES, inputs=PEAKS,
        why="a larger micro-batch with 13B makes ZeRO-Infinity faster",
    )  # fmt: skip


def figure_13() -> Iterator[ClaimRow]:
    """Against sharp: 4 workers with 4 disks each, which have what 12 disks of the optimizer node have."""
    found = []
    for batch in (8, 32):
        scenario = scenario_of("opt-30b", batch, 4, disks_of_worker=26e9 / 4)
        found.append(scenario.step("sharp").step_s / luwu_step("opt-30b", batch).step_s)
    yield claim_row(
        "opt-30b, 4 workers, micro-batch 8 and 32: luwu over sharp", "4.4, Fig. 13", "2.38x to 3.35x",
        Number(2.38, 3.35, is_of_set=True, tolerance=TOLERANCE), found, Unit.TIMES, inputs=STEP,
        why="a unit that comes while another is computed takes less",
    )  # fmt: skip


def figure_14() -> Iterator[ClaimRow]:
    """Scaling at 30B, and the lead over zero-infinity without its disks and optimizer."""
    for batch, paper in ((8, 1.21), (32, 1.94)):
        scenario = scenario_of("opt-30b", batch)
        busy_s = scenario.step("zero-infinity").busy_s
        rest = [busy_s[name] for name in ("gpu", "up", "pcie in", "pcie out")]
        bound_s = max(rest) if inputs_now().prefetch else sum(rest)
        yield claim_row(
            f"opt-30b, micro-batch {batch}: luwu over zero-infinity's bound without disks and optimizer",
            "4.6, Fig. 14", f"{paper}x", _close(paper), [bound_s / luwu_step("opt-30b", batch).step_s], Unit.TIMES,
            inputs=STEP,
            why="the bound counts the GPU, the network and PCIe, since the paper takes away disks and optimizer alone",
        )  # fmt: skip
    yield claim_row(
        "opt-30b: luwu's 8 workers over 1", "4.6, Fig. 14", "linear", Given(), [gains(LUWU, 8)[8]], Unit.TIMES,
        inputs=STEP, why="by design: a switch adds, so a step does not depend on the number of workers",
    )  # fmt: skip
    ours = [gains("zero-infinity", batch)[8] for batch in (8, 32)]
    yield claim_row(
        "opt-30b, micro-batch 8 and 32: zero-infinity's 8 workers over 1", "4.6, Fig. 14", "superlinear",
        Order(min(ours) > 8), ours, Unit.TIMES, inputs=STEP,
    )  # fmt: skip


def largest_table() -> list[list[str]]:
    """Figure 10: the largest OPT by workers and mode, and the most parameters of a model as wide as an OPT."""
    lines = [["workers", *MODES]]
    for count in (1, 2, 4, 8):
        capacity = scenario_of("opt-1.3b", 1, count).capacity
        limits = [capacity.limit(mode) for mode in MODES]
        lines.append([str(count), *(f"{one.named} ({one.num_parameters / 1e9:.4g}B)" for one in limits)])
    return lines


def small_table() -> list[list[str]]:
    """OPT-1.3B: luwu over each other mode by micro-batch, where figure 11b has peaks alone."""
    modes = ("zero-infinity", "zero3", "switchml")
    lines = [["micro-batch", *modes]]
    for batch in BATCHES[1:]:
        step_s = luwu_step("opt-1.3b", batch).step_s
        leads = (scenario_of("opt-1.3b", batch).step(mode).step_s / step_s for mode in modes)
        lines.append([str(batch), *(f"{each:.2f}" for each in leads)])
    return lines


def scaling_table() -> list[list[str]]:
    """Figure 14: FLOPS of all workers over those of one, OPT-30B."""
    lines = [["opt-30b", "1", "2", "4", "8"]]
    for mode in (LUWU, "zero-infinity"):
        for batch in (8, 32):
            lines.append([f"{mode}, micro-batch {batch}", *(f"{gain:.2f}" for gain in gains(mode, batch).values())])
    return lines


if __name__ == "__main__":
    main(rows, None, __doc__, title=TITLE)
