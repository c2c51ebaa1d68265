import numpy as np
import pytest

from benchmarks.contenders.bare_sum import sum_part


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("numel", [1, 7, 200_001])
def test_all_parts_together_leave_the_sum_in_every_region(num_workers, numel):
    given = np.random.default_rng(numel).integers(0, 9, (num_workers, numel)).astype(np.float32)
    regions = given.copy()
    for part in range(num_workers):
        sum_part(list(regions), part)
    assert (regions == given.sum(axis=0)).all()
