"""Two runs agree if their losses do in the early steps."""

import math

import pytest

from experiments.comparison import EARLY_STEPS, bytes_text, comparison_rows, exposed_text, loss_difference
from experiments.figures import shown_steps


def run(losses):
    return {"steps": [{"loss": loss} for loss in losses], "summary": {"mode": "any"}}


def test_early_and_later_differences_are_told_apart():
    reference = [2.0] * (EARLY_STEPS + 2)
    losses = [*reference]
    losses[3] = 2.0002
    losses[-1] = 2.2
    difference = loss_difference(losses, reference)
    assert difference.early == pytest.approx(1e-4)
    assert difference.later == pytest.approx(0.1)


def test_a_difference_after_the_early_steps_is_no_disagreement():
    reference = [2.0] * (EARLY_STEPS + 1)
    assert loss_difference([*reference[:-1], 3.0], reference).agrees


def test_an_early_difference_above_the_tolerance_is_a_disagreement():
    assert not loss_difference([2.0, 2.001], [2.0, 2.0]).agrees


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("step", [0, 1])
def test_a_loss_that_is_no_number_never_agrees(broken, step):
    losses = [2.0, 2.0]
    losses[step] = broken
    assert not loss_difference(losses, [2.0, 2.0]).agrees


def test_runs_of_different_length_are_not_compared():
    with pytest.raises(ValueError, match="wanted as many losses"):
        loss_difference([2.0], [2.0, 2.0])


def test_the_reference_agrees_with_itself_to_the_bit():
    [row] = comparison_rows({"single": run([3.0, 2.0])}, "single")
    assert row["loss_difference_early"] == 0.0
    assert row["agrees"]


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(None, "-"), (0, "0 B"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (5 * 2**30, "5.0 GiB")]
)
def test_bytes_are_shown_in_the_largest_fitting_unit(num_bytes, text):
    assert bytes_text(num_bytes) == text


def test_exposed_communication_is_shown_with_its_share():
    assert exposed_text(0.0125, 0.25) == "12.5 ms (25.0%)"
    assert exposed_text(None, None) == "-"


def test_the_timeline_shows_steps_that_no_probe_disturbed():
    def worker(disturbed):
        return {"steps": [{"settled": step not in disturbed} for step in range(12)]}

    steps = shown_steps([worker({0, 6}), worker({0, 7})], count=4)
    assert not {0, 6, 7} & set(steps)
    assert len(steps) == 4
