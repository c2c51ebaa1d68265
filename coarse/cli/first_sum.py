"""Smallest job, which `coarse check --start` runs: workers push an array, and each compares the sum that it pulls."""

import sys

import numpy as np

import coarse
from coarse.protocol.clock import WallClock
from coarse.protocol.units import MIB


def main() -> None:
    """Add one array over all workers; exit with a message where the sum is wrong."""
    clock = WallClock()
    coarse.init()
    own = np.full(MIB // 4, coarse.rank() + 1, np.float32)
    begun = clock.now_s()
    total = coarse.push_pull(own, "first sum", op=coarse.Sum)
    took_s = clock.now_s() - begun
    wanted = coarse.size() * (coarse.size() + 1) / 2
    if not (total == wanted).all():
        sys.exit(f"worker {coarse.rank()}: the sum is {total.min():g} to {total.max():g}, and {wanted:g} is right")
    if coarse.rank() == 0:
        print(f"{coarse.size()} workers and a memory device added 1 MiB, rightly, in {took_s * 1e3:.1f} ms (measured)")
    coarse.shutdown()


if __name__ == "__main__":
    main()
