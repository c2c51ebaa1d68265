"""Simulated training against closed forms, on sites where every sender has a link of its own."""

from dataclasses import replace

import pytest

from coarse.simulation.job import Job
from coarse.simulation.training import simulate
from coarse.strategy.rounds import Round
from tests.unit.simulation.small_jobs import job_of, move_s, ring_s, site_of

FORWARD_S, BACKWARD_S = 0.3, 0.7
ELEMENTS = 3 * 8 * 125_000  # divides by 2, 3, 4 and 8
NBYTES = 4 * ELEMENTS
SIZES = [2, 3, 4, 8]


def one_gradient(size: int, *, ready_s: float = BACKWARD_S, **more: object) -> Job:
    return job_of(size, ((ELEMENTS, ready_s),), forward_s=FORWARD_S, backward_s=BACKWARD_S, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
def test_an_all_reduce_takes_as_many_steps_of_a_latency_and_a_part_as_a_ring_has(size: int):
    report = simulate(one_gradient(size))
    assert report.exposed_s == pytest.approx(ring_s(size, NBYTES), rel=1e-9)
    assert report.iteration_s == pytest.approx(FORWARD_S + BACKWARD_S + ring_s(size, NBYTES), rel=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_workers_reduce_one_gradient_after_the_other(size: int):
    job = job_of(size, ((ELEMENTS, 0.0), (ELEMENTS // 2, 0.0), (ELEMENTS // 5 * 5, 0.0)))
    expected_s = 2 * ring_s(size, NBYTES) + ring_s(size, NBYTES // 2)
    assert simulate(job).iteration_s == pytest.approx(expected_s, rel=1e-9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ready_s", [0.0, 0.5, BACKWARD_S])
def test_an_iteration_ends_with_compute_or_with_the_ring_whichever_is_later(size: int, ready_s: float):
    job = one_gradient(size, ready_s=ready_s)
    job = replace(job, round=replace(job.round, hold_back=False))
    expected_s = FORWARD_S + max(BACKWARD_S, ready_s + ring_s(size, NBYTES))
    assert simulate(job).iteration_s == pytest.approx(expected_s, rel=1e-9)


def test_a_ring_that_blocks_compute_hides_nothing():
    report = simulate(one_gradient(4, ready_s=0.0))
    assert report.exposed_s == pytest.approx(ring_s(4, NBYTES), rel=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_memory_devices_take_push_ring_and_pull_one_after_the_other_for_one_shard(size: int):
    report = simulate(one_gradient(size, num_proxied=1))
    expected_s = 2 * move_s(NBYTES) + ring_s(size, NBYTES)
    assert report.exposed_s == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_devices_add_each_worker_s_gradient_once_and_one_part_in_every_step_of_reduce_scatter(size: int):
    adder = 1e9
    job = one_gradient(size, num_proxied=1, site=site_of(size, adder_bytes_per_s=adder))
    without_s = 2 * move_s(NBYTES) + ring_s(size, NBYTES)
    adding_s = (NBYTES + (size - 1) * NBYTES / size) / adder
    assert simulate(job).exposed_s == pytest.approx(without_s + adding_s, rel=1e-6)


def test_shards_overlap_so_that_what_is_exposed_is_little_more_than_the_slowest_link_takes():
    whole = simulate(one_gradient(4, num_proxied=1)).exposed_s
    cut = simulate(one_gradient(4, num_proxied=1, partition_bytes=NBYTES // 16)).exposed_s
    busiest_s = 2 * 3 / 4 * NBYTES / 1e9
    assert busiest_s < cut < 0.6 * whole
    assert cut < 1.25 * busiest_s


def test_what_is_ready_early_enough_is_not_exposed():
    report = simulate(one_gradient(2, ready_s=0.1, num_proxied=1))
    assert report.exposed_s == pytest.approx(0.0, abs=1e-12)
    assert report.iteration_s == pytest.approx(FORWARD_S + BACKWARD_S)


def test_an_iteration_of_both_rings_ends_with_the_later_of_them():
    """COARSE III-F: the proxies' part runs beside the workers' part."""
    gradients = ((ELEMENTS, 0.2), (ELEMENTS, BACKWARD_S))
    job = job_of(4, gradients, forward_s=FORWARD_S, backward_s=BACKWARD_S, num_proxied=1)
    by_devices_s = 0.2 + 2 * move_s(NBYTES) + ring_s(4, NBYTES)
    by_workers_s = BACKWARD_S + ring_s(4, NBYTES)
    assert simulate(job).iteration_s == pytest.approx(FORWARD_S + max(by_devices_s, by_workers_s), rel=1e-6)


def messy(**more: object) -> Job:
    gradients = ((1234, 0.1), (99_991, 0.3), (ELEMENTS, 0.3), (7, 0.7))
    return job_of(
        3,
        gradients,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        num_proxied=3,
        partition_bytes=500_000,
        slow_downs=(1.0, 1.31, 1.17),
        num_sync_groups=2,
        **more,  # type: ignore[arg-type]
    )


def test_the_same_job_gives_the_same_report_to_the_last_bit():
    assert simulate(messy()) == simulate(messy())


def test_recording_changes_no_time():
    plain, recorded = simulate(messy()), simulate(messy(), record=True)
    assert recorded.iterations == plain.iterations
    assert recorded.num_events == plain.num_events
    assert len(recorded.syncs) == 4 * 3 * 2


def test_progress_rises_by_one_to_all_there_is():
    seen: list[tuple[int, int]] = []
    simulate(messy(), on_progress=lambda ended, total: seen.append((ended, total)))
    assert seen == [(ended, 4 * 3 * 2) for ended in range(1, 4 * 3 * 2 + 1)]


@pytest.mark.parametrize("num_proxied", [0, 1])
def test_who_computes_faster_waits_for_the_straggler_and_that_is_idle_and_not_exposed(num_proxied: int):
    even = simulate(one_gradient(2, num_proxied=num_proxied))
    report = simulate(one_gradient(2, num_proxied=num_proxied, slow_downs=(1.0, 1.5)))
    fast, slow = report.steady()
    compute_s = FORWARD_S + BACKWARD_S
    assert (fast.compute_s, slow.compute_s) == (pytest.approx(compute_s), pytest.approx(1.5 * compute_s))
    assert (fast.idle_s, slow.idle_s) == (pytest.approx(0.5 * compute_s, rel=1e-4), 0.0)  # a start-up, set up early
    assert slow.exposed_s == pytest.approx(even.exposed_s, rel=0.01)
    assert report.iteration_s == pytest.approx(even.iteration_s + 0.5 * compute_s, rel=1e-4)


def test_compute_idle_and_exposed_add_up_to_each_iteration():
    for row in simulate(messy()).iterations:
        assert row.compute_s + row.idle_s + row.exposed_s == pytest.approx(row.duration_s)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("partition_bytes", [1 << 30, NBYTES // 4])
def test_links_carry_the_bytes_that_the_formulas_say(size: int, partition_bytes: int):
    """Push and pull n per worker, a ring 2(p-1)/p n per device, and as much per worker for what they keep."""
    gradients = ((ELEMENTS, 0.1), (ELEMENTS // 2, BACKWARD_S))
    job = job_of(
        size, gradients, forward_s=FORWARD_S, backward_s=BACKWARD_S, num_proxied=1, partition_bytes=partition_bytes
    )
    report = simulate(job)
    for member in range(size):
        moved = {role: report.link_bytes[f"{role} {member}"] / job.num_iterations for role in
                 ("push", "pull", "device ring", "worker ring")}  # fmt: skip
        assert moved == {
            "push": NBYTES,
            "pull": NBYTES,
            "device ring": 2 * (size - 1) * NBYTES // size,
            "worker ring": (size - 1) * NBYTES // size,
        }


def test_one_worker_alone_has_nothing_to_reduce():
    report = simulate(job_of(1, ((ELEMENTS, BACKWARD_S),), forward_s=FORWARD_S, backward_s=BACKWARD_S))
    assert report.exposed_s == 0.0
    assert report.iteration_s == pytest.approx(FORWARD_S + BACKWARD_S)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"round": Round(by=())}, "round"),
        ({"num_iterations": 0}, "num_iterations"),
        ({"forward_s": -1.0}, "compute"),
        ({"slow_downs": (1.0,)}, "slow_downs"),
        ({"slow_downs": (1.0, 0.0)}, "slow_downs"),
        ({"backward_s": 0.1}, "gradients"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_by_the_name_of_what_is_wrong(change: dict[str, object], name: str):
    with pytest.raises(ValueError, match=f"Job.{name}"):
        replace(one_gradient(2), **change)  # type: ignore[arg-type]


def test_a_gradient_that_rounding_puts_after_backward_is_still_summed():
    """A sum of layers' times may be a last digit more than backward's."""
    report = simulate(one_gradient(2, ready_s=BACKWARD_S * (1 + 5e-10)))
    assert report.iteration_s == pytest.approx(FORWARD_S + BACKWARD_S + ring_s(2, NBYTES), rel=1e-8)
