"""Fine-tune a GPT on samples whose lengths differ by a hundred times, in a mode and a balance.

coarse run --workers 2 --devices 1 experiments/finetune_long_tail.py --mode odc --balance lb_mini
coarse run --workers 2 --devices 1 experiments/finetune_long_tail.py --mode fsdp --balance lb_micro
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np
import torch

import coarse
from coarse.parallel.packing.measured_cost import load_cost, measure_cost
from coarse.parallel.packing.sampler import BALANCES, Sampling
from experiments.long_tail.lengths import MEAN_TOKENS, draw_lengths
from experiments.long_tail.model import LongTailShape
from experiments.long_tail.training import MODES, LongTailTraining, agreed, step_of


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="odc")
    parser.add_argument("--balance", choices=BALANCES, default="lb_mini")
    parser.add_argument("--data", choices=sorted(MEAN_TOKENS), default="longalign")
    parser.add_argument("--sigma", type=float, default=1.0, help="spread of the lengths' logarithm (assumed)")
    parser.add_argument("--factor", type=float, default=1 / 64, help="by which lengths are scaled to this machine")
    parser.add_argument("--minibatch", type=int, default=8, help="samples of all workers together")
    parser.add_argument("--cap", type=int, default=2048, help="most tokens of a microbatch, and of a sample")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=LongTailShape.layers)
    parser.add_argument("--width", type=int, default=LongTailShape.width)
    parser.add_argument("--costs", type=Path, help="a file of coarse profile --costs; by default they are measured")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.balance == "lb_mini" and given.mode != "odc":
        parser.error(f"lb_mini gives workers unequal numbers of microbatches, which --mode {given.mode} cannot run")
    return given


def main() -> None:
    """One training, and what it took."""
    given = parse_arguments()
    coarse.init()
    torch.set_num_threads(1)
    shape = LongTailShape(layers=given.layers, width=given.width, context=given.cap)
    num_samples = given.minibatch * given.steps
    lengths = draw_lengths(given.data, given.sigma, num_samples, given.factor, given.cap, given.seed)
    if given.costs is None:
        measured = measure_cost(step_of(shape), now_s=time.thread_time)
        cost, packed = agreed(measured.cost), f", packed {measured.packed_share:+.1%} from the sum"
    else:
        cost, packed = load_cost(given.costs), ""
    sampling = Sampling(
        minibatch=given.minibatch, num_ranks=coarse.size(), balance=given.balance, cap=given.cap, cost=cost,
        pad=given.balance != "lb_mini",
    )  # fmt: skip
    training = LongTailTraining(given.mode, sampling, shape, lengths, coarse.rank())
    if coarse.rank() == 0:
        print(
            f"{given.data}: {num_samples} samples of {min(lengths)} to {max(lengths)} tokens, mean "
            f"{np.mean(lengths):.0f} (scaled by {given.factor:g}); a sample of 1024 t tokens takes "
            f"{1e3 * cost.quadratic:.1f} t^2 + {1e3 * cost.linear:.1f} t ms{packed}"
        )
    times = []
    while (found := training.step()) is not None:
        times.append(found)
        sums = coarse.push_pull(np.array([found.loss, found.computed_s]), name="report", op=coarse.Sum)
        if coarse.rank() == 0:
            idle = 1 - sums[1] / (coarse.size() * found.wall_s)
            print(f"step {len(times)}  loss {sums[0]:.1f}  {found.wall_s:.2f} s  idle {idle:.0%}")
    if coarse.rank() == 0:
        total_s = sum(one.wall_s for one in times)
        print(f"{training.name}: {num_samples / total_s:.2f} samples/s (measured)")
    coarse.shutdown()


if __name__ == "__main__":
    main()
