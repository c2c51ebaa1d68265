"""A training in the network in virtual time: no faster than its resources, and close to the slowest."""

from dataclasses import replace

import pytest

from coarse.luwu.simulation.cluster import PagedCluster, PagedTraining
from coarse.luwu.simulation.training import simulate

CLUSTER = PagedCluster(
    num_workers=8, worker_flops_per_s=200e12, link_bytes_per_s=12e9, num_disks=8, disk_bytes_per_s=2e9,
    sums_bytes=10**12,
)  # fmt: skip
TRAINING = PagedTraining(num_blocks=48, block_elements=32_000_000, tokens=16_384, chunks_per_block=32)
SLOWEST = ("compute", "network", "disk")


def cluster(slowest: str) -> PagedCluster:
    """On which one resource takes three times as long as the others."""
    made = CLUSTER
    third_s = TRAINING.compute_s(CLUSTER) / 3
    rates = {
        "network": ("link_bytes_per_s", TRAINING.network_s(CLUSTER)),
        "disk": ("disk_bytes_per_s", TRAINING.disk_s(CLUSTER)),
    }
    for name, (rate, took_s) in rates.items():
        wanted_s = 9 * third_s if name == slowest else third_s
        made = replace(made, **{rate: getattr(made, rate) * took_s / wanted_s})
    return made


@pytest.mark.parametrize("slowest", SLOWEST)
def test_a_step_takes_as_long_as_its_slowest_resource(slowest: str) -> None:
    on = cluster(slowest)
    times = {name: getattr(TRAINING, f"{name}_s")(on) for name in SLOWEST}
    assert max(times, key=lambda name: times[name]) == slowest
    step_s = simulate(on, TRAINING).step_s
    assert times[slowest] <= step_s * 1.001
    assert step_s <= 1.1 * times[slowest]


def test_resources_that_are_equally_slow_overlap() -> None:
    alike = TRAINING.disk_s(CLUSTER) / TRAINING.compute_s(CLUSTER)
    on = replace(CLUSTER, disk_bytes_per_s=CLUSTER.disk_bytes_per_s * alike)
    with_room = simulate(on, TRAINING).step_s
    without = simulate(replace(on, sums_bytes=0), TRAINING).step_s
    assert with_room <= 1.15 * TRAINING.compute_s(on)
    assert with_room < 0.95 * without  # what waits in memory gives the disk work in forward


def test_small_blocks_have_fewer_chunks_than_asked_for() -> None:
    small = PagedTraining(num_blocks=3, block_elements=1000, tokens=1024, chunks_per_block=48)
    assert small.model().num_chunks(0) < 48
    assert simulate(CLUSTER, small).step_s >= small.compute_s(CLUSTER)


def test_a_training_is_the_same_whenever_it_is_simulated() -> None:
    assert simulate(CLUSTER, TRAINING) == simulate(CLUSTER, TRAINING)
