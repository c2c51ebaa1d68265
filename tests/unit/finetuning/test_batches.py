"""Parts of batches are the same rows, whoever reads them."""

import numpy as np
import pytest

from experiments.finetuning.batches import BatchPlan


def plan(**changes):
    return BatchPlan(**{"num_rows": 10, "batch": 12, "passes": 1, "workers": 1, "seed": 3, **changes})


@pytest.mark.parametrize(("passes", "workers"), [(1, 1), (1, 4), (3, 2), (2, 6), (12, 1)])
def test_the_cuts_of_a_step_are_the_batch_of_one_worker(passes, workers):
    many = plan(passes=passes, workers=workers)
    for step in range(4):
        cuts = [many.cut(step, part, worker) for part in range(passes) for worker in range(workers)]
        assert np.array_equal(np.concatenate(cuts), plan().rows(step))


def test_every_row_comes_once_in_an_epoch():
    rows = np.concatenate([plan().rows(step) for step in range(5)]).reshape(-1, 10)
    assert len(rows) == 6
    assert all(sorted(epoch) == list(range(10)) for epoch in rows.tolist())
    assert len({tuple(epoch) for epoch in rows.tolist()}) > 1


def test_the_order_depends_on_the_seed():
    assert not np.array_equal(plan(seed=1).rows(0), plan(seed=2).rows(0))


def test_a_batch_that_cannot_be_cut_equally_is_refused():
    with pytest.raises(ValueError, match="choose a multiple of 8 for --batch"):
        plan(passes=2, workers=4)


@pytest.mark.parametrize("name", ["num_rows", "batch", "passes", "workers"])
def test_nothing_is_no_number_of(name):
    with pytest.raises(ValueError, match=f"BatchPlan.{name} must be at least 1, got 0"):
        plan(**{name: 0})
