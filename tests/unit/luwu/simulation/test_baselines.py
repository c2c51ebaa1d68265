"""LuWu's baselines in virtual time: bytes as formulas have them, never faster than their resources, and what fits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.gpt import OPT_SHAPES, GptShape, gpt, gpt_of
from coarse.hardware.presets import machine_named
from coarse.luwu.simulation.baselines import simulate_baseline
from coarse.luwu.simulation.capacity import LUWU, MODES
from coarse.luwu.simulation.cluster import PagedTraining
from coarse.luwu.simulation.moves import PACKET_BYTES, Baseline, BaselineCluster, moves_of
from coarse.luwu.simulation.scenario import PagedScenario, modes_of
from coarse.luwu.simulation.training import simulate

CLUSTER = BaselineCluster(
    num_workers=8, worker_flops_per_s=183e12, gpu_memory_bytes_per_s=1.5e12, link_bytes_per_s=12.5e9,
    pcie_bytes_per_s=12e9, disk_bytes_per_s=3.25e9,
)  # fmt: skip
TRAINING = PagedTraining(num_blocks=12, block_elements=1_000_000, tokens=4096)


def scenario(model: str = "opt-30b", batch: int = 8, workers: int = 8) -> PagedScenario:
    return PagedScenario(machine=machine_named("luwu"), model_name=model, num_workers=workers, batch=batch)


@pytest.mark.parametrize("num_workers", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("prefetch", [False, True])
def test_bytes_are_those_of_the_formulas(num_workers: int, prefetch: bool) -> None:
    cluster = replace(CLUSTER, num_workers=num_workers, prefetch=prefetch)
    size = 2 * TRAINING.num_parameters
    others = (num_workers - 1) / num_workers
    gathered = size / num_workers if num_workers > 1 else 0.0
    wanted = {
        Baseline.ZERO3: (3 * others * size, 3 * others * size),
        Baseline.ZERO_INFINITY: (3 * others * size, 3 * others * size),
        Baseline.SWITCHML: (2 * size, 2 * size),
        Baseline.SHARP: (2 * gathered + size * (num_workers > 1), 2 * others * size + gathered),
    }
    for mode, (sent, received) in wanted.items():
        step = simulate_baseline(mode, cluster, TRAINING)
        assert step.sent_bytes == pytest.approx(sent), mode
        assert step.received_bytes == pytest.approx(received), mode


@pytest.mark.parametrize("num_workers", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("prefetch", [False, True])
def test_resources_are_busy_as_long_as_their_bytes_say(num_workers: int, prefetch: bool) -> None:
    cluster = replace(CLUSTER, num_workers=num_workers, prefetch=prefetch, disk_share=0.5)
    training = replace(TRAINING, input_elements=4096 * 64)
    num, inputs = training.num_parameters, training.num_blocks * training.input_elements
    shard, others = num / num_workers, 1 - 1 / num_workers
    link, pcie, disk, memory = 12.5e9, 12e9, 3.25e9 / 2, 1.5e12
    ring = {"up": 3 * others * 2 * num / link, "down": 3 * others * 2 * num / link}
    # read: two pulls of 2 bytes, then gradients of 2 and states of 12; written: gradients, then parameters and states
    disks = {"reads": (2 * 2 + 2 + 12) * shard / disk, "writes": (2 + 2 + 12) * shard / disk, "cpu": shard / 1e9}
    bus = {"pcie in": (2 * 2 * shard + 2 * inputs) / pcie, "pcie out": (2 * shard + 2 * inputs) / pcie}
    wanted = {
        Baseline.ZERO3: {**ring, "pcie in": 2 * inputs / pcie, "pcie out": 2 * inputs / pcie},
        Baseline.ZERO_INFINITY: {**ring, **disks, **bus},
        Baseline.SHARP: {
            "up": 2 * (2 * shard + num) / link * (num_workers > 1), "down": 2 * (2 * others * num + shard) / link,
            **disks, **bus,
        },
        Baseline.SWITCHML: {
            "up": 4 * num / link, "down": 4 * num / link, "cpu": 4 * num / PACKET_BYTES / 12.2e6,
            "pcie in": 4 * (num + inputs) / pcie, "pcie out": 4 * (num + inputs) / pcie,
        },
    }  # fmt: skip
    if num_workers == 1:
        wanted[Baseline.SHARP]["down"] = 0.0
    compute = 6 * num * training.tokens / 183e12
    lent = cluster.interference * ring["up"] if prefetch else 0.0
    gpus = {
        Baseline.ZERO3: compute + lent + 28 * shard / memory, Baseline.ZERO_INFINITY: compute + lent,
        Baseline.SHARP: compute, Baseline.SWITCHML: 2 * compute + 28 * num / memory,
    }  # fmt: skip
    for mode, busy in wanted.items():
        found = simulate_baseline(mode, cluster, training).busy_s
        assert found.pop("gpu") == pytest.approx(gpus[mode]), mode
        assert found == pytest.approx(busy), mode


def test_more_packets_than_a_cpu_takes_make_switchml_slower() -> None:
    steps = [
        simulate_baseline(Baseline.SWITCHML, replace(CLUSTER, packets_per_s=rate), TRAINING).step_s
        for rate in (1e9, 12.5e9 / PACKET_BYTES, 6.25e9 / PACKET_BYTES)
    ]
    assert steps[0] == pytest.approx(steps[1])
    assert steps[2] - steps[1] == pytest.approx(4 * TRAINING.num_parameters / 12.5e9)  # the network's time again


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(Baseline), num_workers=st.integers(1, 64), tokens=st.integers(1, 1 << 16),
    num_blocks=st.integers(1, 20), link=st.floats(1e8, 1e11), disk=st.floats(1e8, 1e11), prefetch=st.booleans(),
    input_elements=st.sampled_from([0, 1 << 20, 1 << 26]),
)  # fmt: skip
def test_no_step_is_faster_than_its_resources_and_its_bound(
    mode: Baseline, num_workers: int, tokens: int, num_blocks: int, link: float, disk: float, prefetch: bool,
    input_elements: int,
) -> None:  # fmt: skip
    cluster = replace(
        CLUSTER, num_workers=num_workers, link_bytes_per_s=link, disk_bytes_per_s=disk, prefetch=prefetch
    )
    training = PagedTraining(
        num_blocks=num_blocks, block_elements=100_000, tokens=tokens, input_elements=input_elements
    )
    step = simulate_baseline(mode, cluster, training)
    longest_s = sum(step.busy_s.values())
    assert max(step.busy_s.values()) <= step.step_s * (1 + 1e-9)
    assert step.step_s <= longest_s * (1 + 1e-9)
    assert step.ends_s["forward"] < step.ends_s["backward"] <= step.ends_s["optimizer"] == step.step_s
    least_s = moves_of(mode, cluster, training).least_s(prefetch=prefetch)
    assert least_s <= step.step_s * (1 + 1e-9)
    if not prefetch:  # but the optimizer's first part, which overlaps with none
        assert step.step_s <= (1 + 2 / num_blocks) * least_s * (1 + 1e-9)


@pytest.mark.parametrize(("model", "batch"), [("opt-1.3b", 4), ("opt-1.3b", 32), ("opt-13b", 8)])
@pytest.mark.parametrize("mode", MODES)
def test_a_step_on_the_papers_cluster_is_no_faster_than_its_bound(mode: str, model: str, batch: int) -> None:
    step = scenario(model, batch).step(mode)
    assert max(step.busy_s.values()) <= step.bound_s * (1 + 1e-9)
    assert step.bound_s <= step.step_s * (1 + 1e-9)


def test_inputs_of_blocks_take_luwu_the_bus_they_share_with_parameters() -> None:
    made = scenario("opt-1.3b", 4)
    cluster, training = made.luwu_cluster, made.training
    without = replace(training, input_elements=0)
    added = 24 * 2 * 4 * 1024 * 2048 / 12e9
    for direction, took_s in training.link_s(cluster).items():
        assert took_s - without.link_s(cluster)[direction] == pytest.approx(added)
    narrow = replace(cluster, link_bytes_per_s=1e9)
    gained_s = simulate(narrow, training).step_s - simulate(narrow, without).step_s
    assert gained_s == pytest.approx(12 * added, rel=0.2)  # where the bus bounds


@pytest.mark.parametrize("mode", [Baseline.ZERO3, Baseline.ZERO_INFINITY, Baseline.SHARP])
def test_prefetch_hides_what_it_can(mode: Baseline) -> None:
    training = PagedTraining(num_blocks=48, block_elements=600_000_000, tokens=8192)
    alone, ahead = (simulate_baseline(mode, replace(CLUSTER, prefetch=on), training) for on in (False, True))
    assert ahead.step_s < 0.85 * alone.step_s


def test_luwu_grows_with_its_workers_and_zero_infinity_more_than_that() -> None:
    luwu = [scenario(workers=count).step(LUWU).step_s for count in (1, 8)]
    assert luwu[0] == luwu[1]
    own = [scenario(workers=count).step("zero-infinity").step_s for count in (1, 2, 4, 8)]
    assert own == sorted(own, reverse=True)
    assert own[0] > 2 * own[3]


def test_a_headline_of_the_paper_is_predicted() -> None:
    step = scenario("opt-175b", 16).step("zero-infinity")
    assert step.flops_per_s == pytest.approx(46e12, rel=0.05)  # 183 / 3.98, figure 11a
    assert 1 - step.idle_share == pytest.approx(0.23, rel=0.1)  # 2.1


@pytest.mark.parametrize("mode", MODES)
def test_more_workers_never_train_a_smaller_model(mode: str) -> None:
    names = list(OPT_SHAPES)
    found = [names.index(scenario(workers=count).capacity.largest_model(mode)) for count in (1, 2, 4, 8, 16, 64)]
    assert found == sorted(found)
    if mode in (LUWU, Baseline.SWITCHML):
        assert len(set(found)) == 1
    else:
        assert found[0] < found[3]


def test_figure_10_at_eight_workers() -> None:
    capacity = scenario().capacity
    assert {mode: capacity.largest_model(mode) for mode in MODES} == {
        "luwu": "opt-1t", "zero-infinity": "opt-175b", "zero3": "opt-13b", "switchml": "opt-1.3b", "sharp": "opt-175b",
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_the_most_parameters_grow_with_workers_and_no_layer_more_fits(mode: str) -> None:
    limits = [scenario(workers=count).capacity.limit(mode) for count in (1, 2, 4, 8, 16, 64)]
    found = [limit.num_parameters for limit in limits]
    assert found == sorted(found)
    assert (len(set(found)) == 1) == (mode in (LUWU, Baseline.SWITCHML))
    for limit in limits:
        assert gpt(limit.named, 1024).num_parameters <= limit.num_parameters
        assert limit.bound_by == {
            LUWU: "the optimizer node's disks", "zero-infinity": "a host", "sharp": "a host"
        }.get(mode, "a GPU")  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_the_deepest_model_of_a_width_fits_and_a_layer_more_does_not(mode: str) -> None:
    capacity = scenario().capacity
    small = replace(capacity, disks=replace(
        capacity.disks, host_memory_bytes=20 * 10**9, optimizer_capacity_bytes=100 * 10**9
    ))  # fmt: skip
    most = small.limit(mode)

    def deepest(shape: GptShape) -> int:
        """By trying."""
        depth = 1
        while small.fits(mode, gpt_of(replace(shape, num_layers=depth), f"{depth}", 1024), 1):
            depth += 1
        return gpt_of(replace(shape, num_layers=depth - 1), f"{depth - 1}", 1024).num_parameters if depth > 1 else 0

    wide = [shape for name, shape in OPT_SHAPES.items() if name not in ("opt-1.3b", "opt-2.7b")]
    tried = max(deepest(shape) for shape in wide)
    assert most.num_parameters >= tried
    assert most.num_parameters == pytest.approx(tried, rel=0.05)  # a layer of a narrower model is less


@pytest.mark.parametrize("mode", MODES)
def test_the_largest_batch_fits_and_twice_of_it_does_not(mode: str) -> None:
    made = scenario("opt-1.3b")
    largest = made.capacity.largest_batch(mode, made.model)
    assert made.capacity.fits(mode, made.model, largest)
    assert not made.capacity.fits(mode, made.model, 2 * largest)
    with pytest.raises(CapacityError, match=f"{mode} needs of a GPU .* lower the batch to {largest}"):
        replace(made, batch=2 * largest).require_fit(mode)


def test_the_shapes_are_those_of_the_paper() -> None:
    for name in OPT_SHAPES:
        said = float(name.removeprefix("opt-").rstrip("bt")) * (1000 if name.endswith("t") else 1)
        assert gpt(name, 1024).num_parameters / 1e9 == pytest.approx(said, rel=0.03)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch": 0}, "batch must lie in"),
        ({"num_workers": 0}, "workers must lie in"),
        ({"num_workers": 1 << 20}, "workers must lie in"),
        ({"peak_share": 0.0}, "peak_share must lie in"),
        ({"model_name": "opt-31b"}, "unknown GPT 'opt-31b'"),
        ({"machine": machine_named("aws-p3")}, "no network|states no"),
        ({"machine": machine_named("fcdp-a40-10gbe")}, r"states no \[disks\]"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        replace(scenario(), **change)


def test_modes_are_named_once_and_known() -> None:
    assert modes_of("luwu, zero3,luwu") == ("luwu", "zero3")
    with pytest.raises(ConfigError, match="of luwu, zero-infinity, zero3, switchml, sharp, got 'dense'"):
        modes_of("luwu,dense")
