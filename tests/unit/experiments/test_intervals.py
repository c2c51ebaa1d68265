"""Inputs that may have been otherwise: their intervals, points within them, and what rows come to."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from experiments.coarse_paper.cells import Cell, outcome, under
from experiments.coarse_paper.inputs import CENTRAL, Platform
from experiments.coarse_paper.intervals import STUDY as COARSE
from experiments.fcdp_paper import cells as fcdp_cells
from experiments.fcdp_paper import memory
from experiments.fcdp_paper.inputs import CENTRAL as FCDP_CENTRAL
from experiments.fcdp_paper.intervals import STUDY as FCDP
from experiments.validation.claims import Number, Unit, claim_row
from experiments.validation.interval_study import Found, Interval, summary, table, with_values

T4 = Cell(platform=Platform.T4, policy="paper")
STUDIES = {"coarse": COARSE, "fcdp": FCDP}


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_points_of_the_hypercube_lie_within_and_spread_over_every_interval(study):
    study = replace(study, num_samples=10)
    points = study.drawn()
    assert points == study.drawn()
    for one in study.intervals:
        values = sorted(point[one.field] for point in points)
        assert one.low <= values[0] <= values[-1] <= one.high
        if one.is_choice:
            assert values == 5 * [one.low] + 5 * [one.high]
            continue
        tenths = {int(10 * (value - one.low) / (one.high - one.low)) for value in values}
        assert len(tenths) == 10


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_each_end_changes_one_input_and_each_corner_has_every_input_at_an_end(study):
    for place, values in enumerate(study.ends()):
        one = study.intervals[place // 2]
        assert values == {one.field: (one.low, one.high)[place % 2]}
    corners, choices = study.corners(), [one for one in study.intervals if one.is_choice]
    num_numbers = len(study.intervals) - len(choices)
    assert len({tuple(corner.items()) for corner in corners}) == len(corners)
    assert len(corners) == 2**num_numbers + (2 ** len(choices) if choices else 0)
    by_field = {one.field: one for one in study.intervals}
    for corner in corners:
        assert all(value in (by_field[field].low, by_field[field].high) for field, value in corner.items())
        assert len({by_field[field].is_choice for field in corner}) == 1


def test_central_values_are_those_of_the_evaluations():
    assert with_values(CENTRAL, {one.field: one.central for one in COARSE.intervals}) == replace(
        CENTRAL, sharer_growth=0.2, load_slowdown=17.0
    )
    assert replace(FCDP_CENTRAL, **{one.field: one.central for one in FCDP.intervals}) == FCDP_CENTRAL


def test_values_take_the_kind_of_their_field():
    taken = with_values(FCDP_CENTRAL, {"full_on_ipoib": 0.0, "sequence": 300.4, "peak_share": 0.3})
    assert (taken.full_on_ipoib, taken.sequence, taken.peak_share) == (False, 300, 0.3)
    assert with_values(CENTRAL, {"sharer_growth": 0.25}).sharer_growth == 0.25


def test_an_interval_that_does_not_go_up_around_its_central_value_is_refused():
    for low, high in ((7e9, 8e9), (8e9, 5e9), (6.3e9, 6.3e9)):
        with pytest.raises(ConfigError, match="t4_bus_bytes_per_s must go up around"):
            Interval(field="t4_bus_bytes_per_s", declared="T4's lanes", low=low, central=6.3e9, high=high, why="")


def test_cells_of_fcdp_take_what_is_taken_now_and_the_central_inputs_again_afterwards():
    before = memory.used_gib(fcdp_cells.System.ZERO3)
    with fcdp_cells.under(replace(FCDP_CENTRAL, sequence=512)):
        assert fcdp_cells.Cell().inputs.sequence == 512
        assert memory.used_gib(fcdp_cells.System.ZERO3) > before
        assert fcdp_cells.Cell(inputs=FCDP_CENTRAL).inputs == FCDP_CENTRAL
    assert memory.used_gib(fcdp_cells.System.ZERO3) == before


def test_rows_take_what_is_taken_now_and_the_central_inputs_again_afterwards():
    before = outcome(T4)
    with under(replace(CENTRAL, compute_speed=2.0)):
        assert outcome(T4).compute_s == pytest.approx(before.compute_s / 2)
        chosen = replace(T4, inputs=replace(CENTRAL, push_overlap=0.0))
        assert outcome(chosen).compute_s == pytest.approx(before.compute_s)
    assert outcome(T4) == before


def found(ours: float, *, is_met: bool) -> Found:
    row = claim_row("a claim", "V-D", "2x", Number(2.0, 2.0), [ours], Unit.TIMES, inputs=(), why="because")
    return Found(
        row=row, low=1.0, high=3.0, is_met=is_met, swings=(("push_overlap", 1.0, 1.5), ("compute_speed", 1.0, 3.0))
    )


def test_a_row_is_met_or_met_within_or_missed_whatever_and_says_what_it_hangs_on():
    rows = [found(2.0, is_met=True), found(1.0, is_met=True), found(1.0, is_met=False)]
    assert [one.verdict for one in rows] == ["within 10 %", "met within the intervals", "missed whatever they are"]
    assert table(rows)[1] == ["V-D", "a claim", "2x", "2.00x", "1.00x to 3.00x", "within 10 %", "compute_speed", "-"]
    assert summary(rows) == "3 rows: 1 met, 1 met within the inputs' intervals, 1 missed whatever they are"
