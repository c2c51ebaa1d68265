"""Parts beside those of prtpy, which finds the best ones by search (make test-oracle installs it; else skipped)."""

import numpy as np
import pytest

from coarse.parallel.packing.partitions import balanced_parts, largest_sum

prtpy = pytest.importorskip("prtpy", reason="make test-oracle installs it")
SIGMA = 1.0


def drawn(seed: int, number: int) -> list[int]:
    """Lengths of a long tail."""
    return np.random.default_rng(seed).lognormal(6.0, SIGMA, number).astype(int).tolist()


@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("number", [8, 12])
def test_parts_are_nearly_the_best(number: int, num_parts: int) -> None:
    ratios = []
    for seed in range(20):
        values = drawn(seed, number)
        best = prtpy.partition(
            algorithm=prtpy.partitioning.complete_greedy, numbins=num_parts, items=values,
            outputtype=prtpy.out.LargestSum,
        )  # fmt: skip
        found = largest_sum(values, balanced_parts(values, num_parts))
        assert best <= found <= 4 / 3 * best
        ratios.append(found / best)
    print(f"{number} numbers, {num_parts} parts: {np.mean(ratios):.4f} of the best, at worst {max(ratios):.3f}")
    assert np.mean(ratios) <= 1.02


@pytest.mark.parametrize(("number", "num_parts"), [(64, 8), (200, 16)])
def test_parts_are_never_worse_than_the_librarys_differencing(number: int, num_parts: int) -> None:
    for seed in range(20):
        values = drawn(seed, number)
        theirs = prtpy.partition(
            algorithm=prtpy.partitioning.karmarkar_karp, numbins=num_parts, items=values,
            outputtype=prtpy.out.LargestSum,
        )  # fmt: skip
        assert largest_sum(values, balanced_parts(values, num_parts)) <= theirs
