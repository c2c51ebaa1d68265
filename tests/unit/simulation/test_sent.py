"""Wires and late sums in simulated jobs, whose times are known by hand."""

from dataclasses import dataclass, replace

import pytest

from coarse.protocol.dtypes import DType
from coarse.simulation.training import simulate
from coarse.strategy import Cast, Coarse, TopK
from coarse.strategy.rounds import first_to_devices
from tests.unit.simulation.small_jobs import job_of, move_s, ring_s

COUNT = 250_000
"""Elements of a gradient: a millisecond on a link."""


@dataclass(frozen=True, kw_only=True)
class SlowCast(Cast):
    encode_bytes_per_s: float = 1e9
    decode_bytes_per_s: float = 2e9


class Wired(Coarse):
    def wire(self, tensor):
        return SlowCast()


def job_with(**changes):
    job = job_of(2, ((COUNT, 1e-3), (COUNT, 2e-3)), num_proxied=2, forward_s=1e-3, backward_s=2e-3)
    return replace(job, **changes)


def test_what_a_wire_makes_of_gradients_delays_all_that_follows():
    plain = job_with()
    sent = replace(plain, gradients=tuple(each.sent(Wired(), 2) for each in plain.gradients))
    first = sent.gradients[0]
    assert (first.nbytes, first.dtype, first.descriptor(0).nbytes) == (2 * COUNT, DType.FLOAT16, 2 * COUNT)
    assert (first.encode_s, first.decode_s) == (pytest.approx(1e-3), pytest.approx(0.5e-3))
    synced_s = 2 * move_s(2 * COUNT) + ring_s(2, 4 * COUNT)  # devices, too, send sums as they add them
    (row, *_) = simulate(replace(sent, num_iterations=1)).iterations
    assert row.backward_end_s == pytest.approx(1e-3 + 2e-3 + 2 * 1e-3)
    assert row.end_s == pytest.approx(row.backward_end_s + synced_s + 2 * 0.5e-3, rel=1e-3)


def test_workers_widen_half_types_before_they_sum_them():
    plain = job_with(round=first_to_devices(0, 2))
    half = replace(plain, gradients=tuple(replace(each, dtype=DType.FLOAT16) for each in plain.gradients))
    assert simulate(plain).iteration_s == pytest.approx(simulate(half).iteration_s)


def test_rows_of_more_workers_are_more_bytes():
    class Top(Coarse):
        def wire(self, tensor):
            return TopK(share=0.01)

    gradient = job_with().gradients[0]
    sizes = [gradient.sent(Top(), num_workers).nbytes for num_workers in (2, 4)]
    assert sizes == [4 * 2 * (1 + 2 * 2_500), 4 * 4 * (1 + 2 * 2_500)]
    assert gradient.sent(Top(), 2).descriptor(0).op == 0


@pytest.mark.parametrize("by_devices", [True, False])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_step_waits_for_the_sums_of_an_earlier_round(lag, by_devices):
    """Compute of 3 ms, and 2.4 ms from the last gradient to its sum."""
    job = job_with(lag=lag, num_iterations=8, round=first_to_devices(2 if by_devices else 0, 2))
    job = replace(job, gradients=tuple(replace(each, num_elements=200_000) for each in job.gradients))
    report = simulate(job)
    rows = [row for row in report.iterations if row.worker == 0]
    assert len(rows) == 8
    compute_s = 3e-3
    for row in rows[:lag]:
        assert row.duration_s == pytest.approx(compute_s)
    if lag == 0:
        assert report.iteration_s > 1.1 * compute_s
    else:
        assert rows[-1].duration_s == pytest.approx(compute_s, rel=1e-6)


def test_late_sums_still_take_the_time_of_their_links():
    """Links that take longer for a round's bytes than compute: the rounds follow one another at their rate."""
    job = job_with(lag=2, num_iterations=12, backward_s=2e-3, forward_s=0.0)
    job = replace(job, gradients=tuple(replace(each, num_elements=8 * COUNT) for each in job.gradients))
    together = simulate(replace(job, lag=0)).iteration_s
    late = simulate(job).iteration_s
    busiest_s = 2 * 2 * 8 * COUNT / 1e9  # pushes of both gradients over one link, and as many bytes around the ring
    assert busiest_s * 2 * 0.99 < late < together


def test_a_late_job_does_not_measure_anew():
    with pytest.raises(ValueError, match="lag"):
        job_with(lag=1, profile_every=3)
